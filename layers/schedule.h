// Learning rates per epoch, as the MLPerf HPC CosmoFlow reference computes them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace convoy {

enum class LrScaling : uint8_t { none, linear, sqrt };

struct LrSchedule {
  double base_rate = 0.001;
  LrScaling scaling = LrScaling::none;
  double base_batch = 64;
  int64_t warmup_epochs = 0;
  std::vector<std::pair<int64_t, double>> decay;  ///< (boundary epoch, multiplier of the peak)

  /// base_rate, or base_rate * (batch/base_batch) or its square root.
  double peak(double global_batch) const;
  /// Epochs count from 0. Warm-up: base + epoch * (peak - base) / warmup_epochs; afterwards peak times the multiplier
  /// of the last boundary that is *smaller* than the epoch (a boundary of 32 acts from epoch index 33).
  double rate(int64_t epoch, double global_batch) const;
};

}  // namespace convoy
