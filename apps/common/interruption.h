// Ending something long, that talks to other ranks at its end, on all ranks at once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "core/communicator.h"

namespace convoy::apps {

/// Thrown on all ranks alike where one was asked to stop: what was going on is given up.
struct Interrupted {};

class StopPoint {
 public:
  /// Never stops.
  StopPoint() = default;
  /// `asked` says whether this rank was asked to; null `ranks`: this one is alone.
  StopPoint(std::function<bool()> asked, Communicator* ranks) : asked_(std::move(asked)), ranks_(ranks) {}

  /// Called ahead of unit `done` of this rank's, of which every rank has `common` at least. Throws Interrupted.
  void operator()(int64_t done, int64_t common) const {
    if (!asked_) return;
    if (!ranks_) {
      if (asked_()) throw Interrupted{};
      return;
    }
    if (done >= common || done % interval != 0) return;  // ranks agree about the same units
    double requests = asked_() ? 1 : 0;
    ranks_->all_reduce_sum(std::span(&requests, 1));
    if (requests > 0) throw Interrupted{};
  }

 private:
  static constexpr int64_t interval = 4;
  std::function<bool()> asked_;
  Communicator* ranks_ = nullptr;
};

}  // namespace convoy::apps
