// Everything that outlives a step: parameters, moments, loss scale, step counters. A checkpoint is this plus cursors.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/tape.h"

namespace convoy {

class StateStore {
 public:
  /// Adds the states of a tape that are not there yet, drawing initial values from (seed, name of the state). Throws
  /// Error(usage) when a state of that name exists with another descriptor.
  void initialise(const Tape& tape, uint64_t seed);

  bool contains(const std::string& name) const;
  /// Throws Error(usage) for an unknown name.
  const Tensor& get(const std::string& name) const;
  const std::vector<std::pair<std::string, Tensor>>& entries() const { return entries_; }
  int64_t bytes() const;

 private:
  std::vector<std::pair<std::string, Tensor>> entries_;
};

}  // namespace convoy
