#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// Whether the CPU multiplies this 16-bit type faster than f32, so that widening it first must save something else.
bool multiplies_faster(DType type);
/// 3x3 convolutions of images forward, with a stride from at most 16 channels, a network's first: Winograd's transforms
/// cost more than its tiles save (f32 takes 0.5 to 0.97 of the time without them on all CPUs of bench/results).
bool strides_from_few_channels(const Problem& p);

/// Winograd in two and three dimensions: `winograd6_*` is F(6,3) (F(4,3) for a depth) and F(6,5), `winograd4_*` F(4,3)
/// and F(4,5), `winograd_*` F(2,3), F(2,5) and 3x3 with a stride of 2; forward, backward_data and forward with
/// activation and max-pool; one list per instruction set.
std::vector<KernelPtr> winograd_avx512_kernels();
std::vector<KernelPtr> winograd_avx2_kernels();
/// Weight gradients under the same names.
std::vector<KernelPtr> winograd_weights_avx512_kernels();
std::vector<KernelPtr> winograd_weights_avx2_kernels();
/// Weight gradient of convolution + LeakyReLU + 2x2x2 max-pool from the pooled gradient and the arg-max.
std::vector<KernelPtr> pool_sparse_avx512_kernels();
std::vector<KernelPtr> pool_sparse_avx2_kernels();
/// backward_data of images into few channels.
std::vector<KernelPtr> col2im_avx512_kernels();
std::vector<KernelPtr> col2im_avx2_kernels();
/// Forward and weight gradients of 1x1 convolutions into at most four channels.
std::vector<KernelPtr> few_outputs_avx512_kernels();
std::vector<KernelPtr> few_outputs_avx2_kernels();
/// The three passes of any convolution as sums over taps; depthwise ones, weight gradients of 1x1 ones and, with AVX2,
/// their other passes on their own.
std::vector<KernelPtr> direct_avx512_kernels();
std::vector<KernelPtr> direct_avx2_kernels();
/// The three passes, and forward into the pool, on bf16 pairs: AMX tiles, which take gradients from behind a pool, too,
/// and VDPBF16PS where it is fast.
std::vector<KernelPtr> direct_amx_kernels();
std::vector<KernelPtr> direct_bf16_kernels();
/// The same on f16 pairs: sums of short runs in f16 on AVX512-FP16, widened into f32.
std::vector<KernelPtr> direct_fp16_kernels();
/// The AMX kernels on tiles emulated in memory, the f16 ones on emulated arithmetic; not in the list, for tests on
/// machines without AMX or AVX512-FP16.
std::vector<KernelPtr> emulated_amx_kernels();
std::vector<KernelPtr> emulated_fp16_kernels();

}  // namespace convoy
