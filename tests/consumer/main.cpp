// A program outside the tree: records, plans and runs training steps with the installed package and a kernel of its
// own.
#include <cmath>
#include <cstdio>

#include "core/parallel.h"
#include "kernels/function_kernel.h"
#include "kernels/kernel_list.h"
#include "models/program.h"

using namespace convoy;

std::vector<KernelPtr> my_kernels();  // my_dense.cpp

namespace {

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
  for (KernelPtr& kernel : my_kernels()) kernels.insert(kernels.begin(), std::move(kernel));
  const std::vector<float> plain = train(kernel_list()), own = train(kernels);
  const bool learns = own.back() < own.front(), same = std::fabs(own.back() - plain.back()) < 1e-4f;
  if (!learns || !same) std::printf("expected a loss that falls, and the same one without this kernel\n");
  return learns && same ? 0 : 1;
}
