// Fully connected layers by definition: dot products in double. Features are the D, H, W, C elements in memory order.
#include "kernels/reference.h"

namespace convoy {
namespace {

/// Element f of sample n, whatever the strides.
template <class T>
T& feature(const View<T>& v, int64_t n, int64_t f) {
  const Shape& s = v.desc.shape;
  const int64_t c = f % s.c(), w = f / s.c() % s.w(), h = f / (s.c() * s.w()) % s.h(), d = f / (s.c() * s.w() * s.h());
  return v(n, d, h, w, c);
}

template <class T>
void forward(const Problem& p, const KernelArgs& args) {
  using B = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const View<T> x(args.in[0]), w(args.in[1]), y(args.out[0]);
  const int64_t features = p.in[1].shape.c();
  for (int64_t n = 0; n < p.in[0].shape.n(); ++n)
    for (int64_t k = 0; k < p.in[1].shape.n(); ++k) {
      double sum = args.in.size() > 2 ? double(args.in[2].data<B>()[k]) : 0;
      for (int64_t f = 0; f < features; ++f) sum += to_double(feature(x, n, f)) * to_double(w(k, 0, 0, 0, f));
      y(n, 0, 0, 0, k) = from_double<T>(sum);
    }
}

template <class T>
void backward_data(const Problem& p, const KernelArgs& args) {
  const View<T> dy(args.in[0]), w(args.in[1]), dx(args.out[0]);
  for (int64_t n = 0; n < p.in[0].shape.n(); ++n)
    for (int64_t f = 0; f < p.in[1].shape.c(); ++f) {
      double sum = 0;
      for (int64_t k = 0; k < p.in[1].shape.n(); ++k) sum += to_double(dy(n, 0, 0, 0, k)) * to_double(w(k, 0, 0, 0, f));
      feature(dx, n, f) = from_double<T>(sum);
    }
}

template <class T>
void backward_weights(const Problem& p, const KernelArgs& args) {
  using B = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const View<T> x(args.in[0]), dy(args.in[1]);
  const View<B> dw(args.out[0]);
  const Shape& ws = p.out[0].shape;
  for (int64_t k = 0; k < ws.n(); ++k) {
    double bias_sum = 0;
    for (int64_t n = 0; n < p.in[0].shape.n(); ++n) bias_sum += to_double(dy(n, 0, 0, 0, k));
    args.out[1].data<B>()[k] = static_cast<B>(bias_sum);
    for (int64_t f = 0; f < ws.c(); ++f) {
      double sum = 0;
      for (int64_t n = 0; n < p.in[0].shape.n(); ++n) sum += to_double(feature(x, n, f)) * to_double(dy(n, 0, 0, 0, k));
      dw(k, 0, 0, 0, f) = static_cast<B>(sum);
    }
  }
}

}  // namespace

std::vector<KernelPtr> dense_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::dense_forward, [](const Problem& p, const KernelArgs& a) {
    dispatch_float(p.in[0].dtype, [&](auto zero) { forward<decltype(zero)>(p, a); });
  }));
  list.push_back(make_reference(OpKind::dense_backward_data, [](const Problem& p, const KernelArgs& a) {
    dispatch_float(p.in[0].dtype, [&](auto zero) { backward_data<decltype(zero)>(p, a); });
  }));
  list.push_back(make_reference(OpKind::dense_backward_weights, [](const Problem& p, const KernelArgs& a) {
    dispatch_float(p.in[0].dtype, [&](auto zero) { backward_weights<decltype(zero)>(p, a); });
  }));
  return list;
}

}  // namespace convoy
