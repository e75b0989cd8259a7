// The one ordered list of kernels.
#pragma once

#include "core/kernel.h"

namespace convoy {

/// Best first, the plain reference last of the CPU's; those for CUDA devices follow. Built once, on first use.
const KernelList& kernel_list();

/// The same anew, for a program that puts kernels of its own in front, where the first that supports a problem runs it,
/// and plans with that list; it stays as long as what was planned runs.
KernelList make_kernel_list();

/// For tests on CPUs without AMX or AVX512-FP16: "emulated_amx", all instructions of the AMX kernels but the tiles',
/// or, where build or CPU lack those (AVX-512 with BW, VL and BF16), "portable_amx", their loop nests in plain C++; and
/// "emulated_fp16", the kernels for f16 on emulated arithmetic, where the build has AVX-512.
KernelList make_emulated_kernels();

}  // namespace convoy
