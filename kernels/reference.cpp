#include "kernels/reference.h"

namespace convoy {
namespace {

class ReferenceKernel final : public Kernel {
 public:
  ReferenceKernel(OpKind kind, ReferenceRun run) : kind_(kind), run_(run) {}
  std::string_view name() const override { return reference_name; }
  Support supports(const Problem& problem) const override {
    if (problem.op.kind != kind_) return Support::no("other op");
    return problem.device == DeviceKind::cpu ? Support::yes() : Support::no("runs on the CPU");
  }
  std::unique_ptr<Prepared> prepare(const Problem& problem) const override {
    return std::make_unique<PreparedFunction>([problem, run = run_](const KernelArgs& args) { run(problem, args); });
  }

 private:
  OpKind kind_;
  ReferenceRun run_;
};

}  // namespace

KernelPtr make_reference(OpKind kind, ReferenceRun run) {
  return std::make_unique<ReferenceKernel>(kind, run);
}

}  // namespace convoy
