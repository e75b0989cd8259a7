// A program outside the tree: records, plans and runs one step with the installed package.
#include <cmath>
#include <cstdio>

#include "kernels/kernel_list.h"
#include "models/program.h"

int main() {
  convoy::CosmoflowOptions options;
  options.model.size = 16;
  convoy::Program program(convoy::plan_program(options, convoy::kernel_list()), options, 1);
  convoy::Executor& step = program.step();
  for (int16_t& v : step.tensor("x").span<int16_t>()) v = 1;
  for (float& v : step.tensor("target").span<float>()) v = 0.5f;
  step.run();
  const float loss = step.tensor("loss").data<float>()[0];
  std::printf("loss %g\n", double(loss));
  return std::isfinite(loss) ? 0 : 1;
}
