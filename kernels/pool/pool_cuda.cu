// Max-pool with its arg-max byte, alone or behind an activation, on CUDA devices: channels-last, eight channels to a
// thread, bound by memory. Windows lie side by side, so that a position has one, or at an odd end none.
#include "kernels/device/cuda.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace pool_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256, width = 8;

struct Geometry {
  int x[3], y[3], kernel[3];
  int channels;  ///< in packs
};

/// leaky_relu or nothing, stored in T before it is compared.
template <class T>
struct Leaky {
  float slope;
  bool active;
  __device__ float forward(float v) const { return active ? rounded<T>(v > 0 ? v : slope * v) : v; }
  __device__ float backward(float g, float y) const { return active ? rounded<T>(y > 0 ? g : slope * g) : g; }
};

/// Where element i of a tensor of packs lies.
struct Place {
  int c, at[3];
  int64_t n;
  __device__ Place(int64_t i, int channels, const int extent[3]) {
    c = int(i % channels), i /= channels;
    for (int axis = 2; axis >= 0; --axis) at[axis] = int(i % extent[axis]), i /= extent[axis];
    n = i;
  }
};

template <class T>
__global__ void pool(int64_t packs, Geometry g, Leaky<T> activation, const T* x, T* y, uint8_t* arg) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < packs; i += int64_t(gridDim.x) * threads) {
    const Place p(i, g.channels, g.y);
    float best[width];
    Pack<uint8_t, width> winner;
    for (int kd = 0; kd < g.kernel[0]; ++kd)
      for (int kh = 0; kh < g.kernel[1]; ++kh)
        for (int kw = 0; kw < g.kernel[2]; ++kw) {
          const int d = p.at[0] * g.kernel[0] + kd, h = p.at[1] * g.kernel[1] + kh, w = p.at[2] * g.kernel[2] + kw;
          const int64_t from = (((p.n * g.x[0] + d) * g.x[1] + h) * g.x[2] + w) * g.channels + p.c;
          const auto v = reinterpret_cast<const Pack<T, width>*>(x)[from];
          const auto code = static_cast<uint8_t>((kd * g.kernel[1] + kh) * g.kernel[2] + kw);
          for (int k = 0; k < width; ++k) {
            const float value = activation.forward(to_float(v.v[k]));
            // A NaN wins and stays.
            if (code == 0 || value > best[k] || (isnan(value) && !isnan(best[k]))) best[k] = value, winner.v[k] = code;
          }
        }
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(best[k]);
    reinterpret_cast<Pack<T, width>*>(y)[i] = out;
    reinterpret_cast<Pack<uint8_t, width>*>(arg)[i] = winner;
  }
}

template <class T>
__global__ void unpool(int64_t packs, Geometry g, Leaky<T> activation, const T* dy, const T* y, const uint8_t* arg,
                       T* dx) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < packs; i += int64_t(gridDim.x) * threads) {
    const Place p(i, g.channels, g.x);
    int cell[3], code = 0;
    bool inside = true;
    for (int a = 0; a < 3; ++a) {
      cell[a] = p.at[a] / g.kernel[a];
      inside = inside && cell[a] < g.y[a];
      code = code * g.kernel[a] + p.at[a] % g.kernel[a];
    }
    float gradients[width] = {};
    if (inside) {
      const int64_t from = (((p.n * g.y[0] + cell[0]) * g.y[1] + cell[1]) * g.y[2] + cell[2]) * g.channels + p.c;
      const auto gradient = reinterpret_cast<const Pack<T, width>*>(dy)[from];
      const auto winner = reinterpret_cast<const Pack<uint8_t, width>*>(arg)[from];
      Pack<T, width> output;
      if (activation.active) output = reinterpret_cast<const Pack<T, width>*>(y)[from];
      for (int k = 0; k < width; ++k)
        if (winner.v[k] == code)
          gradients[k] = activation.backward(to_float(gradient.v[k]), activation.active ? to_float(output.v[k]) : 0);
    }
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(gradients[k]);
    reinterpret_cast<Pack<T, width>*>(dx)[i] = out;
  }
}

struct Setup {
  Geometry g;
  float slope;
  bool active;
};

const PoolAttrs& pool_of(const Problem& p) {
  const auto* both = std::get_if<ActivationPoolAttrs>(&p.op.attrs);
  return both ? both->pool : p.op.as<PoolAttrs>();
}

Setup setup(const Problem& p, const Shape& x, const Shape& y) {
  const auto* both = std::get_if<ActivationPoolAttrs>(&p.op.attrs);
  const PoolAttrs& a = pool_of(p);
  Setup s{{}, both ? float(both->activation.slope) : 1.0f, both != nullptr};
  s.g.channels = int(x.c() / width);
  for (int i = 0; i < 3; ++i) s.g.x[i] = int(x[i + 1]), s.g.y[i] = int(y[i + 1]), s.g.kernel[i] = int(a.kernel[i]);
  return s;
}

Support supports(const Problem& p) {
  if (const auto* both = std::get_if<ActivationPoolAttrs>(&p.op.attrs);
      both && both->activation.function != Activation::leaky_relu)
    return Support::no("leaky_relu only");
  const PoolAttrs& a = pool_of(p);
  const Int3 none{0, 0, 0};
  if (a.stride != a.kernel || a.pad_low != none || a.pad_high != none)
    return Support::no("windows next to each other, without padding");
  if (p.in[0].shape.c() % width) return Support::no("multiples of eight channels");
  return dense_floats(p);
}

std::unique_ptr<Prepared> prepare_pool(const Problem& p) {
  const Setup s = setup(p, p.in[0].shape, p.out[0].shape);
  return prepared([p, s](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const int64_t packs = p.out[0].shape.elements() / width;
      pool<T><<<grid_for(packs, threads), threads, 0, stream()>>>(
          packs, s.g, Leaky<T>{s.slope, s.active}, data<const T>(a.in[0]), data<T>(a.out[0]), data<uint8_t>(a.out[1]));
    });
    check_launch("max_pool");
  });
}

std::unique_ptr<Prepared> prepare_unpool(const Problem& p) {
  const Setup s = setup(p, p.out[0].shape, p.in[0].shape);
  return prepared([p, s](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const int64_t packs = p.out[0].shape.elements() / width;
      unpool<T><<<grid_for(packs, threads), threads, 0, stream()>>>(
          packs, s.g, Leaky<T>{s.slope, s.active}, data<const T>(a.in[0]), data<const T>(a.in[1]),
          data<const uint8_t>(a.in[s.active ? 2 : 1]), data<T>(a.out[0]));
    });
    check_launch("max_pool_backward");
  });
}

}  // namespace
}  // namespace pool_cuda

std::vector<KernelPtr> pool_cuda_kernels() {
  using namespace pool_cuda;
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::activation_max_pool, OpKind::max_pool})
    list.push_back(kernel("cuda", kind, supports, prepare_pool));
  for (OpKind kind : {OpKind::activation_max_pool_backward, OpKind::max_pool_backward})
    list.push_back(kernel("cuda", kind, supports, prepare_unpool));
  return list;
}

}  // namespace convoy
