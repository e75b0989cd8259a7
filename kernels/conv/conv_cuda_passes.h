// Small passes around a convolution by a library.
#pragma once

#include "core/tensor.h"

namespace convoy::cuda {

/// out += bias per channel, any of the three float types.
void queue_add_bias(const Tensor& out, const float* bias);
/// f32 from bf16 or f16.
void queue_widen(DType from, int64_t elements, const void* narrow, float* wide);
/// Sums over all pixels of each channel, in f32.
int64_t column_sum_bytes(const Shape& shape);
void queue_column_sums(const Tensor& t, float* workspace, float* out);

}  // namespace convoy::cuda
