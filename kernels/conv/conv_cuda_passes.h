// Small passes around a convolution by a library.
#pragma once

#include "core/attrs.h"
#include "core/tensor.h"

namespace convoy::cuda {

/// to = leaky_relu(from + bias per channel); no bias: null, slope 1: no activation. `to` may be `from`.
void queue_bias_activation(const Tensor& from, const Tensor& to, const float* bias, float slope);
/// to(d, h, w) = from(d - offset, ...), zero where `from` ends: an image into a larger one, or out of it.
void queue_place(const Tensor& from, const Tensor& to, const Int3& offset);
/// f32 from bf16 or f16.
void queue_widen(DType from, int64_t elements, const void* narrow, float* wide);
/// Sums over all pixels of each channel, in f32.
int64_t column_sum_bytes(const Shape& shape);
void queue_column_sums(const Tensor& t, std::byte* workspace, float* out);

}  // namespace convoy::cuda
