// What a process needed of the machine's memory.
#pragma once

#include <sys/resource.h>

namespace convoy {

/// Largest resident set of this process so far, libraries included.
inline double peak_resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) / 1024;
}

}  // namespace convoy
