// Fully connected layer: y[n,k] = sum_f x[n,f] w[k,f] + b[k]. The features of a sample are its D,H,W,C elements in
// memory order (Keras' Flatten of channels-last), so flattening costs nothing.
#include "core/backward.h"
#include "core/ops/families.h"

namespace convoy {
namespace {

int64_t features(const Shape& s) {
  return s.elements() / s.n();
}

/// Weights, outputs and their gradients have no positions, only features.
void check_no_positions(const Op& op, const char* what, const Shape& s) {
  if (s.d() != 1 || s.h() != 1 || s.w() != 1)
    fail_op(op, std::string(what) + " " + s.str() + ": expected a depth, height and width of 1");
}

std::vector<TensorDesc> infer_dense_forward(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 3);
  check_same_float(op, in.first(2));
  const Shape &x = in[0].shape, &w = in[1].shape;
  check_no_positions(op, "weights", w);
  if (features(x) != w.c())
    fail_op(op, "input has " + std::to_string(features(x)) + " features, weights expect " + std::to_string(w.c()));
  if (in.size() == 3) check_bias(op, in[2], in[0], w.n());
  return {TensorDesc({x.n(), 1, 1, 1, w.n()}, in[0].dtype)};
}

std::vector<TensorDesc> infer_dense_backward_data(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_same_float(op, in);
  const Shape &y = in[0].shape, &w = in[1].shape;
  check_no_positions(op, "gradient", y);
  check_no_positions(op, "weights", w);
  const Int3& size = op.as<ConvAttrs>().result_size;
  check_result_size(op, size);
  const int64_t positions = size[0] * size[1] * size[2];
  if (y.c() != w.n() || w.c() % positions)
    fail_op(op, "gradient " + y.str() + " and weights " + w.str() + " do not fit");
  return {TensorDesc({y.n(), size[0], size[1], size[2], w.c() / positions}, in[0].dtype)};
}

std::vector<TensorDesc> infer_dense_backward_weights(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_same_float(op, in);
  const Shape &x = in[0].shape, &y = in[1].shape;
  check_no_positions(op, "gradient", y);
  if (x.n() != y.n()) fail_op(op, "input has batch " + std::to_string(x.n()) + ", gradient " + std::to_string(y.n()));
  const DType type = accumulation_type(in[0].dtype);
  return {TensorDesc({y.c(), 1, 1, 1, features(x)}, type), TensorDesc(Shape::vector(y.c()), type)};
}

int64_t flops_weights_second(const Op&, std::span<const TensorDesc> in, std::span<const TensorDesc>) {
  return 2 * in[0].shape.n() * in[1].shape.elements();
}
int64_t flops_weights_out(const Op&, std::span<const TensorDesc> in, std::span<const TensorDesc> out) {
  return 2 * in[0].shape.n() * out[0].shape.elements();
}

void gradient_dense(GradientContext& g) {
  const ValueId x = g.in(0), w = g.in(1), dy = g.out_gradient(0);
  const bool bias = g.inputs() == 3 && g.needs(2);
  if (g.needs(1) || bias) {
    const auto grads = g.emit({OpKind::dense_backward_weights, NoAttrs{}}, "backward_weights", {x, dy});
    if (g.needs(1)) g.add(1, grads[0]);
    if (bias) g.add(2, grads[1]);
  }
  if (g.needs(0))
    g.add(0, g.emit({OpKind::dense_backward_data, ConvAttrs{.result_size = spatial(g.desc(x).shape)}}, "backward_data",
                    {dy, w})[0]);
}

}  // namespace

std::vector<OpDef> dense_ops() {
  return {{.kind = OpKind::dense_forward,
           .family = OpFamily::dense,
           .name = "dense_forward",
           .default_attrs = NoAttrs{},
           .infer = infer_dense_forward,
           .gradient = gradient_dense,
           .flops = flops_weights_second},
          {.kind = OpKind::dense_backward_data,
           .family = OpFamily::dense,
           .name = "dense_backward_data",
           .default_attrs = ConvAttrs{},
           .infer = infer_dense_backward_data,
           .flops = flops_weights_second},
          {.kind = OpKind::dense_backward_weights,
           .family = OpFamily::dense,
           .name = "dense_backward_weights",
           .default_attrs = NoAttrs{},
           .infer = infer_dense_backward_weights,
           .flops = flops_weights_out}};
}

}  // namespace convoy
