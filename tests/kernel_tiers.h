// T0 (exact), T1 (bounded) and T3 (hygiene) for every kernel of the list on any problem.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/kernel.h"
#include "tests/kernel_check.h"

namespace convoy::testing {

/// Sanitizers watch memory and arithmetic while every kernel runs once; values are the plain run's business.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

const std::vector<DType> storage_types{DType::f32, DType::bf16, DType::f16};

/// The kernel that defines a problem's result.
const Kernel& reference_for(const Problem& p);
/// The list, and the kernels for AMX and AVX512-FP16 on emulated units (emulated_kernels.h).
/// CONVOY_TEST_KERNELS=mine,direct in the environment leaves those whose names begin so: one kernel in the making.
const std::vector<const Kernel*>& kernels_under_test();
/// Whether it was asked for some only: not every problem finds a kernel then.
bool only_some_kernels();
/// Whether only some kernels are tested, and none of them takes the problem.
bool none_takes(const Problem& p);
bool sums_in_f16(const Kernel& kernel);
/// Bound of such a kernel's error, of the sum of its terms' magnitudes: 32 products and a start, each rounded
/// (kernels/conv/half_engine.inl).
constexpr double f16_sum_error = 33 * epsilon_of(DType::f16) / 2;
/// Whether it runs on CUDA devices: test_cuda checks it.
bool on_device(const Kernel& kernel);
/// Whether all values are the same bit for bit; -0 and +0 are.
bool same_bits(const Tensor& a, const Tensor& b);

/// What the reference says of a problem, computed once for all kernels that run it.
class Truth {
 public:
  explicit Truth(const Problem& p) : problem_(p), wide_(in_double(p)) {}
  /// In the problem's own types.
  const Run& rounded(Fill fill);
  /// In f64, on the values of fresh(normal, 11); `magnitude`: on their absolute values.
  const Run& exact(bool magnitude);

  /// Inputs for a kernel, equal for equal fill and seed.
  Run fresh(Fill fill, uint64_t seed) { return inputs_.fresh(problem_, fill, seed); }

 private:
  Problem problem_, wide_;
  Inputs inputs_;
  std::optional<Run> integers_, normal_, exact_, magnitude_;
};

/// How a kernel runs on the tensors of a Run. On the host: execute(); for devices tests/device_run.h.
using Execute = std::function<void(const Kernel&, const Problem&, Run&)>;
/// T0 and T1 for one kernel: exact where its op is, bounded elsewhere. Returns its run on fresh(normal, 11).
Run check_exact_and_bounded(const Kernel& kernel, const Problem& p, Truth& truth, const Execute& run);

/// Batch norms by running statistics and by moments, for check_nan_variance.
std::vector<Problem> nan_variance_problems();
/// One channel has a variance that is no number: all of its results are none, and no others.
void check_nan_variance(const Kernel& kernel, const Problem& batch_norm, const Execute& run);
/// An update (update_problems) whose gradients were not finite leaves parameters and moments as they were.
void check_zero_flag(const Kernel& kernel, const Problem& update, const Execute& run);

/// Own kernels give the same bits on 1, 3 and 48 threads.
void check_many_threads(const std::vector<Problem>& problems);

/// Which kernels: with the library's, or those alone that are written here.
enum class Checked : uint8_t { all, own };
/// Runs all tiers over these kernels, and the reference in a small problem's types against the one in f64.
void check_all(const std::vector<Problem>& problems, Checked which = Checked::all);

}  // namespace convoy::testing
