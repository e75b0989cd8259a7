// What messages carry in the steps of a run, and how long its ranks wait for each other.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "apps/common/ranks.h"

namespace convoy::apps {

class CommunicationRecord {
 public:
  explicit CommunicationRecord(Ranks& ranks) : ranks_(ranks) {}
  /// Ahead of the first step. Every rank calls it, as it does end_epoch().
  void begin();
  void begin_step();
  /// Behind a step of so many seconds.
  void end_step(double seconds);
  /// Adds an epoch's waits of all ranks up: in all, and for ranks that came late to the update or, in a team, to the
  /// end of packing and updating (those that come late to shared batch-norm statistics are not told apart). `lagged`:
  /// gradients are applied a step later.
  void end_epoch(bool lagged);
  /// Seconds of this rank's clock ahead of rank 0's, at the end of the epoch before.
  double clock_offset() const { return clock_offset_; }
  /// The object "communication" of summary.json, of so many steps.
  nlohmann::json summary(int64_t steps) const;

 private:
  /// Of a step: seconds of the clock when this rank first waited for a message, seconds exposed, of these at barriers,
  /// seconds in all.
  struct Wait {
    double arrival, exposed, met, seconds;
  };
  Ranks& ranks_;
  CommunicationTimes before_, steps_;  ///< at the begin of the step; of all steps, this rank's
  std::vector<Wait> waits_;            ///< of the current epoch
  double clock_offset_ = 0;
  double mean_exposed_ = 0, mean_late_ = 0, mean_seconds_ = 0;  ///< over ranks, of all steps
};

}  // namespace convoy::apps
