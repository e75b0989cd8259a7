// Intersection over union of predicted and true classes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/communicator.h"

namespace convoy::apps {

/// Counts of (true, predicted) class pairs; pixels of other true classes (255: unlabelled) are left out.
class Confusion {
 public:
  static constexpr int classes = 3;
  void add(std::span<const uint8_t> truth, std::span<const uint8_t> predicted);
  void add(const Confusion& other);
  void add_ranks(Communicator& ranks);
  /// tp / (tp + fp + fn); 1 where a class neither is nor was predicted.
  double iou(int k) const;
  double mean_iou() const;
  int64_t count(int truth, int predicted) const {
    return counts_[static_cast<size_t>(truth)][static_cast<size_t>(predicted)];
  }

 private:
  std::array<std::array<int64_t, classes>, classes> counts_{};
};

/// Both readings of a data set's IoU.
struct SegmentationScore {
  Confusion pooled;                              ///< one matrix over all samples
  std::array<double, Confusion::classes> sum{};  ///< of the samples' IoU per class
  int64_t samples = 0;                           ///< with a label at least
  void add(std::span<const uint8_t> truth, std::span<const uint8_t> predicted);
  void add(const SegmentationScore& other);
  /// Becomes the score over the samples of all ranks.
  void add_ranks(Communicator& ranks);
  /// MLPerf HPC DeepCAM: IoU per sample and class, mean over samples.
  double per_sample(int k) const { return samples ? sum[static_cast<size_t>(k)] / double(samples) : 0; }
  /// ... and mean over classes.
  double mlperf() const { return (per_sample(0) + per_sample(1) + per_sample(2)) / 3; }
};

}  // namespace convoy::apps
