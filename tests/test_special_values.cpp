// What kernels make of special values: ignored and unknown labels, overflow, NaN, ties.
#include <array>
#include <cmath>
#include <map>

#include "core/tape.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "tests/catch.hpp"
#include "tests/kernel_problems.h"
#include "tests/kernel_tiers.h"

using namespace convoy;
using namespace convoy::testing;

TEST_CASE("pixel losses: the logarithm, ignored and unknown labels", "[kernels]") {
  PixelLossAttrs a;
  a.reduction = Reduction::sum, a.ignore = 200;
  // A pixel whose label has the largest logit costs the log of the sum: of `same` such classes and others far below,
  // or `gap` below.
  const auto logits_of = [](float* to, int classes, int same, float gap) {
    for (int k = 0; k < classes; ++k) to[k] = k < same ? 3.0f : k == same ? 3.0f - gap : -90.0f;
  };
  for (const auto& kernel : kernel_list()) {
    for (const int classes : {3, 16})
      for (int same = 1; same <= classes; ++same)
        for (const float gap : {1e-6f, 0.01f, 0.5f, 0.88f, 1.7f, 8.0f, 40.0f}) {
          if (same == classes && gap != 0.5f) continue;
          const Problem p = problem({OpKind::pixel_loss, a}, {TensorDesc({1, 1, 1, 1, classes}, DType::f32),
                                                              TensorDesc({1, 1, 1, 1, 1}, DType::u8)});
          if (!kernel->supports(p).ok) continue;
          Run run = make_run(p, Fill::normal, 1);
          logits_of(run.in[0].data<float>(), classes, same, gap);
          run.in[1].data<uint8_t>()[0] = 0;
          execute(*kernel, p, run);
          const double sum = same + (same < classes ? std::exp(double(3.0f - gap) - 3.0) : 0.0);
          INFO(kernel->name() << ", " << classes << " classes, sum " << sum);
          CHECK(std::abs(run.out[0].data<float>()[0] - std::log(sum)) <= 4e-7 * std::log(sum) + 1.2e-7);
        }
    // More pixels than one partial sum: ignored ones hold NaN and count nothing; one unknown label spoils the sum.
    const TensorDesc logits({1, 1, 67, 71, 3}, DType::f32), labels({1, 1, 67, 71, 1}, DType::u8);
    const Problem loss = problem({OpKind::pixel_loss, a}, {logits, labels}),
                  slope = problem({OpKind::pixel_loss_backward, a},
                                  {logits, labels, TensorDesc(Shape::vector(4), DType::f64)});
    if (!kernel->supports(loss).ok && !kernel->supports(slope).ok) continue;
    for (const Problem& p : {loss, slope}) {
      if (!kernel->supports(p).ok) continue;
      INFO(kernel->name() << " " << p.text());
      Run run = make_run(p, Fill::normal, 1), wanted = make_run(p, Fill::normal, 1);
      for (Run* r : {&run, &wanted}) {
        for (int64_t i = 0; i < 67 * 71; ++i) {
          r->in[1].data<uint8_t>()[i] = i % 5 == 3 ? 200 : uint8_t(i % 3);
          if (i % 5 == 3) r->in[0].data<float>()[i * 3] = NAN;
        }
        if (p.in.size() > 2) std::fill(r->in[2].span<double>().begin(), r->in[2].span<double>().end(), 1.0);
      }
      execute(*kernel, p, run), execute(reference_for(p), p, wanted);
      const auto found = run.out[0].span<float>(), expected = wanted.out[0].span<float>();
      for (size_t i = 0; i < found.size(); ++i) REQUIRE(found[i] == Approx(expected[i]).epsilon(2e-6).margin(1e-6));
      run.in[1].data<uint8_t>()[9] = 17;
      execute(*kernel, p, run);
      CHECK(std::isnan(run.out[0].data<float>()[p.in.size() > 2 ? 27 : 0]));
    }
  }
}

TEST_CASE("AdamW keeps a decay that a factor close to one would lose", "[kernels]") {
  const int64_t count = 50000;
  const TensorDesc vector(Shape::vector(count), DType::f32), step(Shape::vector(8), DType::f64),
      scale(Shape::vector(4), DType::f64), flag(Shape::vector(1), DType::f32);
  const auto updated = [&](const Kernel& kernel, double decay) {
    const Problem p = problem({OpKind::adam_update, AdamAttrs{.weight_decay = decay}},
                              {vector, step, scale, flag, vector, vector, vector});
    Run run = make_run(p, Fill::normal, 1);
    run.in[1].data<double>()[int(StepField::learning_rate)] = 1e-3;
    run.in[2].data<double>()[int(ScaleField::scale)] = 1;
    for (int64_t i = 0; i < count; ++i) run.out[0].data<float>()[i] = 0.5f + 0.4f * float(i) / float(count);
    execute(kernel, p, run);
    return std::vector<float>(run.out[0].span<float>().begin(), run.out[0].span<float>().end());
  };
  const Problem any = problem({OpKind::adam_update, AdamAttrs{}}, {vector, step, scale, flag, vector, vector, vector});
  for (const auto& kernel : kernel_list()) {
    if (!kernel->supports(any).ok) continue;
    INFO(kernel->name());
    const std::vector<float> without = updated(*kernel, 0), with = updated(*kernel, 1e-5);
    double moved = 0;
    for (size_t i = 0; i < with.size(); ++i) moved += double(without[i]) - double(with[i]);
    CHECK(moved / double(count) == Approx(1e-3 * 1e-5 * 0.7).epsilon(0.1));  // rate * decay * mean weight
  }
}

TEST_CASE("LAMB and LARC take the steps of their papers", "[kernels]") {
  // You et al. 2019, algorithm 2, behind a clipping of the norm over all tensors; You et al. 2017, equation 6, clipped.
  constexpr int n = 2;
  const TensorDesc vector(Shape::vector(n), DType::f32), step(Shape::vector(8), DType::f64),
      scale(Shape::vector(4), DType::f64), flag(Shape::vector(1), DType::f32), norm(Shape::vector(1), DType::f64);
  using Pair = std::array<double, n>;
  const auto length = [](const Pair& p) { return std::hypot(p[0], p[1]); };
  struct Path {
    Pair start, gradient;
    double all = 0;  ///< norm over all tensors, for LAMB
  };
  const LambAttrs lamb{.weight_decay = 0.02, .max_grad_norm = 1};
  const SgdAttrs larc{.momentum = 0.5, .larc = 0.01};
  const double rate = 0.01;
  const Problem lamb_problem =
      problem({OpKind::lamb_update, lamb}, {vector, step, scale, flag, norm, vector, vector, vector});
  const Problem larc_problem = problem({OpKind::sgd_update, larc}, {vector, step, scale, flag, vector, vector});
  int ran = 0;
  for (const Problem& p : {lamb_problem, larc_problem})
    for (const auto& kernel : kernel_list()) {
      if (!kernel->supports(p).ok) continue;
      ++ran;
      // Scaled down, left alone, no weights (LAMB's ratio is 1, LARC's rate its epsilon), a gradient so small that LARC
      // does not clip.
      for (const Path& path : {Path{{3, -4}, {1.2, 1.6}, 4}, Path{{3, -4}, {0.3, -0.1}, 0.5},
                               Path{{0, 0}, {0.6, 0.8}, 1}, Path{{0.3, 0.4}, {1e-3, 2e-3}, 0.01}}) {
        INFO(kernel->name() << " " << p.text() << ", weights " << path.start[0]);
        const bool is_lamb = p.op.kind == OpKind::lamb_update;
        Run run = make_run(p, Fill::normal, 1);
        const size_t first = p.in.size() - (is_lamb ? 3 : 2);
        run.in[1].data<double>()[int(StepField::learning_rate)] = rate;
        run.in[2].data<double>()[int(ScaleField::scale)] = 1;
        if (is_lamb) run.in[4].data<double>()[0] = path.all;
        Pair w = path.start, m{}, v{}, velocity{};
        for (size_t k = first; k < p.in.size(); ++k)
          for (int i = 0; i < n; ++i) run.in[k].data<float>()[i] = k == first ? float(w[size_t(i)]) : 0.0f;
        for (int t = 1; t <= 3; ++t) {
          run.in[2].data<double>()[int(ScaleField::applied)] = t - 1;
          for (int i = 0; i < n; ++i) run.in[0].data<float>()[i] = float(path.gradient[size_t(i)]);
          execute(*kernel, p, run);
          Pair u{};
          for (size_t i = 0; i < n; ++i) {
            const double g = path.gradient[i] * (is_lamb ? std::min(1.0, lamb.max_grad_norm / path.all) : 1.0);
            m[i] = lamb.beta1 * m[i] + (1 - lamb.beta1) * g, v[i] = lamb.beta2 * v[i] + (1 - lamb.beta2) * g * g;
            u[i] = m[i] / (1 - std::pow(lamb.beta1, t)) /
                       (std::sqrt(v[i] / (1 - std::pow(lamb.beta2, t))) + lamb.epsilon) +
                   lamb.weight_decay * w[i];
          }
          const double size = length(w);
          const double trust = size == 0 ? 1 : size / length(u);
          const double local =
              std::min(1.0, (size == 0 ? larc.larc_epsilon : larc.larc * size / length(path.gradient)) / rate);
          for (size_t i = 0; i < n; ++i) {
            velocity[i] = larc.momentum * velocity[i] - rate * local * path.gradient[i];
            w[i] += is_lamb ? -rate * trust * u[i] : velocity[i];
          }
          for (size_t i = 0; i < n; ++i)
            CHECK(run.in[first].data<float>()[i] == Approx(w[i]).epsilon(2e-6).margin(1e-8));
        }
      }
    }
  if (!only_some_kernels()) CHECK(ran >= (cpu_features().avx2 ? 4 : 2));  // beside the references
}

TEST_CASE("overflow, NaN and a zero flag reach the update kernels", "[kernels]") {
  const TensorDesc vector(Shape::vector(1000), DType::f32);
  const Problem finite = problem({OpKind::all_finite, NoAttrs{}}, {vector, vector});
  const std::vector<Problem> updates = update_problems(1000);
  std::map<OpKind, int> ran;
  for (const auto& kernel : kernel_list()) {
    if (kernel->supports(finite).ok)
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        Run run = make_run(finite, Fill::normal, 1);
        execute(*kernel, finite, run);
        CHECK(run.out[0].data<float>()[0] == 1);
        run.in[1].data<float>()[999] = bad;
        execute(*kernel, finite, run);
        CHECK(run.out[0].data<float>()[0] == 0);
      }
    for (const Problem& update : updates) {
      if (!kernel->supports(update).ok) continue;
      check_zero_flag(*kernel, update, [](const Kernel& k, const Problem& p, Run& run) { execute(k, p, run); });
      ++ran[update.op.kind];
    }
  }
  for (const OpKind kind : {OpKind::sgd_update, OpKind::adam_update, OpKind::lamb_update})
    if (!only_some_kernels()) CHECK(ran[kind] > 0);
}

TEST_CASE("running statistics survive moments that f32 cannot hold", "[kernels]") {
  const TensorDesc pair(Shape::vector(2 * 3), DType::f64), channels(Shape::vector(3), DType::f32);
  const Problem p = problem({OpKind::batch_norm_update, RunningAttrs{1, 77}}, {pair, channels, channels});
  int ran = 0;
  for (const auto& kernel : kernel_list()) {
    if (!kernel->supports(p).ok) continue;
    Run run = make_run(p, Fill::normal, 1);
    const double means[]{0.5, 1e20, 1e39};
    for (int c = 0; c < 3; ++c) {
      run.in[0].data<double>()[c] = means[c], run.in[0].data<double>()[3 + c] = 8 + 2 * means[c] * means[c];
      run.in[1].data<float>()[c] = -1, run.in[2].data<float>()[c] = 3;
    }
    execute(*kernel, p, run);
    INFO(kernel->name());
    CHECK(run.in[1].data<float>()[0] == 0.5f);
    CHECK(run.in[2].data<float>()[0] == Approx(8.25 * 77 / 76));
    for (int c : {1, 2}) {
      CHECK(run.in[1].data<float>()[c] == -1);
      CHECK(run.in[2].data<float>()[c] == 3);
    }
    ++ran;
  }
  if (!only_some_kernels()) CHECK(ran > 1);
}

TEST_CASE("a variance that is no number stays one through a batch norm", "[kernels]") {
  for (const Problem& p : nan_variance_problems()) {
    int ran = 0;
    for (const Kernel* kernel : kernels_under_test()) {
      if (!kernel->supports(p).ok) continue;
      check_nan_variance(*kernel, p, [](const Kernel& k, const Problem& q, Run& run) { execute(k, q, run); });
      ++ran;
    }
    if (!only_some_kernels()) CHECK(ran > 0);
  }
}

TEST_CASE("a NaN wins its pool and stays, the earliest of equal values is remembered", "[kernels]") {
  const Shape x{1, 4, 6, 8, 20}, w{16, 3, 3, 3, 20};
  const ConvAttrs same{.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}};
  const ActivationPoolAttrs cube{{.slope = 0.25}, {}};
  for (const Problem& p :
       {problem({OpKind::activation_max_pool, cube}, {TensorDesc(x, DType::f32)}),
        problem({OpKind::conv_pool_forward, ConvPoolAttrs{same, cube}},
                {TensorDesc(x, DType::f32), TensorDesc(w, DType::f32), TensorDesc(Shape::vector(16), DType::f32)}),
        // Lines of 32 channels in a narrow type, and a rest.
        problem({OpKind::conv_pool_forward, ConvPoolAttrs{same, cube}},
                {TensorDesc(x, DType::bf16), TensorDesc({52, 3, 3, 3, 20}, DType::bf16),
                 TensorDesc(Shape::vector(52), DType::f32)})}) {
    Run expected = make_run(p, Fill::integers, 3);
    const auto poison = [](Run& run) {
      for (int64_t i : {0, 1, 2}) run.in[0].set(0, i, 2 * i, 3 * i + 1, 7 * i, NAN);
      run.in[0].set(0, 1, 1, 1, 0, NAN);  // a second one in the first window
    };
    poison(expected);
    execute(reference_for(p), p, expected);
    int ran = 0;
    for (const Kernel* kernel : kernels_under_test()) {
      // Transforms spread a NaN over their tile.
      if (!kernel->supports(p).ok || kernel->name().find("winograd") != std::string::npos) continue;
      Run run = make_run(p, Fill::integers, 3);
      poison(run);
      execute(*kernel, p, run);
      int different = 0;
      for_each_index(p.out[0].shape, [&](auto... at) {
        const double a = run.out[0].at(at...), b = expected.out[0].at(at...);
        different += !(a == b || (std::isnan(a) && std::isnan(b)));
        different += run.out[1].at(at...) != expected.out[1].at(at...);
      });
      INFO(kernel->name() << " " << p.text());
      CHECK(different == 0);
      ++ran;
    }
    if (!only_some_kernels()) CHECK(ran > 1);
  }
}

TEST_CASE("updates and norms have the same bits with AVX2 and AVX-512", "[kernels]") {
  const auto named = [](const char* name, const Problem& p) -> const Kernel* {
    for (const auto& kernel : kernel_list())
      if (kernel->name() == name && kernel->supports(p).ok) return kernel.get();
    return nullptr;
  };
  int compared = 0;
  for (const int64_t elements : {1, 7, 21, 40, 5003, 16390}) {
    std::vector<Problem> problems = update_problems(elements);
    const TensorDesc vector(Shape::vector(elements), DType::f32), scale(Shape::vector(4), DType::f64);
    problems.push_back(problem({OpKind::gradient_norm, NoAttrs{}}, {vector, vector, scale}));
    for (const Problem& p : problems) {
      const Kernel *wide = named("avx512", p), *narrow = named("avx2", p);
      if (!wide || !narrow) continue;
      Run a = make_run(p, Fill::normal, 3), b = make_run(p, Fill::normal, 3);
      execute(*wide, p, a), execute(*narrow, p, b);
      INFO(p.text());
      for (size_t i = 0; i < a.out.size(); ++i) CHECK(same_bits(a.out[i], b.out[i]));
      ++compared;
    }
  }
  if (cpu_features().avx512 && !only_some_kernels())
    CHECK(compared > 0);
  else if (compared == 0 && !only_some_kernels())
    WARN("not compared here: a machine with AVX-512 has both");
}

TEST_CASE("moments survive a first pixel far from all others", "[kernels]") {
  // Vectorised sums run about the first pixel of a chunk: over too many pixels their squares would drown the rest.
  constexpr float far = 1001;
  const Problem p = problem({OpKind::channel_moments, NoAttrs{}}, {TensorDesc({1, 1, 512, 512, 8}, DType::f32)});
  const double pixels = 512 * 512;
  for (const auto& kernel : kernel_list()) {
    if (!kernel->supports(p).ok) continue;
    INFO(kernel->name());
    Run run = allocate_run(p);
    for (int64_t c = 0; c < 8; ++c) run.in[0].set(0, 0, 0, 0, c, far);
    execute(*kernel, p, run);
    const double* moments = run.out[0].data<double>();
    for (int c = 0; c < 8; ++c) {
      CHECK(moments[c] == Approx(far / pixels).epsilon(1e-3));
      CHECK(moments[8 + c] == Approx(far * far / pixels).epsilon(0.05));
    }
  }
}
