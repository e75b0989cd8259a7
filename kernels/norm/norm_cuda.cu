// Batch normalisation on CUDA devices (Ioffe & Szegedy 2015), bound by memory: moments and gradient sums read their
// tensors once, what they find per channel is added up in f64 in the same order in every run.
#include "kernels/device/channel_sums.h"
#include "kernels/device/joined.h"
#include "kernels/norm/norm_cuda.h"

namespace convoy {
namespace {

using namespace cuda;

/// Of a thread: with eight of 16 bits, what belongs to them would fill its registers.
constexpr int channels_each = 4;

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

/// What a channel is shifted and scaled by, y = (x - mean)*scale + beta with scale = gamma/sqrt(variance + epsilon),
/// and behind that what else a functor wants of it.
enum Value { mean, scale, beta, more };
template <int values>
__device__ void normal(const Statistics& s, int channel, float inverse, float (&v)[values]) {
  v[mean] = s.mean(channel), v[scale] = s.gamma[channel] * inverse, v[beta] = s.beta[channel];
}
template <int values, int width>
__device__ float output(const OfChannels<values, width>& own, int k, float x) {
  return fmaf(x - own.v[mean][k], own.v[scale][k], own.v[beta][k]);
}

template <class T, int width>
struct Forward {
  static constexpr int values_of_channel = more;
  using Own = OfChannels<values_of_channel, width>;
  Pixels<const T> x;
  Pixels<T> y;
  Statistics statistics;
  bool relu;
  __device__ void of_channel(int c, float (&v)[more]) const { normal(statistics, c, statistics.inverse(c), v); }
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return x.template load<width>(pixel, channel); }
  __device__ void finish(const Own& own, const Pack<T, width>& v, int64_t pixel, int channel) const {
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) {
      const float value = output(own, k, to_float(v.v[k]));
      out.v[k] = from_float<T>(relu && value < 0 ? 0.0f : value);
    }
    y.store(pixel, channel, out);
  }
};

/// Sums of differences from the first pixel and of their squares: where a channel varies little around a large mean,
/// sums of its own squares in f32 would lose the variance.
template <class T, int width>
struct Differences {
  static constexpr int quantities = 2, values_of_channel = 1;
  Pixels<const T> x;
  __device__ void of_channel(int c, float (&v)[1]) const { v[0] = to_float(x.data[c]); }
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return x.template load<width>(pixel, channel); }
  __device__ void add(const OfChannels<1, width>& first, const Pack<T, width>& v, float (&sums)[2][width]) const {
    for (int k = 0; k < width; ++k) {
      const float d = to_float(v.v[k]) - first.v[0][k];
      sums[0][k] += d, sums[1][k] = fmaf(d, d, sums[1][k]);
    }
  }
};

/// Mean and mean square from those sums.
template <class T>
struct Moments {
  const T* first;
  double share;  ///< of a pixel
  double* out;
  int channels;
  __device__ void operator()(int c, const double (&sums)[2]) const {
    const double x = to_float(first[c]), d = share * sums[0];
    out[c] = x + d;
    out[channels + c] = x * x + 2 * x * d + share * sums[1];
  }
};

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
  template <int values>
  __device__ float passed(const OfChannels<values, width>& own, const Both<T, width>& v, int k) const {
    return relu && !(output(own, k, to_float(v.x.v[k])) > 0) ? 0.0f : to_float(v.dy.v[k]);
  }
};

template <class T, int width>
struct GradientSums : Gradient<T, width> {
  enum { inverse = more, values_of_channel };
  static constexpr int quantities = 2;
  using Own = OfChannels<values_of_channel, width>;
  __device__ void of_channel(int c, float (&v)[values_of_channel]) const {
    v[inverse] = this->statistics.inverse(c);
    normal(this->statistics, c, v[inverse], v);
  }
  __device__ void add(const Own& own, const Both<T, width>& v, float (&sums)[2][width]) const {
    for (int k = 0; k < width; ++k) {
      const float dy = this->passed(own, v, k), x = (to_float(v.x.v[k]) - own.v[mean][k]) * own.v[inverse][k];
      sums[0][k] += dy, sums[1][k] = fmaf(dy, x, sums[1][k]);
    }
  }
};

/// dx = scale*(dy - its mean) - slope*(x - mean), slope = scale/sqrt(variance + epsilon)*(mean of dy*normalised x).
template <class T, int width>
struct BackwardData : Gradient<T, width> {
  Pixels<T> dx;
  const double* sums;
  enum { gradient = more, slope, values_of_channel };
  using Own = OfChannels<values_of_channel, width>;
  __device__ void of_channel(int c, float (&v)[values_of_channel]) const {
    const float inverse = this->statistics.inverse(c);
    normal(this->statistics, c, inverse, v);
    v[gradient] = float(sums[c]);
    v[slope] = v[scale] * inverse * float(sums[this->statistics.channels + c]);
  }
  __device__ void finish(const Own& own, const Both<T, width>& v, int64_t pixel, int channel) const {
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) {
      const float dy = this->passed(own, v, k) - own.v[gradient][k];
      out.v[k] = from_float<T>(own.v[scale][k] * dy - own.v[slope][k] * (to_float(v.x.v[k]) - own.v[mean][k]));
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
          with_width<T, channels_each>({&a.in[0]}, [&](auto width) {
            queue_sums<width>(pixels_, channels, Differences<T, width>{x},
                              Moments<T>{x.data, 1 / double(pixels_), data<double>(a.out[0]), int(channels)},
                              a.workspace);
          });
        });
      },
      channel_sum_bytes(pixels_, channels, 2));
}

std::unique_ptr<Prepared> prepare_forward(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      with_width<T, channels_each>({&a.in[0], &a.out[0]}, [&](auto width) {
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
          with_width<T, channels_each>({&a.in[0], &a.in[1]}, [&](auto width) {
            queue_sums<width>(pixels_, channels, GradientSums<T, width>{gradient<T, width>(p, a)},
                              Scaled<double>{1 / double(pixels_), data<double>(a.out[0]), int(channels)}, a.workspace);
          });
        });
      },
      channel_sum_bytes(pixels_, channels, 2));
}

std::unique_ptr<Prepared> prepare_backward_data(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      with_width<T, channels_each>({&a.in[0], &a.in[1], &a.out[0]}, [&](auto width) {
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
