// The question every oneDNN kernel asks before it says yes.
#pragma once

#include "kernels/onednn/shim.h"

namespace convoy::onednn {

/// Types, density, and whether the library has more than its plain reference. `describe(check)` builds the primitive
/// descriptor and calls check(descriptor), which returns the verdict so far.
template <class Describe>
Support supported(const Problem& p, Describe&& describe) {
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& desc : *list) {
      if (!has_type(desc.dtype) && desc.dtype != DType::u8)  // u8: arg-max bytes
        return Support::no("this oneDNN has no " + std::string(name_of(desc.dtype)));
      if (!desc.dense()) return Support::no("needs dense tensors, found " + desc.str());
    }
  Support result = Support::yes();
  try {
    describe([&](const auto& pd) -> Support& {
      const std::string name = pd.impl_info_str();
      if (name.starts_with("ref")) result = Support::no("oneDNN would run its plain reference (" + name + ")");
      return result;
    });
  } catch (const dnnl::error& error) {
    result = Support::no(std::string("oneDNN: ") + error.what());
  }
  return result;
}

}  // namespace convoy::onednn
