// Kernels of one's own in a shared library, which any program of Convoy loads and puts in front of ours:
//
//   g++ -std=c++20 -O3 -fopenmp -fPIC -shared -Wl,-Bsymbolic-functions -I$PREFIX/include/convoy mine.cpp -o mine.so
//   CONVOY_PLUGINS=./mine.so bench_layers --kernels mine,onednn
//
// What the library uses of `core` the program has; nothing of Convoy is linked into it. -Bsymbolic-functions: a
// function of its own that is called like one of ours stays its own.
#pragma once

#include "kernels/function_kernel.h"
#include "kernels/headers_digest.h"

namespace convoy {

/// What a plugin's one exported function, convoy_plugin, returns.
struct Plugin {
  const char* headers;  ///< those it was compiled with: a program refuses others than its own
  std::vector<KernelPtr> (*kernels)();
};

}  // namespace convoy

/// To stand once in a plugin, outside of namespaces. `function`, a std::vector<convoy::KernelPtr>(), lists its kernels,
/// best first.
#define CONVOY_PLUGIN(function)                                                             \
  extern "C" __attribute__((visibility("default"))) const convoy::Plugin* convoy_plugin() { \
    static constexpr convoy::Plugin plugin{CONVOY_HEADERS_DIGEST, function};                \
    return &plugin;                                                                         \
  }
