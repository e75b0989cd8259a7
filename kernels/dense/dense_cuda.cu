// Fully connected layers on CUDA devices for the few samples of a step: matrix times vectors, bound by reading (or, for
// weight gradients, writing) the weights once. Samples are taken eight at a time.
#include "kernels/device/cuda.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace dense_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256, samples = 8;

/// A block for each output: its row of weights against up to eight samples.
template <class T, int width>
__global__ void forward(int batch, int64_t features, int outputs, const T* x, const T* w, const float* bias, T* y) {
  const int k = blockIdx.x;
  const auto* row = reinterpret_cast<const Pack<T, width>*>(w + k * features);
  for (int first = 0; first < batch; first += samples) {
    const int count = min(samples, batch - first);
    float sum[samples] = {};
    for (int64_t f = threadIdx.x; f < features / width; f += threads) {
      const auto weights = row[f];
      for (int s = 0; s < samples; ++s) {
        if (s >= count) break;
        const auto values = reinterpret_cast<const Pack<T, width>*>(x + (first + s) * features)[f];
        for (int i = 0; i < width; ++i) sum[s] += to_float(values.v[i]) * to_float(weights.v[i]);
      }
    }
    for (int s = 0; s < samples; ++s) {
      if (s >= count) break;
      const float total = block_sum(sum[s]);
      if (threadIdx.x == 0) y[(first + s) * outputs + k] = from_float<T>(total + (bias ? bias[k] : 0.0f));
    }
  }
}

/// A thread for each feature, the outputs one after another.
template <class T>
__global__ void backward_data(int batch, int64_t features, int outputs, const T* dy, const T* w, T* dx) {
  const int64_t f = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (f >= features) return;
  for (int first = 0; first < batch; first += samples) {
    const int count = min(samples, batch - first);
    float sum[samples] = {};
#pragma unroll 8
    for (int k = 0; k < outputs; ++k) {
      const float weight = to_float(w[k * features + f]);
      for (int s = 0; s < samples; ++s)
        if (s < count) sum[s] += to_float(dy[(first + s) * outputs + k]) * weight;
    }
    for (int s = 0; s < samples; ++s)
      if (s < count) dx[(first + s) * features + f] = from_float<T>(sum[s]);
  }
}

template <class T>
__global__ void backward_weights(int batch, int64_t features, int outputs, const T* x, const T* dy, float* dw,
                                 float* db) {
  const int k = blockIdx.y;
  for (int64_t f = int64_t(blockIdx.x) * threads + threadIdx.x; f < features; f += int64_t(gridDim.x) * threads) {
    float sum = 0;
    for (int n = 0; n < batch; ++n) sum += to_float(dy[n * outputs + k]) * to_float(x[n * features + f]);
    dw[k * features + f] = sum;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    float sum = 0;
    for (int n = 0; n < batch; ++n) sum += to_float(dy[n * outputs + k]);
    db[k] = sum;
  }
}

Support supports(const Problem& p) {
  const Support support = dense_floats(p);
  if (!support.ok) return support;
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& desc : *list)
      if (desc.shape.n() > 65535) return Support::no("more than 65535 samples or outputs");
  if (p.in[0].shape.n() > 4096 || p.in[0].shape.elements() / p.in[0].shape.n() > (1 << 30))
    return Support::no("more than 4096 samples or 2^30 features");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare_forward(const Problem& p) {
  const auto batch = int(p.in[0].shape.n()), outputs = int(p.in[1].shape.n());
  const int64_t features = p.in[1].shape.c();
  return prepared([=](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const float* bias = a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr;
      const auto run = [&](auto kernel) {
        kernel<<<outputs, threads, 0, stream()>>>(batch, features, outputs, data<const T>(a.in[0]),
                                                  data<const T>(a.in[1]), bias, data<T>(a.out[0]));
      };
      features % 8 == 0 ? run(forward<T, 8>) : run(forward<T, 1>);
    });
    check_launch("dense_forward");
  });
}

std::unique_ptr<Prepared> prepare_backward_data(const Problem& p) {
  const auto batch = int(p.in[0].shape.n()), outputs = int(p.in[1].shape.n());
  const int64_t features = p.in[1].shape.c();
  return prepared([=](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      backward_data<<<static_cast<unsigned>((features + 63) / 64), 64, 0, stream()>>>(
          batch, features, outputs, data<const T>(a.in[0]), data<const T>(a.in[1]), data<T>(a.out[0]));
    });
    check_launch("dense_backward_data");
  });
}

std::unique_ptr<Prepared> prepare_backward_weights(const Problem& p) {
  const auto batch = int(p.in[0].shape.n()), outputs = int(p.out[0].shape.n());
  const int64_t features = p.out[0].shape.c();
  return prepared([=](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const int64_t blocks = std::min<int64_t>((features + threads - 1) / threads, 64);
      backward_weights<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(outputs)), threads, 0, stream()>>>(
          batch, features, outputs, data<const T>(a.in[0]), data<const T>(a.in[1]), data<float>(a.out[0]),
          data<float>(a.out[1]));
    });
    check_launch("dense_backward_weights");
  });
}

}  // namespace
}  // namespace dense_cuda

std::vector<KernelPtr> dense_cuda_kernels() {
  using namespace dense_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::dense_forward, supports, prepare_forward));
  list.push_back(kernel("cuda", OpKind::dense_backward_data, supports, prepare_backward_data));
  list.push_back(kernel("cuda", OpKind::dense_backward_weights, supports, prepare_backward_weights));
  return list;
}

}  // namespace convoy
