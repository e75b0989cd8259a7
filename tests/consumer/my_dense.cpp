// A kernel outside the tree: linked into a program (main.cpp), or as a shared library for every program of Convoy.
#include "kernels/plugin.h"

using namespace convoy;

namespace {

/// y = W x + b in f32, as one would write it first.
KernelPtr my_dense() {
  const auto supports = [](const Problem& p) {
    for (const std::vector<TensorDesc>* side : {&p.in, &p.out})
      for (const TensorDesc& d : *side)
        if (d.dtype != DType::f32 || !d.dense()) return Support::no("takes f32 without gaps");
    return p.in.size() == 3 ? Support::yes() : Support::no("takes a bias");
  };
  const auto prepare = [](const Problem&) -> std::unique_ptr<Prepared> {
    return std::make_unique<PreparedFunction>([](const KernelArgs& a) {
      const int64_t outputs = a.in[1].shape().n(), features = a.in[1].shape().c();
      const float *x = a.in[0].data<float>(), *w = a.in[1].data<float>(), *bias = a.in[2].data<float>();
      for (int64_t i = 0; i < a.out[0].shape().elements(); ++i) {
        const float *row = x + i / outputs * features, *weights = w + i % outputs * features;
        float sum = bias[i % outputs];
        for (int64_t f = 0; f < features; ++f) sum += row[f] * weights[f];
        a.out[0].data<float>()[i] = sum;
      }
    });
  };
  return std::make_unique<FunctionKernel>("mine", OpKind::dense_forward, supports, prepare);
}

}  // namespace

std::vector<KernelPtr> my_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(my_dense());
  return list;
}

CONVOY_PLUGIN(my_kernels)
