#include "kernels/versions.h"

#ifdef CONVOY_WITH_ONEDNN
#include "kernels/onednn/shim.h"
#endif

namespace convoy {

std::string kernel_library_versions() {
#ifdef CONVOY_WITH_ONEDNN
  return onednn::version_text();
#else
  return "no oneDNN";
#endif
}

}  // namespace convoy
