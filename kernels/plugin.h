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

#if !defined(_OPENMP) && !defined(__SANITIZE_THREAD__)
#error "compile plugins with -fopenmp: core/parallel.h has one thread without"
#endif

// What has to be the same in a plugin and in the program that loads it: headers, and the layout of library types.
#ifdef _GLIBCXX_DEBUG
#define CONVOY_LIBRARY_MODE " _GLIBCXX_DEBUG"
#else
#define CONVOY_LIBRARY_MODE ""
#endif
#define CONVOY_TEXT_OF(macro) CONVOY_TEXT(macro)
#define CONVOY_TEXT(words) #words
#define CONVOY_PLUGIN_INTERFACE \
  CONVOY_HEADERS_DIGEST ", C++11 ABI " CONVOY_TEXT_OF(_GLIBCXX_USE_CXX11_ABI) CONVOY_LIBRARY_MODE

namespace convoy {

/// What a plugin's one exported function, convoy_plugin, returns.
struct Plugin {
  const char* interface;  ///< that it was compiled for: a program refuses others than its own
  std::vector<KernelPtr> (*kernels)();
};

}  // namespace convoy

/// To stand once in a plugin, outside of namespaces. `function`, a std::vector<convoy::KernelPtr>(), lists its kernels,
/// best first. Their names are letters, digits and _, not one that others have.
#define CONVOY_PLUGIN(function)                                                             \
  extern "C" __attribute__((visibility("default"))) const convoy::Plugin* convoy_plugin() { \
    static constexpr convoy::Plugin plugin{CONVOY_PLUGIN_INTERFACE, function};              \
    return &plugin;                                                                         \
  }
