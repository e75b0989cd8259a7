// What was built, with what, and what it runs on.
#pragma once

#include <string>

namespace convoy::apps {

/// "convoy 0.1.0 (g++ 12.2.0, oneDNN 2.6.3, HDF5 1.10.8)"
std::string version_text();
/// "AMD EPYC ... [avx2 avx512]"
std::string machine_text();
/// Largest resident set of this process so far.
double peak_resident_mib();

}  // namespace convoy::apps
