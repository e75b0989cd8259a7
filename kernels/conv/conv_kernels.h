#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// Whether the CPU multiplies this 16-bit type faster than f32, so that widening it first must save something else.
bool multiplies_faster(DType type);
/// 3x3 convolutions of images forward, with a stride from at most 16 channels, a network's first: Winograd's transforms
/// cost more than its tiles save (f32 takes 0.5 to 0.97 of the time without them on all CPUs of bench/results).
bool strides_from_few_channels(const Problem& p);

}  // namespace convoy
