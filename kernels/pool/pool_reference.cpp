// Pooling by definition, one window at a time. Fused activation + max-pool compares values after activation and
// rounding to the storage type; the first of equals wins.
#include <limits>
#include <optional>

#include "kernels/reference.h"

namespace convoy {
namespace {

double activate(const ActivationAttrs& a, double x) {
  return a.function == Activation::tanh ? a.scale * std::tanh(x) : (x > 0 ? x : a.slope * x);
}
double slope_from_output(const ActivationAttrs& a, double y) {
  return a.function == Activation::tanh ? a.scale - y * y / a.scale : (y > 0 ? 1.0 : a.slope);
}

/// Calls f(code, d, h, w) for every position of the window of output (od, oh, ow) that lies inside the image.
template <class F>
void for_window(const PoolAttrs& a, const Shape& x, int64_t od, int64_t oh, int64_t ow, F&& f) {
  for (int64_t kd = 0; kd < a.kernel[0]; ++kd)
    for (int64_t kh = 0; kh < a.kernel[1]; ++kh)
      for (int64_t kw = 0; kw < a.kernel[2]; ++kw) {
        const int64_t d = od * a.stride[0] - a.pad_low[0] + kd, h = oh * a.stride[1] - a.pad_low[1] + kh,
                      w = ow * a.stride[2] - a.pad_low[2] + kw;
        if (d < 0 || h < 0 || w < 0 || d >= x.d() || h >= x.h() || w >= x.w()) continue;
        f((kd * a.kernel[1] + kh) * a.kernel[2] + kw, d, h, w);
      }
}

template <class T>
void max_forward(const PoolAttrs& a, const std::optional<ActivationAttrs>& act, const KernelArgs& args) {
  const View<T> x(args.in[0]), y(args.out[0]);
  const View<uint8_t> arg(args.out[1]);
  for_each_index(y.desc.shape, [&](int64_t n, int64_t od, int64_t oh, int64_t ow, int64_t c) {
    double best = -std::numeric_limits<double>::infinity();
    int64_t winner = -1;
    for_window(a, x.desc.shape, od, oh, ow, [&](int64_t code, int64_t d, int64_t h, int64_t w) {
      double value = to_double(x(n, d, h, w, c));
      if (act) value = to_double(from_double<T>(activate(*act, value)));
      // A NaN wins and stays, so that a diverged step is seen downstream.
      if (winner < 0 || value > best || (std::isnan(value) && !std::isnan(best))) best = value, winner = code;
    });
    y(n, od, oh, ow, c) = from_double<T>(best);
    arg(n, od, oh, ow, c) = static_cast<uint8_t>(winner);
  });
}

template <class T>
void max_backward(const PoolAttrs& a, const std::optional<ActivationAttrs>& act, const KernelArgs& args) {
  const View<T> dy(args.in[0]), dx(args.out[0]);
  const View<uint8_t> arg(args.in[act ? 2 : 1]);
  std::vector<double> sum(static_cast<size_t>(dx.desc.shape.elements()));
  const TensorDesc flat(dx.desc.shape, DType::f64);
  for_each_index(dy.desc.shape, [&](int64_t n, int64_t od, int64_t oh, int64_t ow, int64_t c) {
    double g = to_double(dy(n, od, oh, ow, c));
    if (act)
      g = to_double(from_double<T>(g * slope_from_output(*act, to_double(View<T>(args.in[1])(n, od, oh, ow, c)))));
    for_window(a, dx.desc.shape, od, oh, ow, [&](int64_t code, int64_t d, int64_t h, int64_t w) {
      if (code == arg(n, od, oh, ow, c)) sum[static_cast<size_t>(flat.offset(n, d, h, w) + c)] += g;
    });
  });
  for_each_index(dx.desc.shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    dx(n, d, h, w, c) = from_double<T>(sum[static_cast<size_t>(flat.offset(n, d, h, w) + c)]);
  });
}

int64_t divisor(const PoolAttrs& a, const Shape& x, int64_t od, int64_t oh, int64_t ow) {
  if (a.count_padding) return a.kernel[0] * a.kernel[1] * a.kernel[2];
  int64_t count = 0;
  for_window(a, x, od, oh, ow, [&](int64_t, int64_t, int64_t, int64_t) { ++count; });
  return count;
}

template <class T>
void avg_forward(const PoolAttrs& a, const KernelArgs& args) {
  const View<T> x(args.in[0]), y(args.out[0]);
  for_each_index(y.desc.shape, [&](int64_t n, int64_t od, int64_t oh, int64_t ow, int64_t c) {
    double sum = 0;
    for_window(a, x.desc.shape, od, oh, ow,
               [&](int64_t, int64_t d, int64_t h, int64_t w) { sum += to_double(x(n, d, h, w, c)); });
    y(n, od, oh, ow, c) = from_double<T>(sum / double(divisor(a, x.desc.shape, od, oh, ow)));
  });
}

template <class T>
void avg_backward(const PoolAttrs& a, const KernelArgs& args) {
  const View<T> dy(args.in[0]), dx(args.out[0]);
  std::vector<double> sum(static_cast<size_t>(dx.desc.shape.elements()));
  const TensorDesc flat(dx.desc.shape, DType::f64);
  for_each_index(dy.desc.shape, [&](int64_t n, int64_t od, int64_t oh, int64_t ow, int64_t c) {
    const double g = to_double(dy(n, od, oh, ow, c)) / double(divisor(a, dx.desc.shape, od, oh, ow));
    for_window(a, dx.desc.shape, od, oh, ow, [&](int64_t, int64_t d, int64_t h, int64_t w) {
      sum[static_cast<size_t>(flat.offset(n, d, h, w) + c)] += g;
    });
  });
  for_each_index(dx.desc.shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    dx(n, d, h, w, c) = from_double<T>(sum[static_cast<size_t>(flat.offset(n, d, h, w) + c)]);
  });
}

const PoolAttrs& pool_of(const Problem& p) {
  if (const auto* fused = std::get_if<ActivationPoolAttrs>(&p.op.attrs)) return fused->pool;
  return p.op.as<PoolAttrs>();
}
std::optional<ActivationAttrs> activation_of(const Problem& p) {
  if (const auto* fused = std::get_if<ActivationPoolAttrs>(&p.op.attrs)) return fused->activation;
  return std::nullopt;
}

void run_max(const Problem& p, const KernelArgs& args) {
  dispatch_float(p.in[0].dtype, [&](auto zero) { max_forward<decltype(zero)>(pool_of(p), activation_of(p), args); });
}
void run_max_backward(const Problem& p, const KernelArgs& args) {
  dispatch_float(p.in[0].dtype, [&](auto zero) { max_backward<decltype(zero)>(pool_of(p), activation_of(p), args); });
}
void run_avg(const Problem& p, const KernelArgs& args) {
  dispatch_float(p.in[0].dtype, [&](auto zero) { avg_forward<decltype(zero)>(pool_of(p), args); });
}
void run_avg_backward(const Problem& p, const KernelArgs& args) {
  dispatch_float(p.in[0].dtype, [&](auto zero) { avg_backward<decltype(zero)>(pool_of(p), args); });
}

}  // namespace

std::vector<KernelPtr> pool_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::max_pool, run_max));
  list.push_back(make_reference(OpKind::max_pool_backward, run_max_backward));
  list.push_back(make_reference(OpKind::activation_max_pool, run_max));
  list.push_back(make_reference(OpKind::activation_max_pool_backward, run_max_backward));
  list.push_back(make_reference(OpKind::avg_pool, run_avg));
  list.push_back(make_reference(OpKind::avg_pool_backward, run_avg_backward));
  return list;
}

}  // namespace convoy
