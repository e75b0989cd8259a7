// A kernel compiled for one instruction set. The gate runs in baseline code, so that asking is safe on every CPU.
#pragma once

#include "core/conv_shapes.h"
#include "kernels/function_kernel.h"
#include "kernels/simd/amx.h"
#include "kernels/simd/cpu.h"

namespace convoy {

class IsaKernel final : public Kernel {
 public:
  using Prefers = bool (*)(const Problem&);
  IsaKernel(std::string_view name, Isa isa, OpKind kind, FunctionKernel::Supports supports,
            FunctionKernel::Prepare prepare, Prefers prefers = nullptr)
      : isa_(isa), inner_(name, kind, supports, prepare), kind_(kind), prefers_(prefers) {}
  std::string_view name() const override { return inner_.name(); }
  Support supports(const Problem& problem) const override {
    if (problem.op.kind != kind_) return Support::no("other op");
    const Support support = granted();
    return support.ok ? inner_.supports(problem) : support;
  }
  bool preferred(const Problem& problem) const override {
    if (problem.op.kind != kind_ || !prefers_ || !granted().ok) return false;
    return adds_to_value(problem) ? prefers_(without_addend(problem)) : prefers_(problem);
  }
  std::unique_ptr<Prepared> prepare(const Problem& problem) const override { return inner_.prepare(problem); }

 private:
  Support granted() const {
    if (isa_ == Isa::amx && !amx_granted()) return Support::no("needs AMX bf16, granted by the kernel");
    if (isa_ == Isa::avx512_bf16 && !cpu_features().avx512_bf16) return Support::no("needs AVX512-BF16");
    if (isa_ == Isa::avx512_fp16 && !cpu_features().avx512_fp16) return Support::no("needs AVX512-FP16");
    if (isa_ == Isa::avx512 && !cpu_features().avx512) return Support::no("needs AVX-512 F");
    if (isa_ == Isa::avx2 && !cpu_features().avx2) return Support::no("needs AVX2, FMA and F16C");
    return Support::yes();
  }

  Isa isa_;
  FunctionKernel inner_;
  OpKind kind_;
  Prefers prefers_;
};

}  // namespace convoy
