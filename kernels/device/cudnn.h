// cuDNN's graph interface, as much of it as convolutions need. The library is loaded when a problem asks for it:
// programs start without it, and say so in `supports`. Source: cuDNN's back-end API reference.
#pragma once

#include <cudnn.h>

#include <string>
#include <vector>

namespace convoy::cuda {

/// The functions of the loaded library.
struct Cudnn {
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
  cudnnHandle_t handle = nullptr;
};

/// Null where there is none; `why_no_cudnn` says what was missing.
const Cudnn* cudnn();
const std::string& why_no_cudnn();

/// Thrown by what cuDNN refuses; never leaves conv_cudnn.cpp.
struct CudnnRefusal {
  std::string what;
};

/// One descriptor of the back-end interface.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& o) noexcept : handle_(o.handle_) { o.handle_ = nullptr; }
  CudnnDescriptor& operator=(CudnnDescriptor&& o) noexcept {
    std::swap(handle_, o.handle_);
    return *this;
  }
  CudnnDescriptor(const CudnnDescriptor&) = delete;

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  void set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.data());
  }
  /// How many of `count` there are to read.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, void* values) const;
  void finalize();
  cudnnBackendDescriptor_t handle() const { return handle_; }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

}  // namespace convoy::cuda
