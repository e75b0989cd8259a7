// T2 for convolutions at full size: the adjoint identity, and random outputs recomputed alone.
#include <cstring>

#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/kernel_check.h"

using namespace convoy;
using namespace convoy::testing;

namespace {

double inner(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for_each_index(a.shape(), [&](auto... at) { sum += a.at(at...) * b.at(at...); });
  return sum;
}

/// <conv(x,w),y> = <x, backward_data(y,w)> = <w, backward_weights(x,y)> for the kernel `name`; passes that it lacks are
/// oneDNN's.
class Adjoint {
 public:
  Adjoint(const Shape& xs, int64_t channels, const Int3& k, const ConvAttrs& a) : attrs_(a), kernel_(k) {
    const TensorDesc x(xs, DType::f32), w({channels, k[0], k[1], k[2], xs.c() / a.groups}, DType::f32);
    forward_ = problem({OpKind::conv_forward, a}, {x, w});
    ConvAttrs da = a, wa = a;
    da.result_size = {xs.d(), xs.h(), xs.w()};
    wa.result_size = k;
    data_ = problem({OpKind::conv_backward_data, da}, {forward_.out[0], w});
    weights_ = problem({OpKind::conv_backward_weights, wa}, {x, forward_.out[0]});
    f_ = make_run(forward_, Fill::normal, 1), d_ = make_run(data_, Fill::normal, 2);
    w_ = make_run(weights_, Fill::normal, 3);
    d_.in[1].copy_from(f_.in[1]);
    w_.in[0].copy_from(f_.in[0]);
    w_.in[1].copy_from(d_.in[0]);
  }

  void check(const std::string& name) {
    if (!find(name, forward_) || !or_onednn(name, data_) || !or_onednn(name, weights_)) return;
    for (Run* run : {&f_, &d_, &w_})  // nothing that an earlier kernel left behind counts
      for (Tensor& t : run->out) std::memset(t.bytes(), 0xff, static_cast<size_t>(t.desc().span_bytes()));
    execute(*find(name, forward_), forward_, f_);
    execute(*or_onednn(name, data_), data_, d_);
    execute(*or_onednn(name, weights_), weights_, w_);
    const double one = inner(f_.out[0], d_.in[0]), two = inner(f_.in[0], d_.out[0]), three = inner(f_.in[1], w_.out[0]);
    // Terms are independent with mean zero: the sums are of size sqrt(terms); f32 partial sums err by eps * sqrt(K)
    // each.
    const double scale = std::sqrt(double(forward_.flops()) / 2);
    INFO(name << " " << forward_.text());
    CHECK(std::abs(one - two) <= 1e-4 * scale);
    CHECK(std::abs(one - three) <= 1e-4 * scale);
    check_outputs();
  }

 private:
  static const Kernel* find(const std::string& name, const Problem& p) {
    for (const auto& kernel : kernel_list())
      if (kernel->name() == name && kernel->supports(p).ok) return kernel.get();
    return nullptr;
  }
  static const Kernel* or_onednn(const std::string& name, const Problem& p) {
    const Kernel* own = find(name, p);
    return own ? own : find("onednn", p);
  }

  /// 64 random outputs of the forward pass, corners included, recomputed alone.
  void check_outputs() const {
    const Shape &xs = f_.in[0].shape(), &ws = f_.in[1].shape(), &ys = f_.out[0].shape();
    const Int3& k = kernel_;
    const ConvAttrs& a = attrs_;
    const PhiloxStream random(5, 5);
    for (uint64_t i = 0; i < 64; ++i) {
      const auto pick = [&](uint64_t j, int64_t n) {
        return i < 2 ? (i ? n - 1 : 0) : static_cast<int64_t>(random.below(i * 8 + j, static_cast<uint64_t>(n)));
      };
      const int64_t n = pick(0, ys.n()), od = pick(1, ys.d()), oh = pick(2, ys.h()), ow = pick(3, ys.w()),
                    c = pick(4, ys.c());
      double sum = 0, size = 0;
      for (int64_t kd = 0; kd < k[0]; ++kd)
        for (int64_t kh = 0; kh < k[1]; ++kh)
          for (int64_t kw = 0; kw < k[2]; ++kw) {
            const int64_t id = od * a.stride[0] - a.pad_low[0] + kd * a.dilation[0],
                          ih = oh * a.stride[1] - a.pad_low[1] + kh * a.dilation[1],
                          iw = ow * a.stride[2] - a.pad_low[2] + kw * a.dilation[2];
            if (id < 0 || ih < 0 || iw < 0 || id >= xs.d() || ih >= xs.h() || iw >= xs.w()) continue;
            for (int64_t ic = 0; ic < ws.c(); ++ic) {
              const double term =
                  f_.in[0].at(n, id, ih, iw, c / (ws.n() / a.groups) * ws.c() + ic) * f_.in[1].at(c, kd, kh, kw, ic);
              sum += term, size += std::abs(term);
            }
          }
      CHECK(std::abs(f_.out[0].at(n, od, oh, ow, c) - sum) <=
            double(ws.elements() / ws.n()) * epsilon_of(DType::f32) * size + 1e-6);
    }
  }

  ConvAttrs attrs_;
  Int3 kernel_;
  Problem forward_, data_, weights_;
  Run f_, d_, w_;
};

}  // namespace

TEST_CASE("adjoint identity at full size", "[kernels][full]") {
  const ConvAttrs same{.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}};
  Adjoint problems[] = {
      {{1, 64, 64, 64, 32}, 64, {3, 3, 3}, same},
      {{1, 16, 16, 16, 128}, 256, {3, 3, 3}, same},
      {{1, 1, 48, 72, 64}, 64, {1, 3, 3}, {.dilation = {1, 12, 12}, .pad_low = {0, 12, 12}, .pad_high = {0, 12, 12}}},
      {{1, 1, 48, 72, 16}, 64, {1, 7, 7}, {.stride = {1, 2, 2}, .pad_low = {0, 3, 3}, .pad_high = {0, 3, 3}}}};
  for (const char* name : {"onednn", "onednn_blocked", "direct_avx512", "direct_avx2", "winograd_avx512",
                           "winograd_avx2", "winograd4_avx512", "winograd4_avx2"})
    for (Adjoint& p : problems) p.check(name);
}
