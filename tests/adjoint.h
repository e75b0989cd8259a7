// T2 for convolutions: the adjoint identity of the three passes, and random elements of all three results recomputed
// alone. Needs no reference, so it works at full size.
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>

#include "tests/catch.hpp"
#include "tests/kernel_check.h"
#include "tests/kernel_tiers.h"

namespace convoy::testing {

inline double inner(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values(a), y = values(b);
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

/// <conv(x,w),y> = <x, backward_data(y,w)> = <w, backward_weights(x,y)> for the kernels of a name; passes that it lacks
/// are another kernel's. Outputs in a narrow type are rounded once each.
class Adjoint {
 public:
  /// Of a layer of input `xs`, `channels` outputs, kernel `k`.
  Adjoint(const Shape& xs, int64_t channels, const Int3& k, const ConvAttrs& a, DType type) : attrs_(a) {
    const TensorDesc x(xs, type), w({channels, k[0], k[1], k[2], xs.c() / a.groups}, type);
    forward_ = problem({OpKind::conv_forward, a}, {x, w});
    ConvAttrs da = a, wa = a;
    da.result_size = spatial(xs);
    wa.result_size = k;
    data_ = problem({OpKind::conv_backward_data, da}, {forward_.out[0], w});
    weights_ = problem({OpKind::conv_backward_weights, wa}, {x, forward_.out[0]});
    f_ = make_run(forward_, Fill::normal, 1), d_ = make_run(data_, Fill::normal, 2);
    w_ = make_run(weights_, Fill::normal, 3);
    d_.in[1].copy_from(f_.in[1]);
    w_.in[0].copy_from(f_.in[0]);
    w_.in[1].copy_from(d_.in[0]);
  }

  /// Names of all kernels but the references that run one of the passes.
  std::set<std::string> names() const {
    std::set<std::string> list;
    for (const Kernel* kernel : kernels_under_test())
      for (const Problem* p : {&forward_, &data_, &weights_})
        if (kernel->name() != reference_name && kernel->supports(*p).ok) list.emplace(kernel->name());
    return list;
  }

  void check(const std::string& name) {
    const Kernel *forward = named(name, forward_), *data = named(name, data_), *weights = named(name, weights_);
    for (Run* run : {&f_, &d_, &w_})  // nothing that an earlier kernel left behind counts
      for (Tensor& t : run->out) std::memset(t.bytes(), 0xff, static_cast<size_t>(t.desc().span_bytes()));
    execute(*forward, forward_, f_);
    execute(*data, data_, d_);
    execute(*weights, weights_, w_);
    const double one = inner(f_.out[0], d_.in[0]), two = inner(f_.in[0], d_.out[0]), three = inner(f_.in[1], w_.out[0]);
    // Terms are independent with mean zero: the sums are of size sqrt(terms); f32 partial sums err by eps * sqrt(K)
    // each, stored results by half a unit in the last place.
    const double scale = std::sqrt(double(forward_.flops()) / 2);
    const double bound =
        std::max(1e-4, 4 * (f_.out[0].dtype() == DType::f32 ? 0 : epsilon_of(f_.out[0].dtype()))) * scale;
    INFO(name << ": " << forward->name() << ", " << data->name() << ", " << weights->name() << " on "
              << forward_.text());
    CHECK(std::abs(one - two) <= bound);
    CHECK(std::abs(one - three) <= bound);
    check_elements(Pass::forward, *forward), check_elements(Pass::data, *data), check_elements(Pass::weights, *weights);
  }

 private:
  enum class Pass : uint8_t { forward, data, weights };

  /// The kernel of a name, else the first of the list.
  static const Kernel* named(const std::string& name, const Problem& p) {
    const Kernel* first = nullptr;
    for (const Kernel* kernel : kernels_under_test()) {
      if (!kernel->supports(p).ok) continue;
      if (kernel->name() == name) return kernel;
      if (!first) first = kernel;
    }
    return first;
  }

  /// Calls f(output, tap, input) for the taps inside the image along an axis; indices that are given are fixed.
  template <class F>
  void along(int axis, int64_t output, int64_t tap, int64_t input, F&& f) const {
    const int64_t outputs = f_.out[0].shape()[axis + 1], taps = f_.in[1].shape()[axis + 1],
                  inputs = f_.in[0].shape()[axis + 1];
    for (int64_t t = tap < 0 ? 0 : tap; t < (tap < 0 ? taps : tap + 1); ++t)
      for (int64_t o = output < 0 ? 0 : output; o < (output < 0 ? outputs : output + 1); ++o) {
        const int64_t i = o * attrs_.stride[axis] - attrs_.pad_low[axis] + t * attrs_.dilation[axis];
        if (i >= 0 && i < inputs && (input < 0 || i == input)) f(o, t, i);
      }
  }

  /// 64 random elements of a result, the corners among them, from their definition.
  void check_elements(Pass pass, const Kernel& kernel) const {
    const Tensor& result = pass == Pass::forward ? f_.out[0] : pass == Pass::data ? d_.out[0] : w_.out[0];
    const Tensor &x = f_.in[0], &w = f_.in[1], &y = d_.in[0];
    const int64_t in_group = w.shape().c(), out_group = w.shape().n() / attrs_.groups;
    const PhiloxStream random(5, 5);
    for (uint64_t i = 0; i < 64; ++i) {
      int64_t at[5];
      for (int j = 0; j < 5; ++j) {
        const int64_t n = result.shape()[j];
        at[j] = i < 2 ? (i ? n - 1 : 0)
                      : static_cast<int64_t>(random.below(i * 8 + static_cast<uint64_t>(j), static_cast<uint64_t>(n)));
      }
      double sum = 0, size = 0, terms = 0;
      const auto add = [&](double a, double b) { sum += a * b, size += std::abs(a * b), ++terms; };
      const auto fixed = [&](Pass of, int axis) { return pass == of ? at[axis + 1] : -1; };
      for (int64_t n = pass == Pass::weights ? 0 : at[0]; n < (pass == Pass::weights ? x.shape().n() : at[0] + 1); ++n)
        along(0, fixed(Pass::forward, 0), fixed(Pass::weights, 0), fixed(Pass::data, 0),
              [&](int64_t od, int64_t kd, int64_t id) {
                along(1, fixed(Pass::forward, 1), fixed(Pass::weights, 1), fixed(Pass::data, 1),
                      [&](int64_t oh, int64_t kh, int64_t ih) {
                        along(2, fixed(Pass::forward, 2), fixed(Pass::weights, 2), fixed(Pass::data, 2),
                              [&](int64_t ow, int64_t kw, int64_t iw) {
                                if (pass == Pass::forward)
                                  for (int64_t c = 0; c < in_group; ++c)
                                    add(x.at(n, id, ih, iw, at[4] / out_group * in_group + c),
                                        w.at(at[4], kd, kh, kw, c));
                                else if (pass == Pass::data)
                                  for (int64_t k = 0; k < out_group; ++k) {
                                    const int64_t channel = at[4] / in_group * out_group + k;
                                    add(y.at(n, od, oh, ow, channel), w.at(channel, kd, kh, kw, at[4] % in_group));
                                  }
                                else
                                  add(x.at(n, id, ih, iw, at[0] / out_group * in_group + at[4]),
                                      y.at(n, od, oh, ow, at[0]));
                              });
                      });
              });
      const double storage = result.dtype() == DType::f32 ? 0 : 2 * epsilon_of(result.dtype());
      const double inside = (terms + 8) * epsilon_of(DType::f32) + (sums_in_f16(kernel) ? f16_sum_error : 0);
      CHECK(std::abs(result.at(at[0], at[1], at[2], at[3], at[4]) - sum) <=
            inside * size + storage * std::abs(sum) + 1e-6);
    }
  }

  ConvAttrs attrs_;
  Problem forward_, data_, weights_;
  Run f_, d_, w_;
};

}  // namespace convoy::testing
