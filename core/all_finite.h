#pragma once

#include "core/tensor.h"

namespace convoy {

/// Whether no element of a tensor on the host is infinite or NaN; slow, for bookkeeping.
bool all_finite(const Tensor& t);

}  // namespace convoy
