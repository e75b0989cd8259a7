// A kernel from a name, an op kind and two functions: what most kernels are.
#pragma once

#include <utility>

#include "core/kernel.h"

namespace convoy {

/// `name` is not copied: a literal, or what outlives the kernel.
class FunctionKernel final : public Kernel {
 public:
  using Supports = Support (*)(const Problem&);
  using Prepare = std::unique_ptr<Prepared> (*)(const Problem&);
  FunctionKernel(std::string_view name, OpKind kind, Supports supports, Prepare prepare,
                 DeviceKind device = DeviceKind::cpu)
      : name_(name), kind_(kind), supports_(supports), prepare_(prepare), device_(device) {}

  std::string_view name() const override { return name_; }
  Support supports(const Problem& problem) const override {
    if (problem.op.kind != kind_) return Support::no("other op");
    if (problem.device != device_)
      return Support::no(device_ == DeviceKind::cpu ? "runs on the CPU" : "runs on CUDA devices");
    return supports_(problem);
  }
  std::unique_ptr<Prepared> prepare(const Problem& problem) const override { return prepare_(problem); }

 private:
  std::string_view name_;
  OpKind kind_;
  Supports supports_;
  Prepare prepare_;
  DeviceKind device_;
};

using KernelPtr = std::unique_ptr<Kernel>;

}  // namespace convoy
