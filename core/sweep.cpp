#include "core/sweep.h"

namespace convoy {
namespace {

void run_batch(std::span<const Swept> batch, int rounds, int threads, std::vector<int64_t>& elements) {
  for (int round = 0; round < rounds; ++round) {
    elements.clear();
    for (const Swept& s : batch) elements.push_back(round < s.sweep->rounds() ? s.sweep->elements() : 0);
    parallel_parts(elements, threads, Sweep::grain,
                   [&](size_t k, Range part) { batch[k].sweep->run_part(round, part, batch[k].args); });
  }
}

}  // namespace

void Sweep::run(const KernelArgs& args) const {
  const int64_t count = elements();
  for (int round = 0; round < rounds(); ++round)
    parallel_parts(std::span(&count, 1), threads_, grain, [&](size_t, Range part) { run_part(round, part, args); });
}

void run_sweeps(std::span<const Swept> all, int threads, std::vector<int64_t>& scratch) {
  int rounds = 0;
  for (const Swept& s : all) rounds = std::max(rounds, s.sweep->rounds());
  if (rounds == 1) return run_batch(all, rounds, threads, scratch);
  // A later round finds in the cache what the one before has read, if there is little in between.
  constexpr int64_t most = 1 << 20;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    int64_t sum = all[end++].sweep->elements();
    while (end < all.size() && sum + all[end].sweep->elements() <= most) sum += all[end++].sweep->elements();
    run_batch(all.subspan(begin, end - begin), rounds, threads, scratch);
  }
}

}  // namespace convoy
