// Fully connected layers as oneDNN inner products. Weights stay in our K, F order: a step at batch 1 reads each weight
// once per pass, so packing them would cost as much as the pass itself.
#include "kernels/function_kernel.h"
#include "kernels/onednn/prepared.h"
#include "kernels/onednn/support.h"

namespace convoy {
namespace {

using dnnl::memory;

/// A tensor as rows of features.
memory::desc matrix(const TensorDesc& d) {
  return {{d.shape.n(), d.shape.elements() / d.shape.n()}, onednn::type_of(d.dtype), memory::format_tag::ab};
}
memory::desc vector(const TensorDesc& d) {
  return {{d.shape.elements()}, onednn::type_of(d.dtype), memory::format_tag::a};
}

template <class F>
void with_descriptor(const Problem& p, F&& f) {
  if (p.op.kind == OpKind::dense_forward)
    f(onednn::dense_forward(matrix(p.in[0]), matrix(p.in[1]),
                            p.in.size() == 3 ? std::optional(vector(p.in[2])) : std::nullopt, matrix(p.out[0])));
  else if (p.op.kind == OpKind::dense_backward_data)
    f(onednn::dense_backward_data(matrix(p.in[0]), matrix(p.in[1]), matrix(p.out[0])));
  else
    f(onednn::dense_backward_weights(matrix(p.in[0]), matrix(p.in[1]), matrix(p.out[0]), vector(p.out[1])));
}

Support supports(const Problem& p) {
  return onednn::supported(p, [&](auto&& check) { with_descriptor(p, check); });
}

void bind(onednn::PreparedPrimitive& k, const Problem& p, const dnnl::inner_product_forward::primitive_desc&) {
  const int arguments[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS};
  for (size_t i = 0; i < p.in.size(); ++i) {
    const memory::desc desc = i == 2 ? vector(p.in[i]) : matrix(p.in[i]);
    k.add_input(arguments[i], int(i), desc, desc);
  }
  k.add_output(DNNL_ARG_DST, 0, matrix(p.out[0]), matrix(p.out[0]));
}
void bind(onednn::PreparedPrimitive& k, const Problem& p, const dnnl::inner_product_backward_data::primitive_desc&) {
  k.add_input(DNNL_ARG_DIFF_DST, 0, matrix(p.in[0]), matrix(p.in[0]));
  k.add_input(DNNL_ARG_WEIGHTS, 1, matrix(p.in[1]), matrix(p.in[1]));
  k.add_output(DNNL_ARG_DIFF_SRC, 0, matrix(p.out[0]), matrix(p.out[0]));
}
void bind(onednn::PreparedPrimitive& k, const Problem& p, const dnnl::inner_product_backward_weights::primitive_desc&) {
  k.add_input(DNNL_ARG_SRC, 0, matrix(p.in[0]), matrix(p.in[0]));
  k.add_input(DNNL_ARG_DIFF_DST, 1, matrix(p.in[1]), matrix(p.in[1]));
  k.add_output(DNNL_ARG_DIFF_WEIGHTS, 0, matrix(p.out[0]), matrix(p.out[0]));
  k.add_output(DNNL_ARG_DIFF_BIAS, 1, vector(p.out[1]), vector(p.out[1]));
}

std::unique_ptr<Prepared> prepare(const Problem& p) {
  std::unique_ptr<Prepared> result;
  with_descriptor(p, [&](const auto& pd) {
    auto k = std::make_unique<onednn::PreparedPrimitive>(dnnl::primitive(pd.get()), pd.scratchpad_desc(),
                                                         pd.impl_info_str());
    bind(*k, p, pd);
    result = std::move(k);
  });
  return result;
}

}  // namespace

std::vector<KernelPtr> dense_onednn_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::dense_forward, OpKind::dense_backward_data, OpKind::dense_backward_weights})
    list.push_back(std::make_unique<FunctionKernel>("onednn", kind, supports, prepare));
  return list;
}

}  // namespace convoy
