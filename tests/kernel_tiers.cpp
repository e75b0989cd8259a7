#include "tests/kernel_tiers.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "core/text.h"
#include "kernels/emulated_kernels.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "tests/catch.hpp"
#include "tests/kernel_bounds.h"
#include "tests/kernel_problems.h"

namespace convoy::testing {
namespace {

bool is_narrow(DType type) {
  return type == DType::bf16 || type == DType::f16;
}

/// Transforms with six points or more have entries that round: bounded, never exact. cuDNN does not say what it runs.
bool rounds_inside(const Kernel& kernel, const Problem& p) {
  if (kernel.name() == "cudnn" || kernel.name() == "onednn_winograd") return true;
  const TensorDesc& weights =
      p.op.kind == OpKind::conv_backward_weights ? p.out[0] : p.in[std::min<size_t>(1, p.in.size() - 1)];
  const bool five = weights.shape.w() == 5;
  return kernel.name().starts_with("winograd4") || kernel.name().starts_with("winograd6") ||
         (kernel.name().starts_with("winograd") && five);
}

/// The first element that differs, and how many do; empty where none does.
std::string difference(const Tensor& found, const Tensor& expected) {
  if (same_bits(found, expected)) return {};
  std::string first;
  int64_t others = 0;
  for_each_index(found.shape(), [&](auto... index) {
    const double f = found.at(index...), e = expected.at(index...);
    if (f == e || (std::isnan(f) && std::isnan(e))) return;
    if (others++ > 0) return;
    std::ostringstream text;
    text << "at n,d,h,w,c";
    ((text << ' ' << index), ...);
    text << " found " << f << ", expected " << e;
    first = text.str();
  });
  return first + "; " + std::to_string(others) + " of " + std::to_string(found.shape().elements()) + " differ";
}

void check_exact(const Kernel& kernel, const Problem& p, Fill fill, Truth& truth, const Execute& execute_kernel) {
  INFO(kernel.name() << " " << p.text());
  Run ours = truth.fresh(fill, 7);
  execute_kernel(kernel, p, ours);
  for (size_t i = 0; i < p.out.size(); ++i) {
    INFO("output " << i);
    REQUIRE(difference(ours.out[i], truth.rounded(fill).out[i]) == "");
    REQUIRE(gaps_untouched(ours.out[i]));
  }
}

/// Winners of windows are positions of them, and those of the exact sums unless two values are nearly equal.
void check_winners(const Kernel& kernel, const Problem& p, const Tensor& found, const Tensor& exact) {
  const auto* fused = std::get_if<ConvPoolAttrs>(&p.op.attrs);
  const Int3& window = (fused ? fused->pool : p.op.as<ActivationPoolAttrs>()).pool.kernel;
  const std::vector<double> winners = values(exact);
  int64_t outside = 0, others = 0;
  for_each_value(found, [&](size_t i, double winner) {
    outside += winner >= double(window[0] * window[1] * window[2]), others += winner != winners[i];
  });
  INFO(kernel.name() << " " << p.text() << ": " << others << " of " << winners.size() << " winners are others");
  REQUIRE(outside == 0);
  // In bf16 two in a thousand are equal once they are rounded; f16 sums err more.
  REQUIRE(double(others) <= 1 + double(winners.size()) * (is_narrow(p.in[0].dtype) ? 0.03 : 1e-3));
}

Run check_bounded(const Kernel& kernel, const Problem& p, Truth& truth, const Execute& execute_kernel) {
  INFO(kernel.name() << " " << p.text());
  Run ours = truth.fresh(Fill::normal, 11);
  execute_kernel(kernel, p, ours);
  for (const Tensor& out : ours.out) {
    INFO("writes between the elements of a slice");
    REQUIRE(gaps_untouched(out));
  }
  if (always_exact(p.op.kind)) return ours;
  const Run &exact = truth.exact(false), &magnitude = truth.exact(true);
  Slack slack;
  if (sums_in_f16(kernel)) slack.inside = f16_sum_error;
  // cuDNN may write no f32 from narrow inputs: its weight gradients are then widened from their type.
  if (kernel.name() == "cudnn" && p.op.kind == OpKind::conv_backward_weights) slack.inside = epsilon_of(p.in[0].dtype);
  // Winograd errs with the largest sum of a tile: on a gradient of seven zeros in eight a single element may be small;
  // oneDNN's also runs on images smaller than its tiles.
  slack.largest =
      kernel.name() == "onednn_winograd" || (rounds_inside(kernel, p) && p.op.kind == OpKind::conv_pool_backward_data);
  for (size_t i = 0; i < p.out.size(); ++i) {
    if (p.out[i].dtype == DType::u8) check_winners(kernel, p, ours.out[i], exact.out[i]);
    if (!is_float(p.out[i].dtype)) continue;
    const double worst = worst_error(p, i, ours.out[i], exact.out[i], magnitude.out[i], slack);
    INFO("output " << i << ": error is " << worst << " times its bound");
    REQUIRE(worst <= 1);
  }
  return ours;
}

/// Our own kernels promise the same bits on any number of threads.
bool promises_bits(const Kernel& kernel) {
  return kernel.name() != reference_name && !kernel.name().starts_with("onednn") && kernel.name() != "widened";
}

/// The reference runs these for next to nothing.
constexpr int64_t small_flops = 40'000'000;

/// A run of p on fresh(normal, 11).
Run run_on(int threads, const Kernel& kernel, Problem p, Truth& truth) {
  p.threads = threads;
  Run run = truth.fresh(Fill::normal, 11);
  execute(kernel, p, run);
  return run;
}

/// `threads` threads give the bits of `other`, a run on another number.
void check_threads(int threads, const Kernel& kernel, const Problem& p, Truth& truth, const Run& other) {
  INFO(kernel.name() << " " << p.text() << ", " << threads << " threads");
  const Run run = run_on(threads, kernel, p, truth);
  for (size_t i = 0; i < p.out.size(); ++i) REQUIRE(difference(run.out[i], other.out[i]) == "");
}

/// The problem with some of its tensors as slices of wider ones, as far as the kernel takes it: each alone, then all
/// that it took.
std::vector<Problem> sliced(const Kernel& kernel, const Problem& p) {
  std::vector<Problem> list;
  Problem all = p;
  const auto widen = [](TensorDesc& t) { t = strided(t, t.shape.c() + 19); };
  const auto try_each = [&](std::vector<TensorDesc> Problem::*tensors) {
    for (size_t i = 0; i < (p.*tensors).size(); ++i) {
      const TensorDesc& t = (p.*tensors)[i];
      if (!t.dense() || t.shape.rows() == 1) continue;
      Problem one = p;
      widen((one.*tensors)[i]);
      if (!kernel.supports(one).ok) continue;
      list.push_back(one);
      widen((all.*tensors)[i]);
    }
  };
  try_each(&Problem::in), try_each(&Problem::out);
  if (list.size() > 1 && kernel.supports(all).ok) list.push_back(all);
  return list;
}

}  // namespace

const Kernel& reference_for(const Problem& p) {
  for (const auto& kernel : kernel_list())
    if (kernel->name() == reference_name && kernel->supports(p).ok) return *kernel;
  FAIL("no reference for " << p.text());
  throw 0;
}

Run check_exact_and_bounded(const Kernel& kernel, const Problem& p, Truth& truth, const Execute& run) {
  if (always_exact(p.op.kind)) check_exact(kernel, p, Fill::normal, truth, run);
  if ((linear(p.op.kind) || exact_on_integers(p)) && !rounds_inside(kernel, p))
    check_exact(kernel, p, Fill::integers, truth, run);
  return check_bounded(kernel, p, truth, run);
}

namespace {

/// CONVOY_TEST_KERNELS: beginnings of names, by commas.
const char* chosen_kernels() {
  return std::getenv("CONVOY_TEST_KERNELS");
}
bool names(std::string_view words, const Kernel& kernel) {
  const auto list = split(words, ',');
  return std::any_of(list.begin(), list.end(), [&](std::string_view word) { return kernel.name().starts_with(word); });
}

}  // namespace

bool only_some_kernels() {
  return chosen_kernels();
}

const std::vector<const Kernel*>& kernels_under_test() {
  static const KernelList emulated = make_emulated_kernels();
  static const std::vector<const Kernel*> all = [] {
    std::vector<const Kernel*> list;
    const char* wanted = chosen_kernels();
    for (const KernelList* from : {&kernel_list(), &emulated})
      for (const auto& kernel : *from)
        if (!on_device(*kernel) && (!wanted || names(wanted, *kernel))) list.push_back(kernel.get());
    if (list.empty()) FAIL("CONVOY_TEST_KERNELS: no kernel's name begins with one of " << wanted);
    return list;
  }();
  return all;
}

bool none_takes(const Problem& p) {
  return only_some_kernels() && std::none_of(kernels_under_test().begin(), kernels_under_test().end(),
                                             [&](const Kernel* kernel) { return kernel->supports(p).ok; });
}

bool on_device(const Kernel& kernel) {
  return kernel.name().starts_with("cuda") || kernel.name().starts_with("cudnn");
}

bool sums_in_f16(const Kernel& kernel) {
  return kernel.name().ends_with("_fp16");
}

const Run& Truth::rounded(Fill fill) {
  auto& run = fill == Fill::integers ? integers_ : normal_;
  if (!run) {
    run = fresh(fill, 7);
    execute(reference_for(problem_), problem_, *run);
  }
  return *run;
}

const Run& Truth::exact(bool magnitude) {
  auto& run = magnitude ? magnitude_ : exact_;
  if (!run) {
    run = widened(problem_, fresh(Fill::normal, 11), magnitude);
    execute(reference_for(wide_), wide_, *run);
  }
  return *run;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  bool same = true;
  const Shape& s = a.shape();
  const auto channels = static_cast<size_t>(s.c());
  dispatch_dtype(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_each_index({s.n(), s.d(), s.h(), s.w(), 1}, [&](auto n, auto d, auto h, auto w, auto) {
      const T* p = reinterpret_cast<const T*>(a.bytes()) + a.desc().offset(n, d, h, w);
      const T* q = reinterpret_cast<const T*>(b.bytes()) + b.desc().offset(n, d, h, w);
      if (std::memcmp(p, q, channels * sizeof(T)) == 0) return;
      // -0 and +0 are the same value to a caller.
      for (size_t c = 0; c < channels && same; ++c)
        same = std::memcmp(p + c, q + c, sizeof(T)) == 0 || (to_double(p[c]) == 0 && to_double(q[c]) == 0);
    });
  });
  return same;
}

std::vector<Problem> nan_variance_problems() {
  const TensorDesc x({2, 1, 3, 5, 24}, DType::f32), channels(Shape::vector(24), DType::f32),
      moments(Shape::vector(2 * 24), DType::f64);
  std::vector<Problem> list;
  for (const BatchNormAttrs& a : {BatchNormAttrs{}, BatchNormAttrs{.relu = 1}}) {
    list.push_back(problem({OpKind::batch_norm, a}, {x, channels, channels, channels, channels}));
    list.push_back(problem({OpKind::batch_norm, a}, {x, channels, channels, moments}));
  }
  return list;
}

void check_nan_variance(const Kernel& kernel, const Problem& p, const Execute& execute) {
  constexpr int64_t channel = 7;
  Run run = make_run(p, Fill::normal, 5);
  const bool running = p.in.size() == 5;
  run.in.back().set(0, 0, 0, 0, running ? channel : p.in[0].shape.c() + channel, NAN);
  execute(kernel, p, run);
  int wrong = 0;
  for_each_index(p.out[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    wrong += std::isnan(run.out[0].at(n, d, h, w, c)) != (c == channel);
  });
  INFO(kernel.name() << " " << p.text());
  CHECK(wrong == 0);
}

void check_zero_flag(const Kernel& kernel, const Problem& update, const Execute& run) {
  INFO(kernel.name() << " " << update.text());
  const Run before = make_run(update, Fill::normal, 1);
  Run after = make_run(update, Fill::normal, 1);
  after.in[3].data<float>()[0] = 0;
  run(kernel, update, after);
  for (size_t k = 0; k < after.out.size(); ++k) CHECK(same_bits(after.out[k], before.out[k]));
}

void check_many_threads(const std::vector<Problem>& problems) {
  int ran = 0;
  for (const Problem& p : problems) {
    if (none_takes(p)) continue;
    Truth truth(p);
    for (const Kernel* kernel : kernels_under_test()) {
      if (!promises_bits(*kernel) || !kernel->supports(p).ok) continue;
      const Run one = run_on(1, *kernel, p, truth);
      for (int threads : {3, 48}) check_threads(threads, *kernel, p, truth, one);
      ++ran;
    }
  }
  if (cpu_features().avx2 && !only_some_kernels()) REQUIRE(ran > 0);
}

void check_all(const std::vector<Problem>& problems, Checked which) {
  int ran = 0, slices = 0;
  for (const Problem& p : problems) {
    if (none_takes(p)) continue;
    Truth truth(p);
    // In f16 only the kernels with f16 arithmetic differ from bf16: the slow sanitized runs leave out the others.
    const bool halves_only = sanitized && p.in[0].dtype == DType::f16;
    // The reference itself: its last rounding, and under sanitizers its memory. Large problems tell nothing more.
    if (!sanitized && p.flops() < small_flops / 10) check_bounded(reference_for(p), p, truth, execute);
    if (sanitized && !halves_only && p.flops() < small_flops) truth.rounded(Fill::normal);
    const auto many = is_narrow(p.in[0].dtype) ? std::vector{1} : std::vector{1, 3, 48};
    for (const Kernel* kernel : kernels_under_test()) {
      if (kernel->name() == reference_name || !kernel->supports(p).ok) continue;
      if (which == Checked::own && !promises_bits(*kernel)) continue;
      ++ran;
      if (halves_only && !sums_in_f16(*kernel)) continue;
      if (sanitized) {
        Run run = truth.fresh(Fill::normal, 7);
        execute(*kernel, p, run);
        continue;
      }
      REQUIRE(p.threads == 2);
      const Run run = check_exact_and_bounded(*kernel, p, truth, execute);
      // Of all kernels' problems some are of slices; of one's own all are, too.
      if (only_some_kernels())
        for (const Problem& slice : sliced(*kernel, p)) {
          Truth of_slice(slice);
          check_exact_and_bounded(*kernel, slice, of_slice, execute);
          ++slices;
        }
      if (!promises_bits(*kernel)) continue;
      for (int threads : many) check_threads(threads, *kernel, p, truth, run);
    }
  }
  if (only_some_kernels())
    WARN(ran << " runs on " << problems.size() << " problems, and " << slices << " on slices of their tensors");
  else if (cpu_features().avx2)
    REQUIRE(ran > 0);
}

}  // namespace convoy::testing
