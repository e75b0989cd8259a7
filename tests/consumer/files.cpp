// A program outside the tree that saves what it has learnt, and reads it again.
#include <cstdio>
#include <cstring>

#include "io/checkpoint.h"
#include "io/hdf5.h"
#include "io/safetensors.h"
#include "kernels/kernel_list.h"
#include "models/program.h"

using namespace convoy;

namespace {

/// Whether two programs have the same parameters.
bool same_parameters(Program& a, Program& b) {
  for (const std::string& name : a.parameters()) {
    const Tensor &x = a.store().get(name), &y = b.store().get(name);
    if (std::memcmp(x.bytes(), y.bytes(), static_cast<size_t>(x.desc().bytes())) != 0) return false;
  }
  return true;
}

}  // namespace

int main() {
  CosmoflowOptions options;
  options.model.size = 16;
  const auto program = [&](uint64_t seed) { return Program(plan_program(options, kernel_list()), options, seed); };
  Program saved = program(1), weights = program(2), state = program(3);
  if (same_parameters(saved, weights) || same_parameters(saved, state)) return 1;

  std::vector<NamedArray> arrays;
  for (const std::string& name : saved.parameters()) arrays.push_back(to_torch(name, saved.store().get(name)));
  write_safetensors("weights.safetensors", arrays);
  for (const NamedArray& array : read_safetensors("weights.safetensors"))
    from_torch(array, weights.store().get(array.name), "weights.safetensors");
  if (!same_parameters(saved, weights)) return 1;

  if (has_hdf5()) {
    Checkpoint(save_checkpoint(".", 7, saved.store(), "{}", 1)).restore(state.store());
    if (!same_parameters(saved, state)) return 1;
  }
  std::printf("%zu arrays saved and read\n", arrays.size());
  return 0;
}
