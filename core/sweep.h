// Kernels that go over memory together: one parallel region for many of them, in place of one or several for each.
#pragma once

#include <vector>

#include "core/kernel.h"
#include "core/parallel.h"
#include "core/round_up.h"

namespace convoy {

/// Work over elements in rounds, with a barrier behind each round. Within a round any thread may take any elements;
/// cuts are multiples of `grain`, so that sums of whole blocks do not depend on the number of threads.
class Sweep : public Prepared {
 public:
  explicit Sweep(int threads) : threads_(threads) {}
  static constexpr int64_t grain = 16384;
  static int64_t blocks(int64_t elements) { return ceil_div(elements, grain); }
  virtual int rounds() const = 0;
  virtual int64_t elements() const = 0;
  virtual void run_part(int round, Range part, const KernelArgs& args) const = 0;
  void run(const KernelArgs& args) const final;

 private:
  int threads_;
};

/// A sweep and what it runs on.
struct Swept {
  const Sweep* sweep = nullptr;
  KernelArgs args;
};

/// Runs all of them; none may write what another reads or writes. `scratch` is for reuse by the next call.
void run_sweeps(std::span<const Swept> all, int threads, std::vector<int64_t>& scratch);

}  // namespace convoy
