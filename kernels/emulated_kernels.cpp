#include "kernels/emulated_kernels.h"

#include "kernels/function_kernel.h"

namespace convoy {

std::vector<KernelPtr> emulated_amx_kernels();
std::vector<KernelPtr> emulated_fp16_kernels();
std::vector<KernelPtr> portable_tiles_kernels();

KernelList make_emulated_kernels() {
  KernelList list;
#ifdef CONVOY_WITH_AVX512
  list = emulated_amx_kernels();
  if (list.empty()) list = portable_tiles_kernels();
  for (KernelPtr& kernel : emulated_fp16_kernels()) list.push_back(std::move(kernel));
#else
  list = portable_tiles_kernels();
#endif
  return list;
}

}  // namespace convoy
