#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// What buckets and messages are: dense tensors.
Support bytes_in_a_row(const Problem& problem);

}  // namespace convoy
