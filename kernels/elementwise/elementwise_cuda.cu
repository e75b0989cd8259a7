// Element-wise ops, losses and sums on CUDA devices. Eight neighbouring elements to a thread, read and written by
// instructions of 16 bytes: bound by memory, the small ones by their launch.
#include <cmath>

#include "core/tape.h"
#include "kernels/device/last_block.h"
#include "kernels/device/pixels.h"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace elementwise_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256, width = 8;

template <class A, class O, class F>
__global__ void map1(int64_t n, const A* a, O* out, F f) {
  await_kernel_ahead();
  const int64_t packs = n / width;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < packs; i += int64_t(gridDim.x) * threads) {
    const auto x = reinterpret_cast<const Pack<A, width>*>(a)[i];
    Pack<O, width> y;
    for (int k = 0; k < width; ++k) y.v[k] = from_float<O>(f(value_of(x, k)));
    reinterpret_cast<Pack<O, width>*>(out)[i] = y;
  }
  const int64_t rest = packs * width + int64_t(blockIdx.x) * threads + threadIdx.x;
  if (rest < n) out[rest] = from_float<O>(f(to_float(a[rest])));
}

template <class A, class B, class O, class F>
__global__ void map2(int64_t n, const A* a, const B* b, O* out, F f) {
  await_kernel_ahead();
  const int64_t packs = n / width;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < packs; i += int64_t(gridDim.x) * threads) {
    const auto x = reinterpret_cast<const Pack<A, width>*>(a)[i];
    const auto y = reinterpret_cast<const Pack<B, width>*>(b)[i];
    Pack<O, width> z;
    for (int k = 0; k < width; ++k) z.v[k] = from_float<O>(f(value_of(x, k), value_of(y, k)));
    reinterpret_cast<Pack<O, width>*>(out)[i] = z;
  }
  const int64_t rest = packs * width + int64_t(blockIdx.x) * threads + threadIdx.x;
  if (rest < n) out[rest] = from_float<O>(f(to_float(a[rest]), to_float(b[rest])));
}

int64_t elements(const Problem& p) {
  return p.in[0].shape.elements();
}
/// One of the kernels above on n elements.
template <class... Parameters, class... Args>
void queue_map(void (*kernel)(int64_t, Parameters...), int64_t n, const Args&... args) {
  launch_early(kernel, dim3(static_cast<unsigned>(grid_for((n + width - 1) / width, threads))), dim3(threads), 0, n,
               args...);
}

/// The functors are named so that host compilers see them.
struct Log1p {
  __device__ float operator()(float v) const { return log1pf(v); }
};
struct LeakyRelu {
  float slope, scale;
  __device__ float operator()(float v) const { return scale * (v > 0 ? v : slope * v); }
};
struct Tanh {
  float scale;
  __device__ float operator()(float v) const { return scale * tanhf(v); }
};
struct LeakyReluBackward {
  float slope, scale;
  __device__ float operator()(float g, float y) const { return scale * (y > 0 ? g : slope * g); }
};
struct TanhBackward {
  float scale;
  __device__ float operator()(float g, float y) const { return g * (scale - y * y / scale); }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Times {
  float factor;
  __device__ float operator()(float v) const { return factor * v; }
};
struct AddScaled {
  float alpha;
  const double* scale;  ///< of the device
  __device__ float operator()(float a, float b) const {
    return a + float(double(alpha) * scale[int(ScaleField::scale)]) * b;
  }
};

Support supports_log1p(const Problem& p) {
  if (p.in[0].dtype != DType::i16) return Support::no("counts in i16 only");
  return dense_floats({p.op, p.out, p.in});
}
Support supports_f32(const Problem& p) {
  if (p.in[0].dtype != DType::f32) return Support::no("f32 only");
  return dense_floats(p);
}

std::unique_ptr<Prepared> prepare_log1p(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    dispatch(p.out[0].dtype, [&](auto zero) {
      using O = decltype(zero);
      queue_map(map1<int16_t, O, Log1p>, elements(p), data<const int16_t>(a.in[0]), data<O>(a.out[0]), Log1p());
    });
  });
}

/// The same over the pixels of slices.
template <class T, int width, class F>
struct Unary {
  static constexpr int values_of_channel = 0;
  Pixels<const T> x;
  Pixels<T> y;
  F f;
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return x.template load<width>(pixel, channel); }
  __device__ void finish(const OfChannels<0, width>&, const Pack<T, width>& v, int64_t pixel, int channel) const {
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(f(value_of(v, k)));
    y.store(pixel, channel, out);
  }
};
template <class T, int width, class F>
struct Binary {
  static constexpr int values_of_channel = 0;
  Pixels<const T> a, b;
  Pixels<T> y;
  F f;
  struct Loaded {
    Pack<T, width> a, b;
  };
  __device__ Loaded load(int64_t pixel, int channel) const {
    return {a.template load<width>(pixel, channel), b.template load<width>(pixel, channel)};
  }
  __device__ void finish(const OfChannels<0, width>&, const Loaded& v, int64_t pixel, int channel) const {
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(f(value_of(v.a, k), value_of(v.b, k)));
    y.store(pixel, channel, out);
  }
};

bool all_dense(const Problem& p) {
  return dense_floats(p).ok;
}

/// y = f(x), both of one type.
template <class F>
std::unique_ptr<Prepared> prepare_unary(const Problem& p, F f) {
  return prepared([p, f, dense = all_dense(p)](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const Shape& s = p.in[0].shape;
      if (dense)
        queue_map(map1<T, T, F>, elements(p), data<const T>(a.in[0]), data<T>(a.out[0]), f);
      else
        with_width<T>({&a.in[0], &a.out[0]}, [&](auto width) {
          queue_for_pixels<width>(s.rows(), s.c(),
                                  Unary<T, width, F>{pixels<const T>(a.in[0]), pixels<T>(a.out[0]), f});
        });
    });
  });
}
/// out = f(a, b), all of one type.
template <class F>
void queue_binary(const Tensor& a, const Tensor& b, const Tensor& out, const F& f) {
  dispatch(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Shape& s = out.shape();
    if (a.desc().dense() && b.desc().dense() && out.desc().dense())
      queue_map(map2<T, T, T, F>, s.elements(), data<const T>(a), data<const T>(b), data<T>(out), f);
    else
      with_width<T>({&a, &b, &out}, [&](auto width) {
        queue_for_pixels<width>(s.rows(), s.c(),
                                Binary<T, width, F>{pixels<const T>(a), pixels<const T>(b), pixels<T>(out), f});
      });
  });
}
template <class F>
std::unique_ptr<Prepared> prepare_binary(F f) {
  return prepared([f](const KernelArgs& a) { queue_binary(a.in[0], a.in[1], a.out[0], f); });
}

std::unique_ptr<Prepared> prepare_activation(const Problem& p) {
  const auto& a = p.op.as<ActivationAttrs>();
  if (a.function == Activation::tanh) return prepare_unary(p, Tanh{float(a.scale)});
  return prepare_unary(p, LeakyRelu{float(a.slope), float(a.scale)});
}
std::unique_ptr<Prepared> prepare_activation_backward(const Problem& p) {
  const auto& a = p.op.as<ActivationAttrs>();
  if (a.function == Activation::tanh) return prepare_binary(TanhBackward{float(a.scale)});
  return prepare_binary(LeakyReluBackward{float(a.slope), float(a.scale)});
}

std::unique_ptr<Prepared> prepare_add_scaled(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    const AddScaled f{float(p.op.as<ScaleAttrs>().alpha), data<const double>(a.in[2])};
    queue_map(map2<float, float, float, AddScaled>, elements(p), data<const float>(a.in[0]), data<const float>(a.in[1]),
              data<float>(a.out[0]), f);
  });
}

/// Where an element of a tensor with evenly spaced pixels lies: its pixel and channel, which go on one by one.
struct Walk {
  int64_t channels, pixel, channel;
  __device__ Walk(int64_t element, int64_t c) : channels(c), pixel(element / c), channel(element % c) {}
  template <class T>
  __device__ T& of(const Pixels<T>& t) const {
    return t.data[pixel * t.pitch + channel];
  }
  __device__ void next() {
    if (++channel == channels) channel = 0, ++pixel;
  }
};

/// Random words count by dense elements, wherever these lie.
template <class T>
__global__ void dropout(int64_t n, int64_t per_sample, int64_t channels, Pixels<const T> x, const double* step,
                        float rate, uint32_t layer, Pixels<T> y) {
  const auto field = [&](StepField f) { return static_cast<uint32_t>(static_cast<int64_t>(step[int(f)])); };
  const uint64_t key = uint64_t(field(StepField::seed_high)) << 32 | field(StepField::seed_low);
  // A thread takes the four neighbours that one block of random words is for.
  const int64_t fours = (per_sample + 3) / 4, count = n / per_sample * fours;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) {
    const int64_t sample = i / fours, four = i % fours;
    const PhiloxBlock block = philox(
        {uint32_t(four), uint32_t(field(StepField::first_sample) + uint32_t(sample)), field(StepField::step), layer},
        key);
    Walk walk(sample * per_sample + 4 * four, channels);
#pragma unroll
    for (int k = 0; k < 4; ++k, walk.next()) {
      if (4 * four + k >= per_sample) break;
      walk.of(y) = from_float<T>(uniform01(block[size_t(k)]) >= rate ? to_float(walk.of(x)) / (1 - rate) : 0.0f);
    }
  }
}

std::unique_ptr<Prepared> prepare_dropout(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    const auto& attrs = p.op.as<DropoutAttrs>();
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      dropout<<<grid_for(elements(p) / 4 + 1, threads), threads, 0, stream()>>>(
          elements(p), elements(p) / p.in[0].shape.n(), p.in[0].shape.c(), pixels<const T>(a.in[0]),
          data<const double>(a.in[1]), float(attrs.rate), uint32_t(attrs.stream), pixels<T>(a.out[0]));
    });
    check_launch("dropout");
  });
}

__global__ void loss(int64_t n, const float* y, const float* target, bool squares, float* out) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += threads) {
    const float e = y[i] - target[i];
    sum += squares ? e * e : fabsf(e);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out = sum / float(n);
}

__global__ void loss_backward(int64_t n, const float* y, const float* target, const double* scale, bool squares,
                              float* out) {
  const float factor = float(scale[int(ScaleField::scale)] / double(n));
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads) {
    const float e = y[i] - target[i];
    out[i] = factor * (squares ? 2 * e : float(e > 0) - float(e < 0));
  }
}

std::unique_ptr<Prepared> prepare_loss(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    loss<<<1, threads, 0, stream()>>>(elements(p), data<const float>(a.in[0]), data<const float>(a.in[1]),
                                      p.op.as<LossAttrs>().loss == Loss::mse, data<float>(a.out[0]));
    check_launch("loss");
  });
}
std::unique_ptr<Prepared> prepare_loss_backward(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    loss_backward<<<grid_for(elements(p), threads), threads, 0, stream()>>>(
        elements(p), data<const float>(a.in[0]), data<const float>(a.in[1]), data<const double>(a.in[2]),
        p.op.as<LossAttrs>().loss == Loss::mse, data<float>(a.out[0]));
    check_launch("loss_backward");
  });
}

__global__ void sum_squares(int64_t n, const float* x, double factor, double* parts, float* out) {
  float sum = 0;
  for (int64_t i = int64_t(blockIdx.y) * threads + threadIdx.x; i < n; i += int64_t(gridDim.y) * threads)
    sum = fmaf(x[i], x[i], sum);
  leave_sum<threads>(sum, parts, factor, out);
}

std::unique_ptr<Prepared> prepare_sum_squares(const Problem& p) {
  const int blocks = std::min(grid_for(elements(p) / 16 + 1, threads), 4 * multiprocessors());
  return prepared(
      [p, blocks](const KernelArgs& a) {
        sum_squares<<<dim3(1, static_cast<unsigned>(blocks)), threads, 0, stream()>>>(
            elements(p), data<const float>(a.in[0]), p.op.as<ScaleAttrs>().alpha,
            reinterpret_cast<double*>(a.workspace), data<float>(a.out[0]));
        check_launch("sum_squares");
      },
      8 * blocks);
}

constexpr size_t most_tensors = 64;
struct Tensors {
  const float* data[most_tensors];
  int64_t elements[most_tensors];
};

__global__ void set_one(float* flag) {
  *flag = 1;
}
/// One row of blocks for each tensor.
__global__ void find_non_finite(const __grid_constant__ Tensors tensors, float* flag) {
  const float* x = tensors.data[blockIdx.y];
  bool bad = false;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < tensors.elements[blockIdx.y];
       i += int64_t(gridDim.x) * threads)
    bad |= !isfinite(x[i]);
  if (bad) *flag = 0;
}

Support supports_all_finite(const Problem& p) {
  for (const TensorDesc& desc : p.in)
    if (desc.dtype != DType::f32) return Support::no("f32 only");
  return dense_floats(p);
}
std::unique_ptr<Prepared> prepare_all_finite(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    set_one<<<1, 1, 0, stream()>>>(data<float>(a.out[0]));
    for (size_t first = 0; first < p.in.size(); first += most_tensors) {
      const size_t count = std::min(most_tensors, p.in.size() - first);
      Tensors tensors{};
      int64_t largest = 0;
      for (size_t i = 0; i < count; ++i) {
        tensors.data[i] = data<const float>(a.in[first + i]), tensors.elements[i] = p.in[first + i].shape.elements();
        largest = std::max(largest, tensors.elements[i]);
      }
      const int blocks = std::min(grid_for(largest / 8 + 1, threads), 2 * multiprocessors());
      find_non_finite<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)), threads, 0, stream()>>>(
          tensors, data<float>(a.out[0]));
    }
    check_launch("all_finite");
  });
}

}  // namespace
}  // namespace elementwise_cuda

void cuda::queue_sum(const Tensor& a, const Tensor& b, const Tensor& sum) {
  using namespace elementwise_cuda;
  queue_binary(a, b, sum, Sum{});
}

std::vector<KernelPtr> elementwise_cuda_kernels() {
  using namespace elementwise_cuda;
  std::vector<KernelPtr> list;
  const auto add = [&](OpKind kind, FunctionKernel::Supports supports, FunctionKernel::Prepare prepare) {
    list.push_back(kernel("cuda", kind, supports, prepare));
  };
  add(OpKind::log1p, supports_log1p, prepare_log1p);
  add(OpKind::activation, even_floats, prepare_activation);
  add(OpKind::activation_backward, even_floats, prepare_activation_backward);
  add(OpKind::dropout, even_floats, prepare_dropout);
  add(OpKind::add, even_floats, [](const Problem&) { return prepare_binary(Sum()); });
  add(OpKind::scale, dense_floats,
      [](const Problem& p) { return prepare_unary(p, Times{float(p.op.as<ScaleAttrs>().alpha)}); });
  add(OpKind::add_scaled, supports_f32, prepare_add_scaled);
  add(OpKind::loss, supports_f32, prepare_loss);
  add(OpKind::loss_backward, supports_f32, prepare_loss_backward);
  add(OpKind::sum_squares, supports_f32, prepare_sum_squares);
  add(OpKind::all_finite, supports_all_finite, prepare_all_finite);
  return list;
}

}  // namespace convoy
