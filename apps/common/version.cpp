#include "apps/common/version.h"

#include "build_features.h"
#include "commit.h"
#include "io/hdf5.h"
#include "kernels/versions.h"

namespace convoy::apps {

namespace {

std::string text(const std::string& commit) {
  return "convoy " CONVOY_VERSION " (" + commit + "g++ " __VERSION__ ", " + kernel_library_versions() + ", HDF5 " +
         hdf5_version() + ")";
}

}  // namespace

std::string build_text() {
  return text("commit " CONVOY_COMMIT ", ");
}

std::string long_version_text() {
  return build_text() + "\n" CONVOY_FEATURES;
}

std::string version_text() {
  return text("");
}

std::string commit_text() {
  return CONVOY_COMMIT;
}

}  // namespace convoy::apps
