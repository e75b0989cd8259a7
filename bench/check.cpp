#include "bench/check.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/conv_shapes.h"
#include "tests/kernel_bounds.h"

namespace convoy::bench {
namespace {

using testing::Fill;
using testing::Run;

const Kernel* reference_of(const KernelList& list, const Problem& p) {
  for (const auto& kernel : list)
    if (kernel->name() == reference_name && kernel->supports(p).ok) return kernel.get();
  return nullptr;
}

/// Whether all values differ by at most `tolerance` times their size, or times `least` where they are smaller.
bool equal(const Tensor& ours, const Tensor& expected, double tolerance = 0, double least = 1) {
  const std::vector<double> found = testing::values(ours), wanted = testing::values(expected);
  return std::equal(found.begin(), found.end(), wanted.begin(),
                    [&](double a, double b) { return std::abs(a - b) <= tolerance * std::max(least, std::abs(b)); });
}

bool equal(const Run& ours, const Run& expected) {
  return std::equal(ours.out.begin(), ours.out.end(), expected.out.begin(),
                    [](const Tensor& a, const Tensor& b) { return equal(a, b); });
}

/// One not finite number, where a kernel that looks at all but the rest of a vector would miss it.
Run spoilt(Run run) {
  const Tensor& last = run.in.back();
  const Shape& s = last.shape();
  last.set(s.n() - 1, s.d() - 1, s.h() - 1, s.w() - 1, s.c() - 1, std::numeric_limits<double>::infinity());
  return run;
}

}  // namespace

/// One small version and what the reference says of it.
class Checker::Version {
 public:
  Version(const KernelList& list, const Problem& problem, bool last_resort)
      : problem_(problem),
        wide_(testing::in_double(problem)),
        reference_(reference_of(list, problem)),
        wide_reference_(reference_of(list, wide_)),
        convolution_(conv_shapes(problem).has_value()),
        last_resort_(last_resort) {}

  /// Whether it is for kernels that take none of the versions ahead of it.
  bool last_resort() const { return last_resort_; }
  bool runs(const Kernel& kernel) const {
    return reference_ && (convolution_ || wide_reference_) && kernel.supports(problem_).ok;
  }
  bool right(const Kernel& kernel) {
    if (convolution_) return right_sums(kernel);
    const OpKind kind = problem_.op.kind;
    if (kind == OpKind::all_finite && !right_flag(kernel)) return false;
    if (testing::always_exact(kind)) return equal(ran(kernel, Fill::normal), expected(Fill::normal));
    const bool integers = testing::linear(kind) || testing::exact_on_integers(problem_);
    if (integers && !equal(ran(kernel, Fill::integers), expected(Fill::integers))) return false;
    return within_bounds(kernel);
  }

 private:
  Run ran(const Kernel& kernel, Fill fill) const {
    Run run = testing::make_run(problem_, fill, 3);
    testing::execute(kernel, problem_, run);
    return run;
  }
  const Run& expected(Fill fill) {
    auto& run = fill == Fill::integers ? integers_ : normal_;
    if (!run) run = ran(*reference_, fill);
    return *run;
  }
  const Run& exact(bool magnitude) {
    auto& run = magnitude ? magnitude_ : exact_;
    if (!run) {
      run = testing::widened(problem_, testing::make_run(problem_, Fill::normal, 3), magnitude);
      testing::execute(*wide_reference_, wide_, *run);
    }
    return *run;
  }

  bool right_sums(const Kernel& kernel) {
    const bool plain = !std::holds_alternative<ConvPoolAttrs>(problem_.op.attrs) &&
                       problem_.op.kind != OpKind::conv_activation_forward;
    const bool rounds = kernel.name().find("winograd") != std::string_view::npos;
    const Run ours = ran(kernel, Fill::integers);
    for (size_t i = 0; i < ours.out.size(); ++i) {
      const DType type = ours.out[i].dtype();
      if (!is_float(type) && rounds) continue;  // which of two equal values won its pool
      const double tolerance = !rounds && (plain || !is_float(type)) ? 0 : std::max(1e-3, 2 * epsilon_of(type));
      // Large tiles err with their largest sum; a product too much or too little changes a quarter at least.
      const double least = kernel.name().starts_with("winograd6") ? 10 : 1;
      if (!equal(ours.out[i], expected(Fill::integers).out[i], tolerance, least)) return false;
    }
    return true;
  }
  bool right_flag(const Kernel& kernel) const {
    Run ours = spoilt(testing::make_run(problem_, Fill::normal, 3)),
        right = spoilt(testing::make_run(problem_, Fill::normal, 3));
    testing::execute(kernel, problem_, ours);
    testing::execute(*reference_, problem_, right);
    return equal(ours, right);
  }
  bool within_bounds(const Kernel& kernel) {
    const Run ours = ran(kernel, Fill::normal);
    for (size_t i = 0; i < ours.out.size(); ++i)
      if (is_float(ours.out[i].dtype()) &&
          !(testing::worst_error(problem_, i, ours.out[i], exact(false).out[i], exact(true).out[i]) <= 1))
        return false;
    return true;
  }

  Problem problem_, wide_;
  const Kernel *reference_, *wide_reference_;
  bool convolution_, last_resort_;
  std::optional<Run> integers_, normal_, exact_, magnitude_;
};

Checker::Checker(const KernelList& list, const Problem& p) {
  const auto add = [&](const std::optional<Problem>& small, bool last_resort) {
    if (small) versions_.push_back(std::make_unique<Version>(list, *small, last_resort));
  };
  const auto shapes = conv_shapes(p);
  if (!shapes) {
    add(reduced_positions(p), false);
    return;
  }
  constexpr int64_t all = int64_t{1} << 40;
  add(reduced(p, {4, all}), false);
  // Whole tiles of four and of six outputs, on the sub-lattices of dilations too; more channels for weight gradients.
  add(reduced(p, {p.in[0].shape.d() > 1 ? 24 : 48, 32}), true);
  add(reduced(p, {24, 64}), true);
  // Winograd takes few tiles of images where there are this many pairs of channels; of small ones it counts several.
  constexpr int64_t pairs = 128 * 128;
  const int64_t fewest = std::min(shapes->w.n(), shapes->w.c());
  const int64_t channels = fewest < 128 ? (pairs / fewest + 15) / 16 * 16 : 128;
  if (shapes->x.d() == 1) add(reduced(p, {.extent = 24, .channels = channels, .samples = 4}), true);
  add(reduced(p, {.extent = 4, .channels = 32, .columns = 40}), false);
}

Checker::~Checker() = default;

Check Checker::operator()(const Kernel& kernel) {
  Check result = Check::none;
  for (const auto& version : versions_) {
    if ((version->last_resort() && result != Check::none) || !version->runs(kernel)) continue;
    if (!version->right(kernel)) return Check::wrong;
    result = Check::right;
  }
  return result;
}

}  // namespace convoy::bench
