// The largest of errors, which no NaN gets out of.
#pragma once

#include <cmath>

namespace convoy::testing {

/// The larger one; NaN once one is, which no bound holds. std::max(x, NaN) is x.
inline double worse(double so_far, double error) {
  return std::isnan(so_far) || error <= so_far ? so_far : error;
}

}  // namespace convoy::testing
