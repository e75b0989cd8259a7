// Pooling through oneDNN. Its max-pool workspace is our arg-max byte for byte when the library keeps it as
// channels-last u8 (window position, first of equals); any other workspace is refused.
#include "kernels/function_kernel.h"
#include "kernels/onednn/prepared.h"
#include "kernels/onednn/support.h"

namespace convoy {
namespace {

using dnnl::memory;

bool is_forward(OpKind kind) {
  return kind == OpKind::max_pool || kind == OpKind::avg_pool;
}
bool is_max(OpKind kind) {
  return kind == OpKind::max_pool || kind == OpKind::max_pool_backward;
}

dnnl::algorithm algorithm_of(const Problem& p) {
  if (is_max(p.op.kind)) return dnnl::algorithm::pooling_max;
  return p.op.as<PoolAttrs>().count_padding ? dnnl::algorithm::pooling_avg_include_padding
                                            : dnnl::algorithm::pooling_avg_exclude_padding;
}

template <class F>
void with_descriptor(const Problem& p, F&& f) {
  const auto& a = p.op.as<PoolAttrs>();
  if (is_forward(p.op.kind))
    f(onednn::pool_forward(algorithm_of(p), a, p.in[0], p.out[0]));
  else
    f(onednn::pool_backward(algorithm_of(p), a, p.out[0], p.in[0]));
}

Support supports(const Problem& p) {
  const auto& a = p.op.as<PoolAttrs>();
  const Shape& x = is_forward(p.op.kind) ? p.in[0].shape : p.out[0].shape;
  if (x.d() == 1 && (a.kernel[0] != 1 || a.pad_low[0] || a.pad_high[0]))
    return Support::no("images are pooled in two dimensions");
  return onednn::supported(p, [&](auto&& check) {
    with_descriptor(p, [&](const auto& pd) {
      Support& verdict = check(pd);
      const TensorDesc& arg = is_forward(p.op.kind) ? p.out.back() : p.in.back();
      if (verdict.ok && is_max(p.op.kind) && !(pd.workspace_desc() == onednn::channels_last(arg, x.d() == 1)))
        verdict = Support::no("oneDNN keeps another arg-max layout");
    });
  });
}

std::unique_ptr<Prepared> prepare(const Problem& p) {
  std::unique_ptr<Prepared> result;
  with_descriptor(p, [&](const auto& pd) {
    const bool forward = is_forward(p.op.kind);
    const bool image = (forward ? p.in[0] : p.out[0]).shape.d() == 1;
    auto k = std::make_unique<onednn::PreparedPrimitive>(dnnl::primitive(pd.get()), pd.scratchpad_desc(),
                                                         pd.impl_info_str());
    const memory::desc in = onednn::channels_last(p.in[0], image), out = onednn::channels_last(p.out[0], image);
    k->add_input(forward ? DNNL_ARG_SRC : DNNL_ARG_DIFF_DST, 0, in, in);
    k->add_output(forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_SRC, 0, out, out);
    if (p.op.kind == OpKind::max_pool) k->add_output(DNNL_ARG_WORKSPACE, 1, pd.workspace_desc(), pd.workspace_desc());
    if (p.op.kind == OpKind::max_pool_backward)
      k->add_input(DNNL_ARG_WORKSPACE, 1, pd.workspace_desc(), pd.workspace_desc());
    result = std::move(k);
  });
  return result;
}

}  // namespace

std::vector<KernelPtr> pool_onednn_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::max_pool, OpKind::max_pool_backward, OpKind::avg_pool, OpKind::avg_pool_backward})
    list.push_back(std::make_unique<FunctionKernel>("onednn", kind, supports, prepare));
  return list;
}

}  // namespace convoy
