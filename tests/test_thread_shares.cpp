// bench_step --shares: a team's threads one after the other, and how even their shares are.
#include <atomic>
#include <chrono>

#include "bench/thread_shares.h"
#include "core/parallel.h"
#include "kernels/function_kernel.h"
#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "tests/catch.hpp"

using namespace convoy;
using namespace convoy::bench;

namespace {

constexpr int team = 8;

void work_for(std::chrono::microseconds time) {
  for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
  }
}

/// One region in which a single thread works, and one whose units go to whoever is free: a long one in front of as much
/// in short ones.
std::unique_ptr<Prepared> prepare_uneven(const Problem& p) {
  return std::make_unique<PreparedFunction>([threads = p.threads](const KernelArgs& args) {
    parallel_threads(threads, [](int thread) {
      if (thread == 0) work_for(std::chrono::milliseconds(2));
    });
    float* y = args.out[0].data<float>();
    UnitCounter units(args.out[0].shape().elements());
    parallel_threads(threads, [&](int) {
      for (int64_t unit; (unit = units.take()) >= 0;) {
        work_for(std::chrono::microseconds(unit == 0 ? 700 : 100));
        y[unit] += 1;
      }
    });
  });
}

}  // namespace

TEST_CASE("shares of threads: one that works alone, and units that go to whoever is free", "[bench]") {
  std::vector<KernelPtr> kernels;
  kernels.push_back(std::make_unique<FunctionKernel>(
      "uneven", OpKind::activation, [](const Problem&) { return Support::yes(); }, prepare_uneven));
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 1, 1, 50}, DType::f32));
  tape.keep(leaky_relu(tape, "a", x, 0.5), "result");
  PlanOptions options;
  options.threads = team;
  const Plan plan = make_plan(tape, kernels, options);
  StateStore store;
  Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::zero));
  {
    ThreadShares shares(e);
    for (int step = 0; step < 5; ++step) {
      for (float& v : e.tensor("result").span<float>()) v = 0;
      shares.run_step();
      // Every unit ran, and once.
      for (float v : e.tensor("result").span<float>()) REQUIRE(v == 1);
    }
    const std::vector<ThreadShare> nodes = shares.of_nodes();
    REQUIRE(nodes.size() == 1);
    CHECK(nodes[0].regions == 3);
    // An even share of 2 ms is 0.25, and of the units 0.7, as long as the slowest of those: of 2.7 ms 0.35 of the time.
    CHECK(nodes[0].slowest > 0);
    CHECK(nodes[0].even / nodes[0].slowest == Approx(0.95 / 2.7).margin(0.1));
  }
  CHECK(team_stand_in == nullptr);
  std::atomic<int> ran = 0;
  parallel_threads(2, [&](int) { ++ran; });
  CHECK(ran == 2);
}
