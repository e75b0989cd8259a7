// Bilinear resizing by definition, in double.
#include "kernels/reference.h"

namespace convoy {
namespace {

/// The two input positions of one output position, and the share of the second.
struct Blend {
  int64_t low, high;
  double share;
};

Blend blend(Corners corners, int64_t out, int64_t outputs, int64_t inputs) {
  double at = 0;
  if (corners == Corners::half_pixel) at = (double(out) + 0.5) * double(inputs) / double(outputs) - 0.5;
  if (corners == Corners::asymmetric) at = double(out) * double(inputs) / double(outputs);
  if (corners == Corners::aligned && outputs > 1) at = double(out) * double(inputs - 1) / double(outputs - 1);
  at = std::clamp(at, 0.0, double(inputs - 1));
  const auto low = static_cast<int64_t>(at);
  return {low, std::min(low + 1, inputs - 1), at - double(low)};
}

/// Calls f(n, d, out h, out w, c, in h, in w, weight) for all four contributions of every output.
template <class F>
void for_contributions(Corners corners, const Shape& in, const Shape& out, F&& f) {
  for_each_index(out, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const Blend y = blend(corners, h, out.h(), in.h()), x = blend(corners, w, out.w(), in.w());
    f(n, d, h, w, c, y.low, x.low, (1 - y.share) * (1 - x.share));
    f(n, d, h, w, c, y.low, x.high, (1 - y.share) * x.share);
    f(n, d, h, w, c, y.high, x.low, y.share * (1 - x.share));
    f(n, d, h, w, c, y.high, x.high, y.share * x.share);
  });
}

void add_all(const Problem& p, const KernelArgs& args, bool backward) {
  const Shape &in = backward ? p.out[0].shape : p.in[0].shape, &out = backward ? p.in[0].shape : p.out[0].shape;
  const TensorDesc flat(p.out[0].shape, DType::f64);
  std::vector<double> sum(static_cast<size_t>(p.out[0].shape.elements()));
  for_contributions(
      p.op.as<ResizeAttrs>().corners, in, out,
      [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c, int64_t ih, int64_t iw, double weight) {
        if (backward)
          sum[static_cast<size_t>(flat.offset(n, d, ih, iw) + c)] += weight * args.in[0].at(n, d, h, w, c);
        else
          sum[static_cast<size_t>(flat.offset(n, d, h, w) + c)] += weight * args.in[0].at(n, d, ih, iw, c);
      });
  for_each_index(p.out[0].shape, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    args.out[0].set(n, d, h, w, c, sum[static_cast<size_t>(flat.offset(n, d, h, w) + c)]);
  });
}

void resize(const Problem& p, const KernelArgs& args) {
  add_all(p, args, false);
}
void resize_backward(const Problem& p, const KernelArgs& args) {
  add_all(p, args, true);
}

}  // namespace

std::vector<KernelPtr> resize_reference_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(make_reference(OpKind::resize, resize));
  list.push_back(make_reference(OpKind::resize_backward, resize_backward));
  return list;
}

}  // namespace convoy
