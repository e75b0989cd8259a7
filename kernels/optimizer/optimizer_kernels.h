#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// loss_scale_update: four numbers of state.
KernelPtr make_loss_scale_kernel();
KernelPtr make_loss_scale_reference();

}  // namespace convoy
