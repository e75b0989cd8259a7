// Batch normalisation on CUDA devices (Ioffe & Szegedy 2015), bound by memory: moments and gradient sums read their
// tensors once, what they find per channel is added up in f64 in the same order in every run.
#include "kernels/device/channel_sums.h"
#include "kernels/device/cluster_sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace norm_cuda {
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
    return 1 / sqrtf((variance > 0 ? variance : 0 * variance) + epsilon);  // fmaxf would lose a NaN
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
      const float value = output(own, k, value_of(v, k));
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
      const float d = value_of(v, k) - first.v[0][k];
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
    return relu && !(output(own, k, value_of(v.x, k)) > 0) ? 0.0f : value_of(v.dy, k);
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
      const float dy = this->passed(own, v, k), x = (value_of(v.x, k) - own.v[mean][k]) * own.v[inverse][k];
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
      out.v[k] = from_float<T>(own.v[scale][k] * dy - own.v[slope][k] * (value_of(v.x, k) - own.v[mean][k]));
    }
    dx.store(pixel, channel, out);
  }
};

template <class T, int width>
Gradient<T, width> gradient(const Problem& p, const KernelArgs& a) {
  return {pixels<const T>(a.in[0]), pixels<const T>(a.in[1]), statistics(p, a, 1), p.op.as<BatchNormAttrs>().relu != 0};
}

/// The two halves of a batch norm's pass: sums per channel, and what is made of each pixel by them. They are kernels of
/// two nodes; where those follow each other and images are small, one launch.
struct ForwardPass {
  static constexpr size_t read = 1;     ///< tensors of pixels, the first inputs of both
  static constexpr size_t sums_at = 3;  ///< which of the map's inputs are the sums
  template <class T, int width, class F>
  static void with_width(const KernelArgs& a, const Tensor& other, F&& f) {
    cuda::with_width<T, width>({&a.in[0], &other}, f);
  }
  template <class T, int width>
  static Differences<T, width> sums(const Problem&, const KernelArgs& a) {
    return {pixels<const T>(a.in[0])};
  }
  template <class T>
  static Moments<T> finish(const KernelArgs& a) {
    const Shape& s = a.in[0].shape();
    return {data<const T>(a.in[0]), 1 / double(s.rows()), data<double>(a.out[0]), int(s.c())};
  }
  template <class T, int width>
  static Forward<T, width> map(const Problem& p, const KernelArgs& a) {
    return {pixels<const T>(a.in[0]), pixels<T>(a.out[0]), statistics(p, a, 0), p.op.as<BatchNormAttrs>().relu != 0};
  }
};
struct BackwardPass {
  static constexpr size_t read = 2, sums_at = 5;
  template <class T, int width, class F>
  static void with_width(const KernelArgs& a, const Tensor& other, F&& f) {
    cuda::with_width<T, width>({&a.in[0], &a.in[1], &other}, f);
  }
  template <class T, int width>
  static GradientSums<T, width> sums(const Problem& p, const KernelArgs& a) {
    return {gradient<T, width>(p, a)};
  }
  template <class T>
  static Scaled<double> finish(const KernelArgs& a) {
    const Shape& s = a.in[0].shape();
    return {1 / double(s.rows()), data<double>(a.out[0]), int(s.c())};
  }
  template <class T, int width>
  static BackwardData<T, width> map(const Problem& p, const KernelArgs& a) {
    return {{gradient<T, width>(p, a)}, pixels<T>(a.out[0]), data<const double>(a.in[5])};
  }
};
template <class Pass>
class NormMap final : public Prepared {
 public:
  explicit NormMap(const Problem& p) : p_(p) {}
  void run(const KernelArgs& a) const override {
    const Shape& s = p_.in[0].shape;
    dispatch(p_.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      Pass::template with_width<T, channels_each>(a, a.out[0], [&](auto width) {
        queue_for_pixels<width>(s.rows(), s.c(), Pass::template map<T, width>(p_, a));
      });
    });
  }
  const Problem& problem() const { return p_; }

 private:
  Problem p_;
};

template <class Pass>
class NormSums final : public Joinable {
 public:
  explicit NormSums(const Problem& p)
      : p_(p), pixels_(p.in[0].shape.rows()), channels_(p.in[0].shape.c()), clusters_(code_capability() >= 90) {}
  int64_t workspace_bytes() const override { return channel_sum_bytes(pixels_, channels_, 2); }
  bool joins(const Prepared& next) const override {
    return clusters_ && pixels_ <= most_cluster_pixels(p_.in[0].dtype) && dynamic_cast<const NormMap<Pass>*>(&next);
  }
  void run_joined(std::span<const KernelRun> all) const override {
    size_t done = all.size() > 1 && queue_both(all[0].args, all[1]) ? 2 : 0;
    if (done == 0) queue_sums_alone(all[done++].args);
    for (; done < all.size(); ++done) all[done].kernel->run(all[done].args);
  }

 private:
  void queue_sums_alone(const KernelArgs& a) const {
    dispatch(p_.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      Pass::template with_width<T, channels_each>(a, a.in[0], [&](auto width) {
        queue_sums<width>(pixels_, channels_, Pass::template sums<T, width>(p_, a), Pass::template finish<T>(a),
                          a.workspace);
      });
    });
  }
  /// Whether the next node is the map that these sums are for, and both were queued.
  bool queue_both(const KernelArgs& a, const KernelRun& next) const {
    const auto* map = dynamic_cast<const NormMap<Pass>*>(next.kernel);
    const KernelArgs& b = next.args;
    bool fits = map && b.in[Pass::sums_at].bytes() == a.out[0].bytes();
    for (size_t i = 0; i < Pass::read; ++i) fits = fits && b.in[i].bytes() == a.in[i].bytes();
    if (!fits) return false;
    dispatch(p_.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      Pass::template with_width<T, channels_each>(a, b.out[0], [&](auto width) {
        fits = width > 1;
        if constexpr (width > 1)
          queue_sum_and_map<T, width>(pixels_, channels_, Pass::template sums<T, width>(p_, a),
                                      Pass::template finish<T>(a), Pass::template map<T, width>(map->problem(), b));
      });
    });
    return fits;
  }
  Problem p_;
  int64_t pixels_, channels_;
  bool clusters_;
};

template <class Half>
std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<Half>(p);
}

}  // namespace
}  // namespace norm_cuda

std::vector<KernelPtr> norm_cuda_kernels() {
  using namespace norm_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::channel_moments, even_sums, prepare<NormSums<ForwardPass>>));
  list.push_back(kernel("cuda", OpKind::batch_norm, even_floats, prepare<NormMap<ForwardPass>>));
  list.push_back(kernel("cuda", OpKind::batch_norm_sums, even_sums, prepare<NormSums<BackwardPass>>));
  list.push_back(kernel("cuda", OpKind::batch_norm_backward_data, even_floats, prepare<NormMap<BackwardPass>>));
  return list;
}

}  // namespace convoy
