// What the environment grants to OpenMP's threads.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "core/parallel.h"

namespace convoy {

/// Throws Error(usage) where --threads, 0 if it is not given, asks for more threads than OMP_THREAD_LIMIT grants, for
/// which oneDNN would wait, and where OMP_STACKSIZE asks for less than a megabyte, which kernels take on their threads:
/// too little ends in a segmentation fault. What OpenMP cannot read it leaves out, and so does this.
inline void expect_granted(int64_t threads) {
  if (threads > thread_limit())
    fail_usage("--threads: expected no more than OMP_THREAD_LIMIT's " + std::to_string(thread_limit()) + ", found " +
               std::to_string(threads));
  for (const char* name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
    const char* text = std::getenv(name);
    if (!text) continue;
    char* rest = nullptr;
    const double number = std::strtod(text, &rest);
    if (rest == text) continue;
    while (std::isspace(static_cast<unsigned char>(*rest))) ++rest;
    const int unit = std::tolower(static_cast<unsigned char>(*rest));  // kilobytes where none is given
    const double kilobytes = unit == 'b'   ? number / 1024
                             : unit == 'm' ? number * 1024
                             : unit == 'g' ? number * 1048576
                                           : number;
    if (kilobytes < 1024) fail_usage(std::string(name) + ": expected a megabyte (1M) or more, found " + text);
  }
}

}  // namespace convoy
