#include "apps/common/version.h"

#include <sys/resource.h>

#include "io/hdf5.h"
#include "kernels/simd/cpu.h"
#include "kernels/versions.h"

namespace convoy::apps {

std::string version_text() {
  return std::string("convoy " CONVOY_VERSION " (g++ ") + __VERSION__ + ", " + kernel_library_versions() + ", HDF5 " +
         hdf5_version() + ")";
}

std::string machine_text() {
  return cpu_features().model + " [" + describe_cpu() + "]";
}

double peak_resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) / 1024;
}

}  // namespace convoy::apps
