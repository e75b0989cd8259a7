// Convolution by definition: seven nested loops, double accumulation, bounds checked at every tap. Parallel over rows
// (forward, backward_data) or output channels (backward_weights). No limit is aimed at.
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
void forward(const Problem& p, const KernelArgs& args) {
  using B = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto& a = p.op.as<ConvAttrs>();
  const View<T> x(args.in[0]), w(args.in[1]), y(args.out[0]);
  const B* bias = args.in.size() > 2 ? args.in[2].data<B>() : nullptr;
  const Shape &xs = p.in[0].shape, &ws = p.in[1].shape, &ys = p.out[0].shape;
  const int64_t k_per_group = ws.n() / a.groups;
  parallel_ranges(ys.n() * ys.d() * ys.h(), p.threads, 1, [&](Range range) {
    for (int64_t row = range.begin; row < range.end; ++row)
      for (int64_t ow = 0; ow < ys.w(); ++ow)
        for (int64_t k = 0; k < ws.n(); ++k) {
          const int64_t oh = row % ys.h(), od = row / ys.h() % ys.d(), n = row / (ys.h() * ys.d());
          const int64_t first = k / k_per_group * ws.c();
          double sum = bias ? double(bias[k]) : 0;
          for (int64_t kd = 0; kd < ws.d(); ++kd)
            for (int64_t kh = 0; kh < ws.h(); ++kh)
              for (int64_t kw = 0; kw < ws.w(); ++kw) {
                const int64_t id = tap(a, 0, od, kd), ih = tap(a, 1, oh, kh), iw = tap(a, 2, ow, kw);
                if (id < 0 || ih < 0 || iw < 0 || id >= xs.d() || ih >= xs.h() || iw >= xs.w()) continue;
                for (int64_t c = 0; c < ws.c(); ++c)
                  sum += to_double(x(n, id, ih, iw, first + c)) * to_double(w(k, kd, kh, kw, c));
              }
          y(n, od, oh, ow, k) = from_double<T>(sum);
        }
  });
}

template <class T>
void backward_data(const Problem& p, const KernelArgs& args) {
  using B = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto& a = p.op.as<ConvAttrs>();
  const View<T> dy(args.in[0]), w(args.in[1]), dx(args.out[0]);
  const B* bias = args.in.size() > 2 ? args.in[2].data<B>() : nullptr;
  const Shape &ys = p.in[0].shape, &ws = p.in[1].shape, &xs = p.out[0].shape;
  const int64_t k_per_group = ws.n() / a.groups;
  parallel_ranges(xs.n() * xs.d() * xs.h(), p.threads, 1, [&](Range range) {
    for (int64_t row = range.begin; row < range.end; ++row)
      for (int64_t iw = 0; iw < xs.w(); ++iw)
        for (int64_t c = 0; c < xs.c(); ++c) {
          const int64_t ih = row % xs.h(), id = row / xs.h() % xs.d(), n = row / (xs.h() * xs.d());
          const int64_t group = c / ws.c();
          double sum = bias ? double(bias[c]) : 0;
          for (int64_t kd = 0; kd < ws.d(); ++kd)
            for (int64_t kh = 0; kh < ws.h(); ++kh)
              for (int64_t kw = 0; kw < ws.w(); ++kw) {
                const int64_t od = source(a, 0, id, kd, ys.d()), oh = source(a, 1, ih, kh, ys.h()),
                              ow = source(a, 2, iw, kw, ys.w());
                if (od < 0 || oh < 0 || ow < 0) continue;
                for (int64_t k = group * k_per_group; k < (group + 1) * k_per_group; ++k)
                  sum += to_double(dy(n, od, oh, ow, k)) * to_double(w(k, kd, kh, kw, c % ws.c()));
              }
          dx(n, id, ih, iw, c) = from_double<T>(sum);
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
  const int64_t k_per_group = ws.n() / a.groups;
  parallel_ranges(ws.n(), p.threads, 1, [&](Range range) {
    for (int64_t k = range.begin; k < range.end; ++k) {
      double bias_sum = 0;
      for (int64_t n = 0; n < ys.n(); ++n)
        for (int64_t od = 0; od < ys.d(); ++od)
          for (int64_t oh = 0; oh < ys.h(); ++oh)
            for (int64_t ow = 0; ow < ys.w(); ++ow) bias_sum += to_double(dy(n, od, oh, ow, k));
      db[k] = static_cast<B>(bias_sum);
      for (int64_t kd = 0; kd < ws.d(); ++kd)
        for (int64_t kh = 0; kh < ws.h(); ++kh)
          for (int64_t kw = 0; kw < ws.w(); ++kw)
            for (int64_t c = 0; c < ws.c(); ++c) {
              double sum = 0;
              for (int64_t n = 0; n < ys.n(); ++n)
                for (int64_t od = 0; od < ys.d(); ++od)
                  for (int64_t oh = 0; oh < ys.h(); ++oh)
                    for (int64_t ow = 0; ow < ys.w(); ++ow) {
                      const int64_t id = tap(a, 0, od, kd), ih = tap(a, 1, oh, kh), iw = tap(a, 2, ow, kw);
                      if (id < 0 || ih < 0 || iw < 0 || id >= xs.d() || ih >= xs.h() || iw >= xs.w()) continue;
                      sum +=
                          to_double(x(n, id, ih, iw, k / k_per_group * ws.c() + c)) * to_double(dy(n, od, oh, ow, k));
                    }
              dw(k, kd, kh, kw, c) = static_cast<B>(sum);
            }
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
  list.push_back(make_reference(OpKind::conv_backward_weights, run_backward_weights));
  return list;
}

}  // namespace convoy
