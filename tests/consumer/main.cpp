// A program outside the tree: records, plans and runs training steps with the installed package and a kernel of its
// own.
#include <cmath>
#include <cstdio>

#include "core/parallel.h"
#include "kernels/function_kernel.h"
#include "kernels/kernel_list.h"
#include "models/program.h"

using namespace convoy;

namespace {

/// y = W x + b in f32, as one would write it first.
KernelPtr my_dense() {
  const auto supports = [](const Problem& p) {
    for (const std::vector<TensorDesc>* side : {&p.in, &p.out})
      for (const TensorDesc& d : *side)
        if (d.dtype != DType::f32 || !d.dense()) return Support::no("takes f32 without gaps");
    return p.in.size() == 3 ? Support::yes() : Support::no("takes a bias");
  };
  const auto prepare = [](const Problem&) -> std::unique_ptr<Prepared> {
    return std::make_unique<PreparedFunction>([](const KernelArgs& a) {
      const int64_t outputs = a.in[1].shape().n(), features = a.in[1].shape().c();
      const float *x = a.in[0].data<float>(), *w = a.in[1].data<float>(), *bias = a.in[2].data<float>();
      for (int64_t i = 0; i < a.out[0].shape().elements(); ++i) {
        const float *row = x + i / outputs * features, *weights = w + i % outputs * features;
        float sum = bias[i % outputs];
        for (int64_t f = 0; f < features; ++f) sum += row[f] * weights[f];
        a.out[0].data<float>()[i] = sum;
      }
    });
  };
  return std::make_unique<FunctionKernel>("mine", OpKind::dense_forward, supports, prepare);
}

/// The losses of ten steps on one sample.
std::vector<float> train(const KernelList& kernels) {
  CosmoflowOptions options;
  options.model.size = 16;
  options.plan.threads = default_threads();
  Program program(plan_program(options, kernels), options, 1);
  Executor& step = program.step();
  std::vector<float> losses;
  for (int i = 0; i < 10; ++i) {
    program.set_clock({.learning_rate = 1e-3, .step = i, .first_sample = i});
    // A step takes the memory of its inputs for other things.
    for (int16_t& v : step.tensor("x").span<int16_t>()) v = 1;
    for (float& v : step.tensor("target").span<float>()) v = 0.5f;
    step.run();
    losses.push_back(step.tensor("loss").data<float>()[0]);
  }
  int mine = 0;
  for (const PlannedNode& node : step.plan().nodes) mine += node.kernel == "mine";
  std::printf("loss %g to %g, %d nodes run by a kernel of this program\n", double(losses.front()),
              double(losses.back()), mine);
  return losses;
}

}  // namespace

int main() {
  KernelList kernels = make_kernel_list();
  kernels.insert(kernels.begin(), my_dense());
  const std::vector<float> plain = train(kernel_list()), own = train(kernels);
  const bool learns = own.back() < own.front(), same = std::fabs(own.back() - plain.back()) < 1e-4f;
  if (!learns || !same) std::printf("expected a loss that falls, and the same one without this kernel\n");
  return learns && same ? 0 : 1;
}
