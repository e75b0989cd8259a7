// Kernels of narrow types made of f32 kernels and casts.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// "widened": convolution and dense layers in bf16 or f16 on CPUs whose libraries lack the type, by casting into the
/// workspace, running the best f32 kernel of the list, and casting back. Kernels for AVX2 stand ahead of it and take
/// every such problem, so it runs only where AVX2 is missing, or where --kernel or a tuned table asks for it.
std::vector<KernelPtr> widened_kernels();

}  // namespace convoy
