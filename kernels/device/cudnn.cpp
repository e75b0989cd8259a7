#include "kernels/device/cudnn.h"

#include <dlfcn.h>

#include "kernels/device/cuda.h"

namespace convoy::cuda {
namespace {

void require(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw CudnnRefusal{std::string(what) + ": " + cudnn()->error_string(status)};
}

struct Loaded {
  Cudnn cudnn;
  std::string missing;
  Loaded() {
    const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      missing = dlerror();
      return;
    }
    const auto load = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (!function && missing.empty()) missing = name + " has no " + symbol;
    };
    load(cudnn.create, "cudnnCreate"), load(cudnn.set_stream, "cudnnSetStream");
    load(cudnn.error_string, "cudnnGetErrorString");
    load(cudnn.create_descriptor, "cudnnBackendCreateDescriptor");
    load(cudnn.destroy_descriptor, "cudnnBackendDestroyDescriptor");
    load(cudnn.set_attribute, "cudnnBackendSetAttribute"), load(cudnn.get_attribute, "cudnnBackendGetAttribute");
    load(cudnn.finalize, "cudnnBackendFinalize"), load(cudnn.execute, "cudnnBackendExecute");
    if (!missing.empty()) return;
    if (const cudnnStatus_t status = cudnn.create(&cudnn.handle); status != CUDNN_STATUS_SUCCESS)
      missing = std::string("cuDNN cannot start: ") + cudnn.error_string(status);
  }
};

const Loaded& loaded() {
  static const Loaded once;
  return once;
}

}  // namespace

const Cudnn* cudnn() {
  return loaded().missing.empty() ? &loaded().cudnn : nullptr;
}
const std::string& why_no_cudnn() {
  return loaded().missing;
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  require(cudnn()->create_descriptor(type, &handle_), "creating a descriptor");
}
CudnnDescriptor::~CudnnDescriptor() {
  if (handle_) cudnn()->destroy_descriptor(handle_);
}
void CudnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                          const void* values) {
  require(cudnn()->set_attribute(handle_, name, type, count, values), "setting an attribute");
}
void CudnnDescriptor::set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
}
int64_t CudnnDescriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                             void* values) const {
  int64_t found = 0;
  require(cudnn()->get_attribute(handle_, name, type, count, &found, values), "reading an attribute");
  return found;
}
void CudnnDescriptor::finalize() {
  require(cudnn()->finalize(handle_), "finalizing a descriptor");
}

}  // namespace convoy::cuda
