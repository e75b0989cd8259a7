#include "kernels/conv/conv_cuda_passes.h"

#include "kernels/device/cuda.h"
#include "kernels/device/sums.h"

namespace convoy::cuda {
namespace {

constexpr int threads = 256;

template <class T>
__global__ void add_bias(int64_t n, int channels, const float* bias, T* y) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads)
    y[i] = from_float<T>(to_float(y[i]) + bias[i % channels]);
}

template <class T>
__global__ void widen(int64_t n, const T* narrow, float* wide) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads)
    wide[i] = to_float(narrow[i]);
}

}  // namespace

void queue_add_bias(const Tensor& out, const float* bias) {
  const int64_t n = out.shape().elements();
  dispatch(out.dtype(), [&](auto zero) {
    add_bias<<<grid_for(n, threads), threads, 0, stream()>>>(n, int(out.shape().c()), bias, data<decltype(zero)>(out));
  });
  check_launch("adding a bias");
}

void queue_widen(DType from, int64_t n, const void* narrow, float* wide) {
  dispatch(from, [&](auto zero) {
    widen<<<grid_for(n, threads), threads, 0, stream()>>>(n, static_cast<const decltype(zero)*>(narrow), wide);
  });
  check_launch("widening");
}

int64_t column_sum_bytes(const Shape& shape) {
  return 4 * row_sum_floats(shape.rows(), shape.c());
}

void queue_column_sums(const Tensor& t, float* workspace, float* out) {
  const int64_t columns = t.shape().c();
  dispatch(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    row_sums(t.shape().rows(), columns, Element<T>{data<const T>(t), columns}, workspace, out);
  });
}

}  // namespace convoy::cuda
