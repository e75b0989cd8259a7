// The rule of dynamic loss scaling, for the CPU and for CUDA devices.
#pragma once

#include "core/tape.h"

namespace convoy {

/// What a step with finite or other gradients makes of the loss scale's state.
constexpr void advance_loss_scale(const LossScaleAttrs& a, bool finite, double* state) {
  double &scale = state[int(ScaleField::scale)], &good = state[int(ScaleField::good_steps)];
  if (finite) {
    state[int(ScaleField::applied)] += 1;
    good += 1;
    if (good >= double(a.interval)) scale *= a.growth, good = 0;
  } else {
    state[int(ScaleField::skipped)] += 1;
    if (scale * a.backoff >= smallest_loss_scale) scale *= a.backoff;
    good = 0;
  }
}

}  // namespace convoy
