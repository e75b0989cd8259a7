// A one-feature yardstick: how far the variance of the counts alone predicts the parameters.
#pragma once

#include "apps/common/cosmoflow_setup.h"

namespace convoy::apps {

/// Least squares of the first `targets` labels on (1, v, v^2) with v = log variance of the z = 0 counts, fitted on
/// `train`, applied to `validation`.
Predictions variance_regression(const std::vector<SampleRef>& train, const std::vector<SampleRef>& validation,
                                const ReadOptions& read, int64_t targets);

}  // namespace convoy::apps
