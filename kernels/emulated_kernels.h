// Kernels on emulated units, for tests.
#pragma once

#include "core/kernel.h"

namespace convoy {

/// For CPUs without AMX or AVX512-FP16. "emulated_amx": all instructions of the AMX kernels but the tiles'; where build
/// or CPU lack those (AVX-512 with BW, VL and BF16), "portable_amx": their loop nests in plain C++. "emulated_fp16":
/// the kernels for f16 on emulated arithmetic, where the build has AVX-512.
KernelList make_emulated_kernels();

}  // namespace convoy
