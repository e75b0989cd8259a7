// Convolutions of any geometry on CUDA devices, an output element to a thread: what runs where neither cuDNN nor a
// kernel of our own does, and what those are checked against. Bound by its loads; nothing is kept from one output to
// the next.
#include "kernels/conv/conv_cuda_geometry.h"
#include "kernels/device/cuda.h"
#include "kernels/device/sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace conv_plain_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256;

/// Index of a pixel and its channel 0.
__device__ int64_t pixel(const int extent[3], int channels, int64_t n, int d, int h, int w) {
  return (((n * extent[0] + d) * extent[1] + h) * extent[2] + w) * channels;
}

template <class T>
__global__ void forward(int64_t outputs, ConvGeometry g, const T* x, const T* w, const float* bias, T* y) {
  const int c_group = g.c / g.groups, k_group = g.k / g.groups;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < outputs; i += int64_t(gridDim.x) * threads) {
    int64_t at = i;
    const int k = int(at % g.k);
    at /= g.k;
    const int ow = int(at % g.y[2]), oh = int(at / g.y[2] % g.y[1]), od = int(at / g.y[2] / g.y[1] % g.y[0]);
    const int64_t n = at / g.y[2] / g.y[1] / g.y[0];
    float sum = 0;
    for (int kd = 0; kd < g.kernel[0]; ++kd)
      for (int kh = 0; kh < g.kernel[1]; ++kh)
        for (int kw = 0; kw < g.kernel[2]; ++kw) {
          const int d = od * g.stride[0] - g.pad[0] + kd * g.dilation[0],
                    h = oh * g.stride[1] - g.pad[1] + kh * g.dilation[1],
                    v = ow * g.stride[2] - g.pad[2] + kw * g.dilation[2];
          if (d < 0 || h < 0 || v < 0 || d >= g.x[0] || h >= g.x[1] || v >= g.x[2]) continue;
          const T* from = x + pixel(g.x, g.c, n, d, h, v) + k / k_group * c_group;
          const T* weights = w + (((int64_t(k) * g.kernel[0] + kd) * g.kernel[1] + kh) * g.kernel[2] + kw) * c_group;
          for (int c = 0; c < c_group; ++c) sum += to_float(from[c]) * to_float(weights[c]);
        }
    y[i] = from_float<T>(sum + (bias ? bias[k] : 0.0f));
  }
}

template <class T>
__global__ void backward_data(int64_t inputs, ConvGeometry g, const T* dy, const T* w, const float* bias, T* dx) {
  const int c_group = g.c / g.groups, k_group = g.k / g.groups;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < inputs; i += int64_t(gridDim.x) * threads) {
    int64_t at = i;
    const int c = int(at % g.c), group = c / c_group;
    at /= g.c;
    const int v = int(at % g.x[2]), h = int(at / g.x[2] % g.x[1]), d = int(at / g.x[2] / g.x[1] % g.x[0]);
    const int64_t n = at / g.x[2] / g.x[1] / g.x[0];
    float sum = 0;
    for (int kd = 0; kd < g.kernel[0]; ++kd)
      for (int kh = 0; kh < g.kernel[1]; ++kh)
        for (int kw = 0; kw < g.kernel[2]; ++kw) {
          const int dd = d + g.pad[0] - kd * g.dilation[0], hh = h + g.pad[1] - kh * g.dilation[1],
                    vv = v + g.pad[2] - kw * g.dilation[2];
          if (dd < 0 || hh < 0 || vv < 0 || dd % g.stride[0] || hh % g.stride[1] || vv % g.stride[2]) continue;
          const int od = dd / g.stride[0], oh = hh / g.stride[1], ow = vv / g.stride[2];
          if (od >= g.y[0] || oh >= g.y[1] || ow >= g.y[2]) continue;
          const T* from = dy + pixel(g.y, g.k, n, od, oh, ow) + group * k_group;
          for (int k = 0; k < k_group; ++k)
            sum += to_float(from[k]) *
                   to_float(
                       w[((((int64_t(group) * k_group + k) * g.kernel[0] + kd) * g.kernel[1] + kh) * g.kernel[2] + kw) *
                             c_group +
                         c % c_group]);
        }
    dx[i] = from_float<T>(sum + (bias ? bias[c] : 0.0f));
  }
}

template <class T>
__global__ void backward_weights(int64_t weights, ConvGeometry g, const T* x, const T* dy, float* dw) {
  const int c_group = g.c / g.groups, k_group = g.k / g.groups;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < weights; i += int64_t(gridDim.x) * threads) {
    int64_t at = i;
    const int c = int(at % c_group);
    at /= c_group;
    const int kw = int(at % g.kernel[2]), kh = int(at / g.kernel[2] % g.kernel[1]),
              kd = int(at / g.kernel[2] / g.kernel[1] % g.kernel[0]),
              k = int(at / g.kernel[2] / g.kernel[1] / g.kernel[0]);
    float sum = 0;
    for (int64_t n = 0; n < g.n; ++n)
      for (int od = 0; od < g.y[0]; ++od)
        for (int oh = 0; oh < g.y[1]; ++oh)
          for (int ow = 0; ow < g.y[2]; ++ow) {
            const int d = od * g.stride[0] - g.pad[0] + kd * g.dilation[0],
                      h = oh * g.stride[1] - g.pad[1] + kh * g.dilation[1],
                      v = ow * g.stride[2] - g.pad[2] + kw * g.dilation[2];
            if (d < 0 || h < 0 || v < 0 || d >= g.x[0] || h >= g.x[1] || v >= g.x[2]) continue;
            sum += to_float(x[pixel(g.x, g.c, n, d, h, v) + k / k_group * c_group + c]) *
                   to_float(dy[pixel(g.y, g.k, n, od, oh, ow) + k]);
          }
    dw[i] = sum;
  }
}

Support supports(const Problem& p) {
  if (const auto* a = std::get_if<ConvAttrs>(&p.op.attrs); a && a->slope != 1)
    return Support::no("ends in no activation");
  return dense_floats(p);
}

std::unique_ptr<Prepared> prepare_forward(const Problem& p) {
  return prepared([p, g = conv_geometry(p)](const KernelArgs& a) {
    const int64_t outputs = p.out[0].shape.elements();
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      forward<<<grid_for(outputs, threads), threads, 0, stream()>>>(
          outputs, g, data<const T>(a.in[0]), data<const T>(a.in[1]),
          a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr, data<T>(a.out[0]));
    });
    check_launch("conv_forward");
  });
}

std::unique_ptr<Prepared> prepare_backward_data(const Problem& p) {
  return prepared([p, g = conv_geometry(p)](const KernelArgs& a) {
    const int64_t inputs = p.out[0].shape.elements();
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      backward_data<<<grid_for(inputs, threads), threads, 0, stream()>>>(
          inputs, g, data<const T>(a.in[0]), data<const T>(a.in[1]),
          a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr, data<T>(a.out[0]));
    });
    check_launch("conv_backward_data");
  });
}

std::unique_ptr<Prepared> prepare_backward_weights(const Problem& p) {
  const int64_t rows = p.in[1].shape.rows(), columns = p.in[1].shape.c();
  return prepared(
      [=, g = conv_geometry(p)](const KernelArgs& a) {
        const int64_t weights = p.out[0].shape.elements();
        dispatch(p.in[0].dtype, [&](auto zero) {
          using T = decltype(zero);
          backward_weights<<<grid_for(weights, threads), threads, 0, stream()>>>(
              weights, g, data<const T>(a.in[0]), data<const T>(a.in[1]), data<float>(a.out[0]));
          row_sums(rows, columns, Element<T>{data<const T>(a.in[1]), columns}, reinterpret_cast<float*>(a.workspace),
                   data<float>(a.out[1]));
        });
        check_launch("conv_backward_weights");
      },
      4 * row_sum_floats(rows, columns));
}

}  // namespace
}  // namespace conv_plain_cuda

std::vector<KernelPtr> conv_plain_cuda_kernels() {
  using namespace conv_plain_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda_plain", OpKind::conv_forward, supports, prepare_forward));
  list.push_back(kernel("cuda_plain", OpKind::conv_backward_data, supports, prepare_backward_data));
  list.push_back(kernel("cuda_plain", OpKind::conv_backward_weights, supports, prepare_backward_weights));
  return list;
}

}  // namespace convoy
