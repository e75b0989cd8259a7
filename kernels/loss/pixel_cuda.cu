// Softmax cross-entropy, plain or focal, and the predicted class on CUDA devices: a pixel to a thread, in f32, sums
// over pixels in f64 in the same order in every run.
#include "core/tape.h"
#include "kernels/device/last_block.h"
#include "kernels/device/pixels.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace pixel_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256;

/// The loss as a kernel takes it; classes beyond the eight that have weights of their own weigh 1, or 0 where some do.
struct Setting {
  int classes, ignore;
  bool focal, weighted;
  float gamma, weights[8];
  /// 0 for ignored pixels, not a number for a label that no class has.
  __device__ float weight(int label) const {
    if (label == ignore) return 0;
    if (label >= classes) return __int_as_float(0x7fc00000);
    return !weighted ? 1.0f : label < 8 ? weights[label] : 0.0f;
  }
};

Setting setting(const Problem& p) {
  const auto& a = p.op.as<PixelLossAttrs>();
  Setting s{int(p.in[0].shape.c()),
            int(std::clamp<int64_t>(a.ignore, -1, 256)),
            a.loss == PixelLoss::focal,
            a.weights.given(),
            float(a.gamma),
            {}};
  for (int64_t k = 0; k < 8; ++k) s.weights[k] = float(a.weights[k]);
  return s;
}

double share(const Problem& p) {
  return p.op.as<PixelLossAttrs>().reduction == Reduction::mean ? 1 / double(p.in[0].shape.rows()) : 1.0;
}

/// Of one pixel: the largest logit, and the sum of all classes' exponentials but for the label's.
struct Softmax {
  float largest, own = 0, others = 0;
  __device__ Softmax(const float* logits, int classes, int label) : largest(logits[0]) {
    for (int k = 1; k < classes; ++k) largest = fmaxf(largest, logits[k]);
    for (int k = 0; k < classes; ++k) (k == label ? own : others) += expf(logits[k] - largest);
  }
  __device__ float sum() const { return own + others; }
  __device__ float missing() const { return others / sum(); }  ///< 1 - probability of the label
};

__device__ float log_probability(const Softmax& s, float logit) {
  return logit - s.largest - logf(s.sum());
}

/// factor * the sum over all pixels; one column of blocks.
__global__ void loss(int64_t pixels, Setting set, const float* logits, const uint8_t* labels, double* parts,
                     double factor, float* out) {
  double sum = 0;
  for (int64_t i = int64_t(blockIdx.y) * threads + threadIdx.x; i < pixels; i += int64_t(gridDim.y) * threads) {
    const int label = labels[i];
    const float weight = set.weight(label);
    if (weight == 0) continue;
    if (isnan(weight)) {
      sum = double(weight);
      continue;
    }
    const float* x = logits + i * set.classes;
    const Softmax s(x, set.classes, label);
    const float term = weight * log_probability(s, x[label]);
    sum -= double(set.focal ? term * powf(s.missing(), set.gamma) : term);
  }
  leave_sum<threads>(sum, parts, factor, out);
}

__global__ void loss_backward(int64_t pixels, Setting set, const float* logits, const uint8_t* labels,
                              const double* scale, double share, float* out) {
  const float factor = float(scale[int(ScaleField::scale)] * share);
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < pixels; i += int64_t(gridDim.x) * threads) {
    const int label = labels[i];
    const float weight = set.weight(label);
    const float* x = logits + i * set.classes;
    float* d = out + i * set.classes;
    if (weight == 0) {
      for (int k = 0; k < set.classes; ++k) d[k] = 0;
      continue;
    }
    const Softmax s(x, set.classes, label);
    float slope = -1;  // d(loss)/d(log of the label's probability)
    if (set.focal && !isnan(weight)) {
      const float own = s.own / s.sum(), missing = s.missing();
      // Where the logarithm rounds to 0, the power of what is missing may be infinite.
      const float logarithm = log_probability(s, x[label]);
      const bool counts = set.gamma > 0 && missing > 0 && logarithm != 0;
      slope = (counts ? set.gamma * powf(missing, set.gamma - 1) * own * logarithm : 0.0f) - powf(missing, set.gamma);
    }
    const float each = factor * weight * slope;
    for (int k = 0; k < set.classes; ++k)
      d[k] = k == label ? each * s.missing() : -each * expf(x[k] - s.largest) / s.sum();
  }
}

template <class T>
__global__ void arg_max(int64_t pixels_, int classes, Pixels<const T> x, uint8_t* out, int64_t pitch) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < pixels_; i += int64_t(gridDim.x) * threads) {
    const T* logits = x.data + i * x.pitch;
    int best = 0;
    for (int k = 1; k < classes; ++k)
      if (to_float(logits[k]) > to_float(logits[best])) best = k;
    out[i * pitch] = uint8_t(best);
  }
}

Support supports_loss(const Problem& p) {
  if (p.in[0].dtype != DType::f32) return Support::no("f32 only");
  return dense_floats(p);
}

int blocks_of(const Problem& p) {
  return std::min(grid_for(p.in[0].shape.rows(), threads), 1024);
}

std::unique_ptr<Prepared> prepare_loss(const Problem& p) {
  return prepared(
      [p](const KernelArgs& a) {
        auto* parts = reinterpret_cast<double*>(a.workspace);
        loss<<<dim3(1, static_cast<unsigned>(blocks_of(p))), threads, 0, stream()>>>(
            p.in[0].shape.rows(), setting(p), data<const float>(a.in[0]), data<const uint8_t>(a.in[1]), parts, share(p),
            data<float>(a.out[0]));
        check_launch("pixel_loss");
      },
      8 * blocks_of(p));
}

std::unique_ptr<Prepared> prepare_loss_backward(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    const int64_t pixels = p.in[0].shape.rows();
    loss_backward<<<grid_for(pixels, threads), threads, 0, stream()>>>(
        pixels, setting(p), data<const float>(a.in[0]), data<const uint8_t>(a.in[1]), data<const double>(a.in[2]),
        share(p), data<float>(a.out[0]));
    check_launch("pixel_loss_backward");
  });
}

std::unique_ptr<Prepared> prepare_arg_max(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    const int64_t count = p.in[0].shape.rows();
    dispatch(p.in[0].dtype, [&](auto zero) {
      arg_max<<<grid_for(count, threads), threads, 0, stream()>>>(
          count, int(p.in[0].shape.c()), pixels<const decltype(zero)>(a.in[0]), data<uint8_t>(a.out[0]),
          a.out[0].desc().pixel_pitch());
    });
    check_launch("arg_max");
  });
}

}  // namespace
}  // namespace pixel_cuda

std::vector<KernelPtr> pixel_cuda_kernels() {
  using namespace pixel_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::pixel_loss, supports_loss, prepare_loss));
  list.push_back(kernel("cuda", OpKind::pixel_loss_backward, supports_loss, prepare_loss_backward));
  list.push_back(kernel("cuda", OpKind::arg_max, even_floats, prepare_arg_max));
  return list;
}

}  // namespace convoy
