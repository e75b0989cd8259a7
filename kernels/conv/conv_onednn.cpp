// Convolution through oneDNN, all three passes, 2-D and 3-D, in two layouts: "onednn" asks for channels-last
// activations on both sides (what our tensors are), "onednn_blocked" lets the library choose and reorders inside the
// workspace, and "onednn_winograd" asks for its Winograd algorithm there (2.x has one in f32 for 3x3 images). Weights
// go through Pack nodes. oneDNN's own plain reference is refused: ours is at least honest about its name.
#include <algorithm>

#include "core/conv_shapes.h"
#include "kernels/function_kernel.h"
#include "kernels/onednn/prepared.h"
#include "kernels/onednn/support.h"

namespace convoy {
namespace {

using onednn::Layout;

/// x, w, y of the convolution that a pass belongs to, whatever their role in it.
struct Roles {
  TensorDesc x, w, y;
};

Roles roles_of(const Problem& p) {
  if (p.op.kind == OpKind::conv_forward) return {p.in[0], p.in[1], p.out[0]};
  if (p.op.kind == OpKind::conv_backward_data) return {p.out[0], p.in[1], p.in[0]};
  return {p.in[0], p.out[0], p.in[1]};
}

onednn::ConvShape shape_of(const Problem& p) {
  const Roles r = roles_of(p);
  return onednn::ConvShape(p.op.as<ConvAttrs>(), r.x, r.w, r.y);
}

/// Builds the primitive descriptor of a problem and hands it to f.
template <class F>
void with_descriptor(const Problem& p, Layout layout, F&& f) {
  const onednn::ConvShape s = shape_of(p);
  if (p.op.kind == OpKind::conv_forward)
    f(s, onednn::conv_forward(s, layout, p.in.size() == 3));
  else if (p.op.kind == OpKind::conv_backward_weights)
    f(s, onednn::conv_backward_weights(s, layout));
  else if (p.in.size() == 3)
    f(s, onednn::deconv_forward(s, layout));
  else
    f(s, onednn::conv_backward_data(s, layout));
}

/// Whether some tap meets padding alone, as on an image smaller than half of the kernel's reach.
bool has_idle_tap(const Problem& p) {
  const ConvShapes s = *conv_shapes(p);
  for (int axis = 0; axis < 3; ++axis)
    for (int64_t tap = 0; tap < s.w[axis + 1]; ++tap)
      if (positions_inside(s.attrs, axis, tap, s.x[axis + 1], s.y[axis + 1]) == 0) return true;
  return false;
}

/// Gradients that oneDNN 2.6.3 gets wrong; empty: none of them.
std::string fault(const Problem& p, const onednn::ConvShape& s, Layout layout, const std::string& implementation) {
  const ConvAttrs& a = p.op.as<ConvAttrs>();
  if (p.op.kind == OpKind::conv_backward_data && layout == Layout::winograd && a.pad_low != a.pad_high)
    return "oneDNN's Winograd takes one padding for the other in data gradients";
  // It takes the last channels' sums up again in whole vectors, behind each chunk of 512 output channels.
  if (p.op.kind == OpKind::conv_backward_data && layout == Layout::channels_last && s.x[1] % 16 != 0 && s.y[1] > 512)
    return "oneDNN's data gradient reads beyond its result, of odd channels from more than 512";
  if (p.op.kind != OpKind::conv_backward_weights) return {};
  if (has_idle_tap(p)) return "oneDNN's weight gradient reads beyond images smaller than its kernel";
  // It gathers the pixels that a strided 1x1 reads into scratch memory, and writes past its end: other values were
  // overwritten, or the process crashed.
  if (layout == Layout::channels_last && s.x[1] < 16 && implementation.find("1x1") != std::string::npos &&
      std::any_of(s.stride.begin(), s.stride.end(), [](int64_t stride) { return stride > 1; }))
    return "oneDNN's strided 1x1 overruns its buffer below 16 channels";
  // Its general bf16 code multiplies scratch memory that it never wrote with zeros (not a number where that memory is)
  // and reads beyond its end, seen with a stride of the depth, and in rows of channels with one channel per group,
  // dilations and single columns.
  const bool general =
      implementation.find("jit_bf16") != std::string::npos && implementation.find("1x1") == std::string::npos;
  const bool dilated = std::any_of(a.dilation.begin(), a.dilation.end(), [](int64_t d) { return d > 1; });
  const bool more =
      layout == Layout::channels_last && ((a.groups > 1 && a.groups == s.x[1]) || dilated || s.y.back() == 1);
  if (general && (a.stride[0] > 1 || more)) return "oneDNN's bf16 weight gradient reads unset memory here";
  return {};
}

Support supports(const Problem& p, Layout layout) {
  if (layout == Layout::winograd && p.op.kind == OpKind::conv_backward_data && p.in.size() == 3)
    return Support::no("is no transposed convolution");
  return onednn::supported(p, [&](auto&& check) {
    with_descriptor(p, layout, [&](const onednn::ConvShape& s, const auto& pd) {
      Support& verdict = check(pd);
      if (const std::string reason = fault(p, s, layout, pd.impl_info_str()); verdict.ok && !reason.empty())
        verdict = Support::no(reason);
    });
  });
}

dnnl::memory::desc bias_desc(int64_t channels) {
  return {{channels}, dnnl::memory::data_type::f32, dnnl::memory::format_tag::a};
}

using Descriptor = onednn::PreparedPrimitive;

std::unique_ptr<Prepared> build(const onednn::ConvShape& s, const dnnl::convolution_forward::primitive_desc& pd,
                                const Problem& p) {
  auto k = std::make_unique<Descriptor>(dnnl::convolution_forward(pd), pd.scratchpad_desc(), pd.impl_info_str());
  k->add_input(DNNL_ARG_SRC, 0, s.plain_x(), pd.src_desc());
  k->add_weight(DNNL_ARG_WEIGHTS, 1, s.plain_w(), pd.weights_desc());
  if (p.in.size() == 3) k->add_input(DNNL_ARG_BIAS, 2, bias_desc(s.y[1]), pd.bias_desc());
  k->add_output(DNNL_ARG_DST, 0, s.plain_y(), pd.dst_desc());
  return k;
}

std::unique_ptr<Prepared> build(const onednn::ConvShape& s, const dnnl::convolution_backward_data::primitive_desc& pd,
                                const Problem&) {
  auto k = std::make_unique<Descriptor>(dnnl::convolution_backward_data(pd), pd.scratchpad_desc(), pd.impl_info_str());
  k->add_input(DNNL_ARG_DIFF_DST, 0, s.plain_y(), pd.diff_dst_desc());
  k->add_weight(DNNL_ARG_WEIGHTS, 1, s.plain_w(), pd.weights_desc());
  k->add_output(DNNL_ARG_DIFF_SRC, 0, s.plain_x(), pd.diff_src_desc());
  return k;
}

std::unique_ptr<Prepared> build(const onednn::ConvShape& s,
                                const dnnl::convolution_backward_weights::primitive_desc& pd, const Problem&) {
  auto k =
      std::make_unique<Descriptor>(dnnl::convolution_backward_weights(pd), pd.scratchpad_desc(), pd.impl_info_str());
  k->add_input(DNNL_ARG_SRC, 0, s.plain_x(), pd.src_desc());
  k->add_input(DNNL_ARG_DIFF_DST, 1, s.plain_y(), pd.diff_dst_desc());
  k->add_output(DNNL_ARG_DIFF_WEIGHTS, 0, s.plain_w(), pd.diff_weights_desc());
  k->add_output(DNNL_ARG_DIFF_BIAS, 1, bias_desc(s.y[1]), pd.diff_bias_desc());
  return k;
}

std::unique_ptr<Prepared> build(const onednn::ConvShape& s, const dnnl::deconvolution_forward::primitive_desc& pd,
                                const Problem&) {
  auto k = std::make_unique<Descriptor>(dnnl::deconvolution_forward(pd), pd.scratchpad_desc(), pd.impl_info_str());
  const dnnl::memory::desc plain_w(s.deconv_w(), onednn::type_of(s.w_type), s.deconv_w_strides());
  k->add_input(DNNL_ARG_SRC, 0, s.plain_y(), pd.src_desc());
  k->add_weight(DNNL_ARG_WEIGHTS, 1, plain_w, pd.weights_desc());
  k->add_input(DNNL_ARG_BIAS, 2, bias_desc(s.x[1]), pd.bias_desc());
  k->add_output(DNNL_ARG_DST, 0, s.plain_x(), pd.dst_desc());
  return k;
}

std::unique_ptr<Prepared> prepare(const Problem& p, Layout layout) {
  std::unique_ptr<Prepared> result;
  with_descriptor(p, layout, [&](const onednn::ConvShape& s, const auto& pd) { result = build(s, pd, p); });
  return result;
}

}  // namespace

std::vector<KernelPtr> conv_onednn_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_weights}) {
    list.push_back(std::make_unique<FunctionKernel>(
        "onednn", kind, [](const Problem& p) { return supports(p, Layout::channels_last); },
        [](const Problem& p) { return prepare(p, Layout::channels_last); }));
    list.push_back(std::make_unique<FunctionKernel>(
        "onednn_blocked", kind, [](const Problem& p) { return supports(p, Layout::blocked); },
        [](const Problem& p) { return prepare(p, Layout::blocked); }));
    list.push_back(std::make_unique<FunctionKernel>(
        "onednn_winograd", kind, [](const Problem& p) { return supports(p, Layout::winograd); },
        [](const Problem& p) { return prepare(p, Layout::winograd); }));
  }
  return list;
}

}  // namespace convoy
