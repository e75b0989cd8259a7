// Batch normalisation on CUDA devices (Ioffe & Szegedy 2015), bound by memory: moments and gradient sums read their
// tensors once, what they find per channel is added up in f64 in the same order in every run.
#include "kernels/device/joined.h"
#include "kernels/device/pixels.h"
#include "kernels/norm/norm_cuda.h"

namespace convoy {
namespace {

using namespace cuda;

/// Where what normalises a channel is read.
struct Statistics {
  const float *gamma, *beta;
  const double* moments;  ///< means, then mean squares; null: the running ones
  const float *running_mean, *running_variance;
  int channels;
  float epsilon;
  __device__ float mean(int c) const { return moments ? float(moments[c]) : running_mean[c]; }
  __device__ float inverse(int c) const {
    const float variance = moments ? float(moments[channels + c] - moments[c] * moments[c]) : running_variance[c];
    return 1 / sqrtf(fmaxf(0.0f, variance) + epsilon);
  }
};

Statistics statistics(const Problem& p, const KernelArgs& a, size_t x) {
  const bool running = p.op.kind == OpKind::batch_norm && a.in.size() == 5;
  return {data<const float>(a.in[x + 1]),
          data<const float>(a.in[x + 2]),
          running ? nullptr : data<const double>(a.in[x + 3]),
          running ? data<const float>(a.in[3]) : nullptr,
          running ? data<const float>(a.in[4]) : nullptr,
          int(p.in[x].shape.c()),
          float(p.op.as<BatchNormAttrs>().epsilon)};
}

/// What `width` channels are shifted and scaled by: y = (x - mean)*scale + beta, scale = gamma/sqrt(variance +
/// epsilon).
template <int width>
struct Normal {
  float mean[width], scale[width], beta[width];
  __device__ Normal(const Statistics& s, int channel) {
    for (int k = 0; k < width; ++k)
      mean[k] = s.mean(channel + k), scale[k] = s.gamma[channel + k] * s.inverse(channel + k),
      beta[k] = s.beta[channel + k];
  }
  __device__ float output(int k, float x) const { return fmaf(x - mean[k], scale[k], beta[k]); }
};

template <class T, int width>
struct Forward {
  Pixels<const T> x;
  Pixels<T> y;
  Statistics statistics;
  bool relu;
  __device__ Normal<width> of_channels(int channel) const { return {statistics, channel}; }
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return x.template load<width>(pixel, channel); }
  __device__ void finish(const Normal<width>& own, const Pack<T, width>& v, int64_t pixel, int channel) const {
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) {
      const float value = own.output(k, to_float(v.v[k]));
      out.v[k] = from_float<T>(relu && value < 0 ? 0.0f : value);
    }
    y.store(pixel, channel, out);
  }
};

/// Sums of differences from the first pixel and of their squares: where a channel varies little around a large mean,
/// sums of its own squares in f32 would lose the variance.
template <class T, int width>
struct Differences {
  static constexpr int quantities = 2;
  Pixels<const T> x;
  struct Own {
    float first[width];
  };
  __device__ Own of_channels(int channel) const {
    Own own;
    const Pack<T, width> v = x.template load<width>(0, channel);
    for (int k = 0; k < width; ++k) own.first[k] = to_float(v.v[k]);
    return own;
  }
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return x.template load<width>(pixel, channel); }
  __device__ void add(const Own& own, const Pack<T, width>& v, float (&sums)[2][width]) const {
    for (int k = 0; k < width; ++k) {
      const float d = to_float(v.v[k]) - own.first[k];
      sums[0][k] += d, sums[1][k] = fmaf(d, d, sums[1][k]);
    }
  }
};

/// Mean and mean square of all parts; block (32, 32), a channel to each 32 threads below each other.
template <class T>
__global__ void finish_moments(int parts, int channels, const double* from, const T* first, double share, double* out) {
  __shared__ double lanes[2][32][33];
  const int c = int(blockIdx.x) * 32 + int(threadIdx.x);
  double sums[2] = {};
  if (c < channels)
    for (int i = int(threadIdx.y); i < parts; i += 32)
      for (int q = 0; q < 2; ++q) sums[q] += from[(int64_t(i) * 2 + q) * channels + c];
  for (int q = 0; q < 2; ++q) lanes[q][threadIdx.y][threadIdx.x] = sums[q];
  __syncthreads();
  if (threadIdx.y > 0 || c >= channels) return;
  for (int i = 1; i < 32; ++i)
    for (int q = 0; q < 2; ++q) sums[q] += lanes[q][i][threadIdx.x];
  const double x = to_float(first[c]), d = share * sums[0];
  out[c] = x + d;
  out[channels + c] = x * x + 2 * x * d + share * sums[1];
}

/// A gradient and what it is the gradient at.
template <class T, int width>
struct Both {
  Pack<T, width> dy, x;
};

template <class T, int width>
struct Gradient {
  Pixels<const T> dy, x;
  Statistics statistics;
  bool relu;
  __device__ Both<T, width> load(int64_t pixel, int channel) const {
    return {dy.template load<width>(pixel, channel), x.template load<width>(pixel, channel)};
  }
  /// What passes the clamp.
  __device__ float passed(const Normal<width>& own, const Both<T, width>& v, int k) const {
    return relu && !(own.output(k, to_float(v.x.v[k])) > 0) ? 0.0f : to_float(v.dy.v[k]);
  }
};

template <class T, int width>
struct GradientSums : Gradient<T, width> {
  static constexpr int quantities = 2;
  struct Own {
    Normal<width> normal;
    float inverse[width];
  };
  __device__ Own of_channels(int channel) const {
    Own own{{this->statistics, channel}, {}};
    for (int k = 0; k < width; ++k) own.inverse[k] = this->statistics.inverse(channel + k);
    return own;
  }
  __device__ void add(const Own& own, const Both<T, width>& v, float (&sums)[2][width]) const {
    for (int k = 0; k < width; ++k) {
      const float dy = this->passed(own.normal, v, k), x = (to_float(v.x.v[k]) - own.normal.mean[k]) * own.inverse[k];
      sums[0][k] += dy, sums[1][k] = fmaf(dy, x, sums[1][k]);
    }
  }
};

/// dx = scale*(dy - its mean) - slope*(x - mean), slope = scale/sqrt(variance + epsilon)*(mean of dy*normalised x).
template <class T, int width>
struct BackwardData : Gradient<T, width> {
  Pixels<T> dx;
  const double* sums;
  struct Own {
    Normal<width> normal;
    float gradient[width], slope[width];
  };
  __device__ Own of_channels(int channel) const {
    Own own{{this->statistics, channel}, {}, {}};
    for (int k = 0; k < width; ++k)
      own.gradient[k] = float(sums[channel + k]), own.slope[k] = own.normal.scale[k] *
                                                                 this->statistics.inverse(channel + k) *
                                                                 float(sums[this->statistics.channels + channel + k]);
    return own;
  }
  __device__ void finish(const Own& own, const Both<T, width>& v, int64_t pixel, int channel) const {
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) {
      const float dy = this->passed(own.normal, v, k) - own.gradient[k];
      out.v[k] = from_float<T>(own.normal.scale[k] * dy - own.slope[k] * (to_float(v.x.v[k]) - own.normal.mean[k]));
    }
    dx.store(pixel, channel, out);
  }
};

std::unique_ptr<Prepared> prepare_moments(const Problem& p) {
  const int64_t pixels_ = p.in[0].shape.rows(), channels = p.in[0].shape.c();
  return prepared(
      [=](const KernelArgs& a) {
        dispatch(p.in[0].dtype, [&](auto zero) {
          using T = decltype(zero);
          const Pixels<const T> x = pixels<const T>(a.in[0]);
          int parts = 0;
          with_width<T>({&a.in[0]}, [&](auto width) {
            parts = queue_parts_of_channels<width>(pixels_, channels, Differences<T, width>{x}, a.workspace);
          });
          finish_moments<<<static_cast<unsigned>((channels + 31) / 32), dim3(32, 32), 0, stream()>>>(
              parts, int(channels), reinterpret_cast<const double*>(a.workspace), x.data, 1 / double(pixels_),
              data<double>(a.out[0]));
          check_launch("channel_moments");
        });
      },
      channel_sum_bytes(pixels_, channels, 2));
}

std::unique_ptr<Prepared> prepare_forward(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      with_width<T>({&a.in[0], &a.out[0]}, [&](auto width) {
        const Forward<T, width> f{pixels<const T>(a.in[0]), pixels<T>(a.out[0]), statistics(p, a, 0),
                                  p.op.as<BatchNormAttrs>().relu != 0};
        queue_for_pixels<width>(p.in[0].shape.rows(), p.in[0].shape.c(), f);
      });
    });
  });
}

template <class T, int width>
Gradient<T, width> gradient(const Problem& p, const KernelArgs& a) {
  return {pixels<const T>(a.in[0]), pixels<const T>(a.in[1]), statistics(p, a, 1), p.op.as<BatchNormAttrs>().relu != 0};
}

std::unique_ptr<Prepared> prepare_sums(const Problem& p) {
  const int64_t pixels_ = p.in[0].shape.rows(), channels = p.in[0].shape.c();
  return prepared(
      [=](const KernelArgs& a) {
        dispatch(p.in[0].dtype, [&](auto zero) {
          using T = decltype(zero);
          with_width<T>({&a.in[0], &a.in[1]}, [&](auto width) {
            queue_channel_sums<width>(pixels_, channels, GradientSums<T, width>{gradient<T, width>(p, a)},
                                      1 / double(pixels_), a.workspace, data<double>(a.out[0]));
          });
        });
      },
      channel_sum_bytes(pixels_, channels, 2));
}

std::unique_ptr<Prepared> prepare_backward_data(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      with_width<T>({&a.in[0], &a.in[1], &a.out[0]}, [&](auto width) {
        const BackwardData<T, width> f{{gradient<T, width>(p, a)}, pixels<T>(a.out[0]), data<const double>(a.in[5])};
        queue_for_pixels<width>(p.in[0].shape.rows(), p.in[0].shape.c(), f);
      });
    });
  });
}

constexpr int threads = 128;

/// The layers of one launch: a row of blocks each.
template <class Layer>
struct Layers {
  static constexpr int most = 64;
  Layer layer[most];
};

struct ParameterGradients {
  int channels;
  const double* means;
  float *gamma, *beta;
};
__global__ void parameter_gradients(const __grid_constant__ Layers<ParameterGradients> layers, double count) {
  const ParameterGradients& l = layers.layer[blockIdx.y];
  const int c = int(blockIdx.x) * threads + int(threadIdx.x);
  if (c < l.channels) l.gamma[c] = float(count * l.means[l.channels + c]), l.beta[c] = float(count * l.means[c]);
}

struct RunningStatistics {
  int channels;
  const double* moments;
  float *mean, *variance;
};
/// Moments of a diverged step are left out: the running ones must survive it.
__global__ void update_running(const __grid_constant__ Layers<RunningStatistics> layers, double momentum,
                               double unbiased) {
  const RunningStatistics& l = layers.layer[blockIdx.y];
  const int c = int(blockIdx.x) * threads + int(threadIdx.x);
  if (c >= l.channels) return;
  const double m = l.moments[c], v = fmax(0.0, l.moments[l.channels + c] - m * m) * unbiased;
  if (!isfinite(m) || !isfinite(v)) return;
  l.mean[c] = float((1 - momentum) * double(l.mean[c]) + momentum * m);
  l.variance[c] = float((1 - momentum) * double(l.variance[c]) + momentum * v);
}

/// Blocks for the layer of most channels, times layers.
template <class Layer>
dim3 blocks_of(const Layers<Layer>& layers, size_t count) {
  int most = 0;
  for (size_t i = 0; i < count; ++i) most = std::max(most, layers.layer[i].channels);
  return dim3(static_cast<unsigned>((most + threads - 1) / threads), static_cast<unsigned>(count));
}

class BackwardParameters final : public Joined<BackwardParameters> {
 public:
  static constexpr size_t most_joined = Layers<ParameterGradients>::most;
  explicit BackwardParameters(double count) : count_(count) {}
  bool same(const BackwardParameters& other) const { return count_ == other.count_; }
  void launch(std::span<const KernelArgs> all) const {
    Layers<ParameterGradients> layers;
    for (size_t i = 0; i < all.size(); ++i)
      layers.layer[i] = {int(all[i].out[0].shape().c()), data<const double>(all[i].in[0]), data<float>(all[i].out[0]),
                         data<float>(all[i].out[1])};
    parameter_gradients<<<blocks_of(layers, all.size()), threads, 0, stream()>>>(layers, count_);
    check_launch("batch_norm_backward_parameters");
  }

 private:
  double count_;
};

class UpdateRunning final : public Joined<UpdateRunning> {
 public:
  static constexpr size_t most_joined = Layers<RunningStatistics>::most;
  explicit UpdateRunning(const RunningAttrs& attrs) : attrs_(attrs) {}
  bool same(const UpdateRunning& other) const { return attrs_ == other.attrs_; }
  void launch(std::span<const KernelArgs> all) const {
    Layers<RunningStatistics> layers;
    for (size_t i = 0; i < all.size(); ++i)
      layers.layer[i] = {int(all[i].out[0].shape().c()), data<const double>(all[i].in[0]), data<float>(all[i].out[0]),
                         data<float>(all[i].out[1])};
    const double unbiased = double(attrs_.count) / double(std::max<int64_t>(1, attrs_.count - 1));
    update_running<<<blocks_of(layers, all.size()), threads, 0, stream()>>>(layers, attrs_.momentum, unbiased);
    check_launch("batch_norm_update");
  }

 private:
  RunningAttrs attrs_;
};

std::unique_ptr<Prepared> prepare_parameters(const Problem& p) {
  return std::make_unique<BackwardParameters>(p.op.as<ScaleAttrs>().alpha);
}
std::unique_ptr<Prepared> prepare_update(const Problem& p) {
  return std::make_unique<UpdateRunning>(p.op.as<RunningAttrs>());
}

/// Vectors of a channel each.
Support supports_vectors(const Problem& p) {
  if (!capability()) return Support::no("no CUDA device is open");
  return p.in[1].dtype == DType::f32 ? Support::yes() : Support::no("keeps f32 state, found " + p.in[1].str());
}

}  // namespace

std::vector<KernelPtr> norm_cuda_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::channel_moments, even_floats, prepare_moments));
  list.push_back(kernel("cuda", OpKind::batch_norm, even_floats, prepare_forward));
  list.push_back(kernel("cuda", OpKind::batch_norm_sums, even_floats, prepare_sums));
  list.push_back(kernel("cuda", OpKind::batch_norm_backward_data, even_floats, prepare_backward_data));
  list.push_back(kernel("cuda", OpKind::batch_norm_backward_parameters, supports_vectors, prepare_parameters));
  list.push_back(kernel("cuda", OpKind::batch_norm_update, supports_vectors, prepare_update));
  return list;
}

}  // namespace convoy
