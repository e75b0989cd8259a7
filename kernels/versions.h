// Libraries behind the kernels, for headers and summaries.
#pragma once

#include <string>

namespace convoy {

/// "oneDNN 2.6.3", or "no oneDNN".
std::string kernel_library_versions();

}  // namespace convoy
