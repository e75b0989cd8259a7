// Segmentation: the loss over class logits per pixel, and the predicted class.
#include "core/backward.h"
#include "core/ops/families.h"
#include "core/tape.h"

namespace convoy {
namespace {

void check_logits_and_labels(const Op& op, std::span<const TensorDesc> in) {
  check_same_float(op, in.first(1));
  const auto& a = op.as<PixelLossAttrs>();
  const int64_t classes = in[0].shape.c();
  if (accumulation_type(in[0].dtype) != in[0].dtype) fail_op(op, "is computed in f32 or f64, found " + in[0].str());
  if (!(in[1] == label_desc(in[0].shape)))
    fail_op(op, "labels are " + in[1].str() + ", expected " + label_desc(in[0].shape).str());
  if (a.weights.given() && a.weights.count != classes)
    fail_op(op, "expected a weight for each of the " + std::to_string(classes) + " classes, found " +
                    std::to_string(a.weights.count));
  if (!(a.gamma >= 0)) fail_op(op, "expected a gamma of 0 or more, found " + std::to_string(a.gamma));
}

/// Inputs: logits (N,D,H,W,K), labels u8 (N,D,H,W,1). A label of K or more that is not `ignore` makes the loss NaN.
std::vector<TensorDesc> infer_pixel_loss(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  check_logits_and_labels(op, in);
  return {TensorDesc(Shape::vector(1), in[0].dtype)};
}

/// Inputs: logits, labels, loss_scale state. Output: scale * d(loss)/d(logits).
std::vector<TensorDesc> infer_pixel_loss_backward(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 3, 3);
  check_logits_and_labels(op, in);
  check_loss_scale(op, "third", in[2]);
  return {TensorDesc(in[0].shape, in[0].dtype)};
}

void gradient_pixel_loss(GradientContext& g) {
  g.add(0, g.emit({OpKind::pixel_loss_backward, g.op().attrs}, "pixel_loss_backward",
                  {g.in(0), g.in(1), g.loss_scale()})[0]);
}

/// Input: logits. Output: the class of the largest, the first of equals.
std::vector<TensorDesc> infer_arg_max(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_same_float(op, in);
  if (in[0].shape.c() > 255) fail_op(op, "counts 255 classes, found " + std::to_string(in[0].shape.c()));
  return {label_desc(in[0].shape)};
}

bool special_labels(const Op& op, int index, std::span<const TensorDesc> in, const Tensor& t,
                    const PhiloxStream& random) {
  if (index == 2) {
    t.data<double>()[int(ScaleField::scale)] = 4.0;
    return true;
  }
  if (index != 1) return false;
  uint64_t i = 0;
  const auto classes = static_cast<uint64_t>(in[0].shape.c());
  for_each_index(t.shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    const uint64_t label = random.below(i++, classes + 1);
    t.set(n, d, h, w, c, label == classes ? double(op.as<PixelLossAttrs>().ignore) : double(label));
  });
  return true;
}

}  // namespace

std::vector<OpDef> pixel_ops() {
  return {{.kind = OpKind::pixel_loss,
           .family = OpFamily::loss,
           .name = "pixel_loss",
           .default_attrs = PixelLossAttrs{},
           .infer = infer_pixel_loss,
           .gradient = gradient_pixel_loss,
           .flops = element_flops<8>,
           .special_input = special_labels},
          {.kind = OpKind::pixel_loss_backward,
           .family = OpFamily::loss,
           .name = "pixel_loss_backward",
           .default_attrs = PixelLossAttrs{},
           .infer = infer_pixel_loss_backward,
           .flops = element_flops<8>,
           .special_input = special_labels},
          {.kind = OpKind::arg_max,
           .family = OpFamily::loss,
           .name = "arg_max",
           .default_attrs = NoAttrs{},
           .infer = infer_arg_max}};
}

}  // namespace convoy
