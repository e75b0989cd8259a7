// The two nodes of batch normalisation that touch a few numbers per channel: no vector unit would show.
#include <algorithm>
#include <cmath>

#include "kernels/function_kernel.h"

namespace convoy {
namespace {

Support supports_f32(const Problem& p) {
  return p.in[1].dtype == DType::f32 ? Support::yes() : Support::no("keeps f32 state, found " + p.in[1].str());
}

std::unique_ptr<Prepared> prepare_parameters(const Problem& p) {
  return std::make_unique<PreparedFunction>(
      [count = p.op.as<ScaleAttrs>().alpha, channels = p.in[1].shape.c()](const KernelArgs& args) {
        const double* means = args.in[0].data<double>();
        for (int64_t c = 0; c < channels; ++c) {
          args.out[0].data<float>()[c] = float(count * means[channels + c]);
          args.out[1].data<float>()[c] = float(count * means[c]);
        }
      });
}

std::unique_ptr<Prepared> prepare_update(const Problem& p) {
  return std::make_unique<PreparedFunction>(
      [a = p.op.as<RunningAttrs>(), channels = p.in[1].shape.c()](const KernelArgs& args) {
        const double* moments = args.in[0].data<double>();
        const double unbiased = double(a.count) / double(std::max<int64_t>(1, a.count - 1));
        float *mean = args.out[0].data<float>(), *variance = args.out[1].data<float>();
        for (int64_t c = 0; c < channels; ++c) {
          const double m = moments[c], v = std::max(0.0, moments[channels + c] - m * m) * unbiased;
          if (!std::isfinite(float(m)) || !std::isfinite(float(v))) continue;
          mean[c] = float((1 - a.momentum) * double(mean[c]) + a.momentum * m);
          variance[c] = float((1 - a.momentum) * double(variance[c]) + a.momentum * v);
        }
      });
}

}  // namespace

std::vector<KernelPtr> norm_small_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(std::make_unique<FunctionKernel>("scalar", OpKind::batch_norm_backward_parameters, supports_f32,
                                                  prepare_parameters));
  list.push_back(std::make_unique<FunctionKernel>("scalar", OpKind::batch_norm_update, supports_f32, prepare_update));
  return list;
}

}  // namespace convoy
