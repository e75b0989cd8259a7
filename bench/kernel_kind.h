// What the name of a kernel, or of a row of bench_layers, says about it.
#pragma once

#include <string_view>

namespace convoy::bench {

/// Of the library that is beside us on the CPU or on a device.
inline bool is_library(std::string_view kernel) {
  return kernel.starts_with("onednn") || kernel.starts_with("cudnn");
}
/// The sum of the library's plain primitives that a fused op stands for.
inline bool is_definition(std::string_view kernel) {
  return kernel.ends_with("_definition");
}

}  // namespace convoy::bench
