// Convolution by definition: seven nested loops, double accumulation, bounds checked at every tap. The innermost loop
// runs over channels side by side, which a compiler vectorises: tests spend most of their time here. Parallel over rows
// (forward, backward_data) or output channels (backward_weights). No limit is aimed at.
#include <algorithm>
#include <vector>

#include "core/conv_shapes.h"
#include "core/parallel.h"
#include "kernels/reference.h"

namespace convoy {
namespace {

/// Input position of tap k for output o along one axis; negative or past the end means padding.
int64_t tap(const ConvAttrs& a, int axis, int64_t o, int64_t k) {
  return o * a.stride[axis] - a.pad_low[axis] + k * a.dilation[axis];
}

/// Output position that reads input i through tap k, or -1.
int64_t source(const ConvAttrs& a, int axis, int64_t i, int64_t k, int64_t extent) {
  const int64_t shifted = i + a.pad_low[axis] - k * a.dilation[axis];
  if (shifted < 0 || shifted % a.stride[axis]) return -1;
  const int64_t o = shifted / a.stride[axis];
  return o < extent ? o : -1;
}

template <class T>
void widen(const T* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_double(from[i]);
}

/// Weights in double, tap by tap; within a tap outputs by inputs, or inputs by outputs.
enum class Order { outputs_inputs, inputs_outputs };
template <class T>
std::vector<double> widened_weights(const Tensor& weights, Order order) {
  const View<T> w(weights);
  const Shape& s = weights.shape();
  std::vector<double> wide(static_cast<size_t>(s.elements()));
  for (int64_t tap = 0; tap < s.d() * s.h() * s.w(); ++tap)
    for (int64_t k = 0; k < s.n(); ++k)
      for (int64_t c = 0; c < s.c(); ++c) {
        const int64_t at =
            order == Order::outputs_inputs ? (tap * s.n() + k) * s.c() + c : (tap * s.c() + c) * s.n() + k;
        wide[static_cast<size_t>(at)] = to_double(w(k, tap / (s.h() * s.w()), tap / s.w() % s.h(), tap % s.w(), c));
      }
  return wide;
}

/// Calls f(number of the tap, id, ih, iw) for every tap at output (od, oh, ow) that meets the input.
template <class F>
void taps_inside(const ConvAttrs& a, const Shape& x, const Shape& w, int64_t od, int64_t oh, int64_t ow, F&& f) {
  for (int64_t kd = 0; kd < w.d(); ++kd)
    for (int64_t kh = 0; kh < w.h(); ++kh)
      for (int64_t kw = 0; kw < w.w(); ++kw) {
        const int64_t id = tap(a, 0, od, kd), ih = tap(a, 1, oh, kh), iw = tap(a, 2, ow, kw);
        if (id < 0 || ih < 0 || iw < 0 || id >= x.d() || ih >= x.h() || iw >= x.w()) continue;
        f((kd * w.h() + kh) * w.w() + kw, id, ih, iw);
      }
}

/// sums[i] += factor * values[i]
void add_multiple(double factor, const double* values, int64_t count, double* sums) {
  for (int64_t i = 0; i < count; ++i) sums[i] += factor * values[i];
}

template <class T>
void forward(const Problem& p, const KernelArgs& args) {
  using B = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto& a = p.op.as<ConvAttrs>();
  const View<T> x(args.in[0]), y(args.out[0]);
  const B* bias = args.in.size() > 2 ? args.in[2].data<B>() : nullptr;
  const Shape &xs = p.in[0].shape, &ws = p.in[1].shape, &ys = p.out[0].shape;
  const int64_t outputs = ws.n() / a.groups, inputs = ws.c();
  const std::vector<double> w = widened_weights<T>(args.in[1], Order::inputs_outputs);
  parallel_ranges(ys.n() * ys.d() * ys.h(), p.threads, 1, [&](Range range) {
    std::vector<double> sums(static_cast<size_t>(ws.n())), read(static_cast<size_t>(xs.c()));
    for (int64_t row = range.begin; row < range.end; ++row)
      for (int64_t ow = 0; ow < ys.w(); ++ow) {
        const int64_t oh = row % ys.h(), od = row / ys.h() % ys.d(), n = row / (ys.h() * ys.d());
        std::fill(sums.begin(), sums.end(), 0.0);
        if (bias) widen(bias, ws.n(), sums.data());
        taps_inside(a, xs, ws, od, oh, ow, [&](int64_t tap, int64_t id, int64_t ih, int64_t iw) {
          widen(&x(n, id, ih, iw, 0), xs.c(), read.data());
          for (int64_t c = 0; c < xs.c(); ++c) {
            const int64_t first = c / inputs * outputs;
            add_multiple(read[size_t(c)], &w[size_t((tap * inputs + c % inputs) * ws.n() + first)], outputs,
                         &sums[size_t(first)]);
          }
        });
        for (int64_t k = 0; k < ws.n(); ++k) y(n, od, oh, ow, k) = from_double<T>(sums[size_t(k)]);
      }
  });
}

template <class T>
void backward_data(const Problem& p, const KernelArgs& args) {
  using B = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto& a = p.op.as<ConvAttrs>();
  const View<T> dy(args.in[0]), dx(args.out[0]), addend(adds_to_value(p) ? args.in[2] : args.out[0]);
  const B* bias = args.in.size() > 2 && !adds_to_value(p) ? args.in[2].data<B>() : nullptr;
  const Shape &ys = p.in[0].shape, &ws = p.in[1].shape, &xs = p.out[0].shape;
  const int64_t outputs = ws.n() / a.groups, inputs = ws.c();
  const std::vector<double> w = widened_weights<T>(args.in[1], Order::outputs_inputs);
  parallel_ranges(xs.n() * xs.d() * xs.h(), p.threads, 1, [&](Range range) {
    std::vector<double> sums(static_cast<size_t>(xs.c())), read(static_cast<size_t>(ws.n()));
    for (int64_t row = range.begin; row < range.end; ++row)
      for (int64_t iw = 0; iw < xs.w(); ++iw) {
        const int64_t ih = row % xs.h(), id = row / xs.h() % xs.d(), n = row / (xs.h() * xs.d());
        std::fill(sums.begin(), sums.end(), 0.0);
        if (bias) widen(bias, xs.c(), sums.data());
        if (adds_to_value(p)) widen(&addend(n, id, ih, iw, 0), xs.c(), sums.data());
        for (int64_t kd = 0; kd < ws.d(); ++kd)
          for (int64_t kh = 0; kh < ws.h(); ++kh)
            for (int64_t kw = 0; kw < ws.w(); ++kw) {
              const int64_t od = source(a, 0, id, kd, ys.d()), oh = source(a, 1, ih, kh, ys.h()),
                            ow = source(a, 2, iw, kw, ys.w());
              if (od < 0 || oh < 0 || ow < 0) continue;
              widen(&dy(n, od, oh, ow, 0), ws.n(), read.data());
              const int64_t tap = (kd * ws.h() + kh) * ws.w() + kw;
              for (int64_t k = 0; k < ws.n(); ++k)
                add_multiple(read[size_t(k)], &w[size_t((tap * ws.n() + k) * inputs)], inputs,
                             &sums[size_t(k / outputs * inputs)]);
            }
        for (int64_t c = 0; c < xs.c(); ++c) dx(n, id, ih, iw, c) = from_double<T>(sums[size_t(c)]);
      }
  });
}

template <class T>
void backward_weights(const Problem& p, const KernelArgs& args) {
  using B = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto& a = p.op.as<ConvAttrs>();
  const View<T> x(args.in[0]), dy(args.in[1]);
  const View<B> dw(args.out[0]);
  B* db = args.out[1].data<B>();
  const Shape &xs = p.in[0].shape, &ys = p.in[1].shape, &ws = p.out[0].shape;
  const int64_t outputs = ws.n() / a.groups, inputs = ws.c(), taps = ws.d() * ws.h() * ws.w();
  parallel_ranges(ws.n(), p.threads, 1, [&](Range range) {
    const int64_t size = range.size();
    std::vector<double> sums(static_cast<size_t>(size * taps * inputs)), bias_sums(static_cast<size_t>(size));
    std::vector<double> read(static_cast<size_t>(xs.c())), gradient(static_cast<size_t>(size));
    for (int64_t n = 0; n < ys.n(); ++n)
      for (int64_t od = 0; od < ys.d(); ++od)
        for (int64_t oh = 0; oh < ys.h(); ++oh)
          for (int64_t ow = 0; ow < ys.w(); ++ow) {
            widen(&dy(n, od, oh, ow, range.begin), size, gradient.data());
            add_multiple(1, gradient.data(), size, bias_sums.data());
            taps_inside(a, xs, ws, od, oh, ow, [&](int64_t tap, int64_t id, int64_t ih, int64_t iw) {
              widen(&x(n, id, ih, iw, 0), xs.c(), read.data());
              for (int64_t k = 0; k < size; ++k)
                add_multiple(gradient[size_t(k)], &read[size_t((range.begin + k) / outputs * inputs)], inputs,
                             &sums[size_t((k * taps + tap) * inputs)]);
            });
          }
    for (int64_t k = 0; k < size; ++k) {
      db[range.begin + k] = static_cast<B>(bias_sums[size_t(k)]);
      for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t c = 0; c < inputs; ++c)
          dw(range.begin + k, tap / (ws.h() * ws.w()), tap / ws.w() % ws.h(), tap % ws.w(), c) =
              static_cast<B>(sums[size_t((k * taps + tap) * inputs + c)]);
    }
  });
}

template <class F>
void by_type(const Problem& p, F&& f) {
  dispatch_float(p.in[0].dtype, std::forward<F>(f));
}

void run_forward(const Problem& p, const KernelArgs& args) {
  by_type(p, [&](auto zero) { forward<decltype(zero)>(p, args); });
}
void run_backward_data(const Problem& p, const KernelArgs& args) {
  by_type(p, [&](auto zero) { backward_data<decltype(zero)>(p, args); });
}
void run_backward_weights(const Problem& p, const KernelArgs& args) {
  by_type(p, [&](auto zero) { backward_weights<decltype(zero)>(p, args); });
}

}  // namespace

std::vector<KernelPtr> conv_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::conv_forward, run_forward));
  list.push_back(make_reference(OpKind::conv_backward_data, run_backward_data));
  list.push_back(make_reference(OpKind::conv_backward_data_add, run_backward_data));
  list.push_back(make_reference(OpKind::conv_backward_weights, run_backward_weights));
  return list;
}

}  // namespace convoy
