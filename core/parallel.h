// The only way kernels reach threads. OpenMP everywhere, so that our regions and oneDNN's share one pool; std::thread
// under the thread sanitizer, which cannot see libgomp's synchronisation.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <mutex>
#include <span>

#include "core/round_up.h"
#include "core/team_stand_in.h"

#if defined(__SANITIZE_THREAD__)
#include <thread>
#include <vector>
#elif defined(_OPENMP)
#include <omp.h>
#endif

namespace convoy {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// Part `index` of [0, total) cut into `parts` pieces whose boundaries are multiples of `grain`.
inline Range split_range(int64_t total, int index, int parts, int64_t grain = 1) {
  const int64_t blocks = ceil_div(total, grain);
  const int64_t begin = blocks * index / parts * grain, end = blocks * (index + 1) / parts * grain;
  return {std::min(begin, total), std::min(end, total)};
}

/// Threads that kernels use when a Problem does not say otherwise.
inline int default_threads() {
#if defined(__SANITIZE_THREAD__)
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
#elif defined(_OPENMP)
  return std::min(omp_get_max_threads(), omp_get_thread_limit());
#else
  return 1;
#endif
}

/// Threads that OpenMP grants at most (OMP_THREAD_LIMIT).
inline int thread_limit() {
#if !defined(__SANITIZE_THREAD__) && defined(_OPENMP)
  return omp_get_thread_limit();
#else
  return std::numeric_limits<int>::max();
#endif
}

/// Sets the size of the OpenMP team for our kernels and for oneDNN alike. Teams have that size: oneDNN's wait for
/// threads that OpenMP left out of a smaller one for the machine's load (OMP_DYNAMIC).
inline void set_default_threads([[maybe_unused]] int threads) {
#if !defined(__SANITIZE_THREAD__) && defined(_OPENMP)
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
#endif
}

/// Lets threads of a team start teams of their own, for few large units with threads of their own each.
inline void allow_nested_threads() {
#if !defined(__SANITIZE_THREAD__) && defined(_OPENMP)
  omp_set_max_active_levels(2);
#endif
}

/// Runs body(thread) once for every thread in [0, threads).
template <class F>
void parallel_threads(int threads, F&& body) {
  if (threads <= 1) {
    body(0);
    return;
  }
  if (team_stand_in) return team_stand_in->run(threads, ThreadBody(body));
#if defined(__SANITIZE_THREAD__)
  std::vector<std::thread> team;
  for (int t = 1; t < threads; ++t) team.emplace_back([&body, t] { body(t); });
  body(0);
  for (std::thread& t : team) t.join();
#elif defined(_OPENMP)
#pragma omp parallel num_threads(threads)
  {
    // OpenMP may grant fewer threads than asked for: every part of the work is still done.
    for (int t = omp_get_thread_num(); t < threads; t += omp_get_num_threads()) body(t);
  }
#else
  for (int t = 0; t < threads; ++t) body(t);
#endif
}

/// Runs body(thread) for every thread in [0, used) of a team of `threads`: libgomp ends the threads that a smaller team
/// would leave over, and starts new ones for the next larger team, which takes longer than most kernels.
template <class F>
void parallel_some(int used, int threads, F&& body) {
  parallel_threads(used > 1 ? threads : 1, [&](int t) {
    if (t < used) body(t);
  });
}

/// Hands out [0, total) one by one to whoever asks: for units whose results do not depend on the thread, where a reader
/// thread may hold up a core now and then.
class UnitCounter {
 public:
  explicit UnitCounter(int64_t total) : total_(total) {}
  /// The next unit, or -1 when none is left.
  int64_t take() {
    if (team_stand_in) team_stand_in->next_unit();
    const int64_t unit = next_.fetch_add(1, std::memory_order_relaxed);
    if (unit < total_) return unit;
    if (team_stand_in) team_stand_in->no_unit();
    return -1;
  }

 private:
  std::atomic<int64_t> next_{0};
  int64_t total_;
};

/// Runs body(unit) for every unit of [0, total) on whichever thread is free. The first exception stops the handing out
/// and is thrown again behind the last thread.
template <class F>
void parallel_units(int64_t total, int threads, F&& body) {
  UnitCounter units(total);
  std::mutex mutex;
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
  parallel_threads(threads, [&](int) {
    for (int64_t unit; !failed && (unit = units.take()) >= 0;) {
      try {
        body(unit);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        failed = true;
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

/// Runs body(Range) over a static partition of [0, total): the same partition for the same thread count, every time.
template <class F>
void parallel_ranges(int64_t total, int threads, int64_t grain, F&& body) {
  const int64_t blocks = ceil_div(total, grain);
  const int used = static_cast<int>(std::clamp<int64_t>(blocks, 1, threads));
  parallel_some(used, threads, [&](int t) {
    const Range range = split_range(total, t, used, grain);
    if (range.size() > 0) body(range);
  });
}

/// Runs body(k, Range) over several stretches of counts[k] elements, laid end to end and divided evenly between
/// threads; cuts within a stretch are multiples of `grain`.
template <class F>
void parallel_parts(std::span<const int64_t> counts, int threads, int64_t grain, F&& body) {
  constexpr int64_t least = 4096;  // elements per thread
  int64_t total = 0;
  for (int64_t count : counts) total += count;
  const int used = static_cast<int>(std::clamp<int64_t>(total / least, 1, threads));
  parallel_some(used, threads, [&](int t) {
    const Range mine = split_range(total, t, used);
    int64_t first = 0;
    for (size_t k = 0; k < counts.size() && first < mine.end; first += counts[k++]) {
      // A block belongs to whoever has its first element.
      const auto cut = [&](int64_t at) {
        return std::min(counts[k], std::max<int64_t>(0, at - first + grain - 1) / grain * grain);
      };
      const Range part{cut(mine.begin), cut(mine.end)};
      if (part.size() > 0) body(k, part);
    }
  });
}

}  // namespace convoy
