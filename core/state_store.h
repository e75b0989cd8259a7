// Everything that outlives a step: parameters, moments, loss scale, step counters. A checkpoint is this plus cursors.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/tape.h"

namespace convoy {

class StateStore {
 public:
  /// The state of this name will lie in `tensor`, zeroed memory that several ranks see; one of them fills it. Ahead of
  /// `initialise`.
  void place(const std::string& name, const Tensor& tensor, bool fills);
  /// Whether this rank gives the state its initial or loaded value, and not another one that sees the same memory.
  bool fills(const std::string& name) const;

  /// Adds the states of a tape that are not there yet, drawing initial values from (seed, name of the state). Throws
  /// Error(usage) when a state of that name exists with another descriptor.
  void initialise(const Tape& tape, uint64_t seed);

  bool contains(const std::string& name) const;
  /// Throws Error(usage) for an unknown name.
  const Tensor& get(const std::string& name) const;
  /// StateSpec::rank of a state.
  int rank(const std::string& name) const;
  const std::vector<std::pair<std::string, Tensor>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, Tensor>> entries_;
  std::map<std::string, int> ranks_;  ///< of weights
  struct Place {
    Tensor tensor;
    bool fills;
  };
  std::map<std::string, Place> places_;
};

}  // namespace convoy
