// Plain definitions of all ops in f64, f32, bf16 and f16, any strides. They compute in double, round once at the end,
// and share no code with the kernels they check.
#pragma once

#include "kernels/function_kernel.h"

namespace convoy {

/// One run of an op on already checked tensors.
using ReferenceRun = void (*)(const Problem&, const KernelArgs&);

KernelPtr make_reference(OpKind kind, ReferenceRun run);

/// Typed view of a tensor for the definitions: element access by logical index.
template <class T>
struct View {
  T* data;
  const TensorDesc& desc;
  explicit View(const Tensor& t) : data(t.data<T>()), desc(t.desc()) {}
  T& operator()(int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) const {
    return data[desc.offset(n, d, h, w) + c];
  }
};

}  // namespace convoy
