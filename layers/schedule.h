// Learning rates: per epoch as the MLPerf HPC CosmoFlow reference computes them, per step as the climate benchmarks do.
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

  /// base_rate, base_rate * batch/base_batch or base_rate * sqrt(batch/base_batch).
  double peak(double global_batch) const;
  /// Epochs count from 0. Warm-up: base + epoch * (peak - base) / warmup_epochs; afterwards peak times the multiplier
  /// of the last boundary that is *smaller* than the epoch (a boundary of 32 acts from epoch index 33).
  double rate(int64_t epoch, double global_batch) const;
};

/// Learning rates per step. Multistep and cosine are those of MLPerf HPC DeepCAM; the runs of 2018 lowered a polynomial
/// once an epoch, this one falls with every step.
struct StepSchedule {
  enum class Kind : uint8_t { constant, multistep, cosine, polynomial };
  Kind kind = Kind::constant;
  double base_rate = 0.001;
  /// Step s of the first `warmup_steps` has the share s/warmup_steps of the way to base_rate*warmup_factor: from 0 for
  /// a factor of 1, else from base_rate (the gradual warm-up of Goyal et al. 2017). The rest starts counting behind
  /// them. Steps count from 0: with a factor of 1 the first step of a warm-up changes nothing, and behind a warm-up
  /// milestones act one step later than without, as those of MLPerf HPC DeepCAM do. (Its program makes the scheduler of
  /// warm-ups and milestones one step ahead: its step s has the rate of our step s + 1.) Without warm-up steps the
  /// factor means nothing.
  int64_t warmup_steps = 0;
  double warmup_factor = 1;
  std::vector<int64_t> milestones;  ///< multistep: each multiplies the rate by decay_rate
  double decay_rate = 0.1;
  int64_t length = 1;  ///< cosine, polynomial: steps until eta_min, behind which cosine rises again (PyTorch's)
  double eta_min = 0;
  double power = 0.9;  ///< polynomial: (1 - step/length)^power

  double rate(int64_t step) const;
};

}  // namespace convoy
