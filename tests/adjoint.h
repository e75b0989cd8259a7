// T2 for convolutions: the adjoint identity of the three passes, the bias gradient, and random elements of all three
// results recomputed alone. Needs no reference, so it works at full size.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/kernel_check.h"
#include "tests/kernel_tiers.h"

namespace convoy::testing {

/// The inner product of dense tensors.
inline double inner(const Tensor& a, const Tensor& b) {
  double sum = 0;
  dispatch_dtype(a.dtype(), [&](auto ours) {
    dispatch_dtype(b.dtype(), [&](auto theirs) {
      const auto x = a.span<decltype(ours)>();
      const auto y = b.span<decltype(theirs)>();
      for (size_t i = 0; i < x.size(); ++i) sum += to_double(x[i]) * to_double(y[i]);
    });
  });
  return sum;
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
    for (const Pass pass : {Pass::forward, Pass::data, Pass::weights})
      for (uint64_t i = 0; i < 64; ++i) elements_[size_t(pass)].push_back(element(pass, i));
    bias_.resize(size_t(channels));
    for_each_value(w_.in[1], [&](size_t i, double dy) { bias_[i % bias_.size()].add(dy, 1); });
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
    // Weight gradients by tiles of six outputs err most: by 8.5e-5 of their size on 768 x 1152 positions with 5x5 taps,
    // which is the deviation of the third product. Four of them are never reached by chance.
    const double least = weights->name().starts_with("winograd6") ? 4e-4 : 1e-4;
    const double bound =
        std::max(least, 4 * (f_.out[0].dtype() == DType::f32 ? 0 : epsilon_of(f_.out[0].dtype()))) * scale;
    INFO(name << ": " << forward->name() << ", " << data->name() << ", " << weights->name() << " on "
              << forward_.text());
    CHECK(std::abs(one - two) <= bound);
    CHECK(std::abs(one - three) <= bound);
    check_elements(Pass::forward, *forward), check_elements(Pass::data, *data), check_elements(Pass::weights, *weights);
    check_bias(*weights);
  }

 private:
  enum class Pass : uint8_t { forward, data, weights };

  /// The kernel of a name, else the first of the list, whether it is under test or not.
  static const Kernel* named(const std::string& name, const Problem& p) {
    for (const Kernel* kernel : kernels_under_test())
      if (kernel->name() == name && kernel->supports(p).ok) return kernel;
    return std::find_if(kernel_list().begin(), kernel_list().end(), [&](const auto& k) { return k->supports(p).ok; })
        ->get();
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

  /// An element of a result, from its definition.
  struct Element {
    std::array<int64_t, 5> at;
    double sum = 0, size = 0, terms = 0;  ///< of products, of their magnitudes, their number
    void add(double a, double b) { sum += a * b, size += std::abs(a * b), ++terms; }
  };

  const Tensor& result(Pass pass) const {
    return pass == Pass::forward ? f_.out[0] : pass == Pass::data ? d_.out[0] : w_.out[0];
  }

  /// The corners, then random ones.
  Element element(Pass pass, uint64_t number) const {
    const PhiloxStream random(5, 5);
    Element e;
    for (size_t j = 0; j < 5; ++j) {
      const int64_t n = result(pass).shape()[static_cast<int>(j)];
      e.at[j] = number < 2 ? (number ? n - 1 : 0)
                           : static_cast<int64_t>(random.below(number * 8 + j, static_cast<uint64_t>(n)));
    }
    const Tensor &x = f_.in[0], &w = f_.in[1], &y = d_.in[0];
    const int64_t in_group = w.shape().c(), out_group = w.shape().n() / attrs_.groups;
    const auto& at = e.at;
    const auto fixed = [&](Pass of, int axis) { return pass == of ? at[size_t(axis + 1)] : -1; };
    const auto taps = [&](int axis, auto f) {
      along(axis, fixed(Pass::forward, axis), fixed(Pass::weights, axis), fixed(Pass::data, axis), f);
    };
    const bool all = pass == Pass::weights;  // sums over images
    for (int64_t n = all ? 0 : at[0]; n < (all ? x.shape().n() : at[0] + 1); ++n)
      taps(0, [&](int64_t od, int64_t kd, int64_t id) {
        taps(1, [&](int64_t oh, int64_t kh, int64_t ih) {
          taps(2, [&](int64_t ow, int64_t kw, int64_t iw) {
            if (pass == Pass::forward)
              for (int64_t c = 0; c < in_group; ++c)
                e.add(x.at(n, id, ih, iw, at[4] / out_group * in_group + c), w.at(at[4], kd, kh, kw, c));
            else if (pass == Pass::data)
              for (int64_t k = 0; k < out_group; ++k) {
                const int64_t channel = at[4] / in_group * out_group + k;
                e.add(y.at(n, od, oh, ow, channel), w.at(channel, kd, kh, kw, at[4] % in_group));
              }
            else
              e.add(x.at(n, id, ih, iw, at[0] / out_group * in_group + at[4]), y.at(n, od, oh, ow, at[0]));
          });
        });
      });
    return e;
  }

  /// The elements of a result within what a kernel may err.
  void check_elements(Pass pass, const Kernel& kernel) const {
    const Tensor& found = result(pass);
    const double storage = found.dtype() == DType::f32 ? 0 : 2 * epsilon_of(found.dtype());
    for (const Element& e : elements_[size_t(pass)]) {
      const double inside = (e.terms + 8) * epsilon_of(DType::f32) + (sums_in_f16(kernel) ? f16_sum_error : 0);
      CHECK(std::abs(found.at(e.at[0], e.at[1], e.at[2], e.at[3], e.at[4]) - e.sum) <=
            inside * e.size + storage * std::abs(e.sum) + 1e-6);
    }
  }

  /// The bias gradient. Of so many terms a bound by their magnitudes would pass zeros: f32 sums of independent ones err
  /// with the root of their number.
  void check_bias(const Kernel& kernel) const {
    for (size_t k = 0; k < bias_.size(); ++k) {
      const Element& e = bias_[k];
      const double bound = 1e-4 * std::sqrt(e.terms) + (sums_in_f16(kernel) ? f16_sum_error * e.size : 0);
      CHECK(std::abs(w_.out[1].at(0, 0, 0, 0, static_cast<int64_t>(k)) - e.sum) <= bound);
    }
  }

  ConvAttrs attrs_;
  Problem forward_, data_, weights_;
  Run f_, d_, w_;
  std::array<std::vector<Element>, 3> elements_;  ///< of each pass
  std::vector<Element> bias_;
};

}  // namespace convoy::testing
