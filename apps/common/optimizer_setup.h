// Flags of the optimizers, of gradient accumulation and of gradient lag: one set for every trainer.
#pragma once

#include "apps/common/options.h"
#include "layers/training.h"

namespace convoy::apps {

/// What differs between the published recipes of the benchmarks.
struct OptimizerDefaults {
  std::string optimizer, adam_eps, weight_decay = "0";
};

std::vector<Option> optimizer_options(const OptimizerDefaults& defaults);

/// Flags of `optimizer_options`, all part of a run's identity.
std::vector<std::string> optimizer_flags();

/// Throws Error(usage) for unknown names, values out of range, and settings that have no effect on the optimizer.
TrainingOptions optimizer_config(const OptionTable& options);

}  // namespace convoy::apps
