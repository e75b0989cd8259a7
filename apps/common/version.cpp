#include "apps/common/version.h"

#include "commit.h"
#include "io/hdf5.h"
#include "kernels/versions.h"

namespace convoy::apps {

std::string version_text() {
  return std::string("convoy " CONVOY_VERSION " (commit " CONVOY_COMMIT ", g++ ") + __VERSION__ + ", " +
         kernel_library_versions() + ", HDF5 " + hdf5_version() + ")";
}

}  // namespace convoy::apps
