// Sums that kernels of other ops end with.
#pragma once

#include "core/tensor.h"

namespace convoy {

namespace cuda {
/// sum = a + b, of one shape and type; `sum` may be one of them.
void queue_sum(const Tensor& a, const Tensor& b, const Tensor& sum);
}  // namespace cuda

}  // namespace convoy
