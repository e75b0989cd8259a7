// The one ordered list of kernels.
#pragma once

#include "core/kernel.h"

namespace convoy {

/// Best first, those of plugins (plugin_list.h, whose errors it throws) ahead of ours; the plain reference is the last
/// of the CPU's, those for CUDA devices follow. Built once, on first use.
const KernelList& kernel_list();

/// The same anew, for a program that puts kernels of its own in front, where the first that supports a problem runs it,
/// and plans with that list; it stays as long as what was planned runs.
KernelList make_kernel_list();

}  // namespace convoy
