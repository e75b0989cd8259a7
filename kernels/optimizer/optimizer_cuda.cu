// State updates on CUDA devices: one pass over gradient, parameter and moments, 16 bytes to an instruction. What
// changes from step to step (rate, loss scale, finite flag) is read from the device's memory, so that recorded steps
// see it.
#include <cmath>

#include "core/tape.h"
#include "kernels/device/cuda.h"
#include "kernels/optimizer/optimizer_cuda.h"

namespace convoy {
namespace {

using namespace cuda;

constexpr int threads = 256;

/// What all updates read besides the gradient.
struct StepInputs {
  const double *step, *scale;
  const float* finite;
  StepInputs() = default;
  explicit StepInputs(const KernelArgs& a)
      : step(data<const double>(a.in[1])), scale(data<const double>(a.in[2])), finite(data<const float>(a.in[3])) {}
  __device__ float rate() const { return float(step[int(StepField::learning_rate)]); }
  __device__ float inverse_scale() const { return float(1 / scale[int(ScaleField::scale)]); }
};

/// Sums of squares of whole tensors, for LARC and LAMB: parts by one kernel, added by every block of the next, in the
/// same order each time.
constexpr int most_parts = 128;

template <class Terms>
__global__ void sum_terms(int64_t n, Terms terms, float2* parts) {
  float2 sum = make_float2(0, 0);
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads) {
    const float2 term = terms(i);
    sum.x += term.x, sum.y += term.y;
  }
  sum.x = block_sum(sum.x), sum.y = block_sum(sum.y);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

int parts_of(int64_t n) {
  return static_cast<int>(std::min<int64_t>(most_parts, (n + 8 * threads - 1) / (8 * threads)));
}

/// Both sums, on thread 0 of a block.
__device__ float2 add_up(const float2* parts, int count) {
  const float2 mine = threadIdx.x < count ? parts[threadIdx.x] : make_float2(0, 0);
  return make_float2(block_sum(mine.x), block_sum(mine.y));
}

struct SquaresOfTwo {
  const float *a, *b;
  __device__ float2 operator()(int64_t i) const { return make_float2(a[i] * a[i], b[i] * b[i]); }
};

/// What LARC multiplies a gradient by (SgdAttrs); without it 1.
struct Larc {
  float trust, epsilon;
  const float2* parts;  ///< squares of parameter and gradient
  int count;
  /// On thread 0; all threads of a block call it.
  __device__ float factor(float rate, float inverse_scale) const {
    if (trust == 0) return 1;
    const float2 squares = add_up(parts, count);
    if (squares.x == 0 || rate == 0) return 1;
    return fminf(1, trust * sqrtf(squares.x) / fmaxf(sqrtf(squares.y) * inverse_scale, epsilon) / rate);
  }
};

struct Sgd {
  StepInputs in;
  Larc larc;
  float momentum;
  bool nesterov;
  float *w, *v;
  struct Factors {
    float rate;
  };
  __device__ Factors factors(float larc_factor) const { return {in.rate() * in.inverse_scale() * larc_factor}; }
  __device__ void update(const Factors& f, int64_t i, float g) const {
    const float step = f.rate * g, velocity = momentum * v[i] - step;
    v[i] = velocity;
    w[i] += nesterov ? momentum * velocity - step : velocity;
  }
};

/// Adam's moments and direction, which LAMB shares.
struct Moments {
  double beta1, beta2;
  float epsilon, weight_decay;
  float *w, *m, *v;
  struct Corrections {
    float c1, c2;
  };
  __device__ Corrections corrections(const StepInputs& in) const {
    const double t = in.scale[int(ScaleField::applied)] + 1;
    return {float(1 / (1 - pow(beta1, t))), float(1 / (1 - pow(beta2, t)))};
  }
  __device__ void advance(int64_t i, float g) const {
    m[i] = float(beta1) * m[i] + float(1 - beta1) * g;
    v[i] = float(beta2) * v[i] + float(1 - beta2) * g * g;
  }
  __device__ float direction(const Corrections& c, int64_t i) const {
    return m[i] * c.c1 / (sqrtf(v[i] * c.c2) + epsilon) + weight_decay * w[i];
  }
};

struct Adam {
  StepInputs in;
  Larc larc;
  Moments moments;
  float l2;
  struct Factors {
    float gradient, rate;
    Moments::Corrections corrections;
  };
  __device__ Factors factors(float larc_factor) const {
    return {in.inverse_scale() * larc_factor, in.rate(), moments.corrections(in)};
  }
  __device__ void update(const Factors& f, int64_t i, float gradient) const {
    moments.advance(i, gradient * f.gradient + l2 * moments.w[i]);
    moments.w[i] -= f.rate * moments.direction(f.corrections, i);
  }
};

/// The tensors of one launch: every block takes `chunk` elements of one of them.
constexpr int most_tensors = 24, chunk = 16 * threads;
template <class Update>
struct Batch {
  Update update[most_tensors];
  const float* gradient[most_tensors];
  int64_t elements[most_tensors];
  int first_block[most_tensors + 1];
  int count;
};

/// A step whose gradients are not finite leaves everything as it was.
template <class Update>
__global__ void update(const __grid_constant__ Batch<Update> batch) {
  int t = 0;
  while (int(blockIdx.x) >= batch.first_block[t + 1]) ++t;
  const Update& u = batch.update[t];
  if (*u.in.finite == 0) return;
  __shared__ typename Update::Factors factors;  // of powers in double, which every thread would wait for
  const float larc_factor = u.larc.factor(u.in.rate(), u.in.inverse_scale());
  if (threadIdx.x == 0) factors = u.factors(larc_factor);
  __syncthreads();
  const float* g = batch.gradient[t];
  const int64_t begin = int64_t(blockIdx.x - batch.first_block[t]) * chunk, end = min(begin + chunk, batch.elements[t]);
  for (int64_t i = begin + threadIdx.x; i < end; i += threads) u.update(factors, i, g[i]);
}

Support supports_update(const Problem& p) {
  for (const TensorDesc& desc : p.in)
    if (!desc.dense()) return Support::no("dense tensors only");
  return p.in[0].dtype == DType::f32 ? Support::yes() : Support::no("f32 only");
}

/// The sums that LARC needs are queued where it is on.
Larc queue_larc(const KernelArgs& a, double trust, double epsilon) {
  auto* parts = reinterpret_cast<float2*>(a.workspace);
  const int64_t n = a.in[0].shape().elements();
  if (trust > 0) {
    sum_terms<<<parts_of(n), threads, 0, stream()>>>(
        n, SquaresOfTwo{data<const float>(a.out[0]), data<const float>(a.in[0])}, parts);
    check_launch("norms");
  }
  return {float(trust), float(epsilon), parts, parts_of(n)};
}
constexpr int64_t parts_bytes = most_parts * int64_t(sizeof(float2));

Sgd update_of(const SgdAttrs& t, const KernelArgs& a) {
  return {StepInputs(a),         queue_larc(a, t.larc, t.larc_epsilon),
          float(t.momentum),     t.nesterov != 0,
          data<float>(a.out[0]), data<float>(a.out[1])};
}
Adam update_of(const AdamAttrs& t, const KernelArgs& a) {
  return {StepInputs(a), queue_larc(a, t.larc, t.larc_epsilon),
          Moments{t.beta1, t.beta2, float(t.epsilon), float(t.weight_decay), data<float>(a.out[0]),
                  data<float>(a.out[1]), data<float>(a.out[2])},
          float(t.l2)};
}

/// Updates of parameters one after the other in the plan are one launch (per 24 of them).
template <class Attrs>
class Updates final : public Joinable {
 public:
  explicit Updates(const Attrs& attrs) : attrs_(attrs) {}
  int64_t workspace_bytes() const override { return attrs_.larc > 0 ? parts_bytes : 0; }
  bool joins(const Prepared& next) const override {
    const auto* other = dynamic_cast<const Updates*>(&next);
    return other && other->attrs_ == attrs_;
  }
  void run_joined(std::span<const KernelArgs> all) const override {
    for (size_t first = 0; first < all.size(); first += most_tensors)
      launch(all.subspan(first, std::min<size_t>(most_tensors, all.size() - first)));
  }

 private:
  using Update = decltype(update_of(Attrs(), std::declval<const KernelArgs&>()));
  void launch(std::span<const KernelArgs> all) const {
    auto batch = std::make_unique<Batch<Update>>();
    batch->count = int(all.size());
    int blocks = 0;
    for (size_t t = 0; t < all.size(); ++t) {
      const int64_t n = all[t].in[0].shape().elements();
      batch->update[t] = update_of(attrs_, all[t]), batch->gradient[t] = data<const float>(all[t].in[0]);
      batch->elements[t] = n, batch->first_block[t] = blocks;
      blocks += int((n + chunk - 1) / chunk);
    }
    batch->first_block[all.size()] = blocks;
    update<<<static_cast<unsigned>(blocks), threads, 0, stream()>>>(*batch);
    check_launch("updates");
  }
  Attrs attrs_;
};

std::unique_ptr<Prepared> prepare_sgd(const Problem& p) {
  return std::make_unique<Updates<SgdAttrs>>(p.op.as<SgdAttrs>());
}
std::unique_ptr<Prepared> prepare_adam(const Problem& p) {
  return std::make_unique<Updates<AdamAttrs>>(p.op.as<AdamAttrs>());
}

/// First pass of LAMB: moments, and the parts of |w|^2 and |u|^2.
__global__ void lamb_moments(int64_t n, const float* g, const double* all_norm, float most, StepInputs in,
                             Moments moments, float2* parts) {
  if (*in.finite == 0) return;
  __shared__ Moments::Corrections corrections;
  if (threadIdx.x == 0) corrections = moments.corrections(in);
  __syncthreads();
  const float clip = in.inverse_scale() * (most > 0 ? fminf(1, most / float(*all_norm)) : 1);
  float2 sum = make_float2(0, 0);
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads) {
    moments.advance(i, g[i] * clip);
    const float u = moments.direction(corrections, i), w = moments.w[i];
    sum.x += w * w, sum.y += u * u;
  }
  sum.x = block_sum(sum.x), sum.y = block_sum(sum.y);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void lamb_step(int64_t n, StepInputs in, Moments moments, const float2* parts, int count) {
  if (*in.finite == 0) return;
  __shared__ Moments::Corrections corrections;
  __shared__ float rate;
  const float2 squares = add_up(parts, count);
  if (threadIdx.x == 0) {
    corrections = moments.corrections(in);
    rate = in.rate() * (squares.x > 0 && squares.y > 0 ? sqrtf(squares.x / squares.y) : 1);
  }
  __syncthreads();
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads)
    moments.w[i] -= rate * moments.direction(corrections, i);
}

std::unique_ptr<Prepared> prepare_lamb(const Problem& p) {
  return prepared(
      [p](const KernelArgs& a) {
        const auto& t = p.op.as<LambAttrs>();
        const int64_t n = p.in[0].shape.elements();
        auto* parts = reinterpret_cast<float2*>(a.workspace);
        const Moments moments{t.beta1,
                              t.beta2,
                              float(t.epsilon),
                              float(t.weight_decay),
                              data<float>(a.out[0]),
                              data<float>(a.out[1]),
                              data<float>(a.out[2])};
        lamb_moments<<<parts_of(n), threads, 0, stream()>>>(n, data<const float>(a.in[0]), data<const double>(a.in[4]),
                                                            float(t.max_grad_norm), StepInputs(a), moments, parts);
        lamb_step<<<grid_for((n + 3) / 4, threads), threads, 0, stream()>>>(n, StepInputs(a), moments, parts,
                                                                            parts_of(n));
        check_launch("lamb_update");
      },
      parts_bytes);
}

struct Squares {
  const float* x;
  __device__ float2 operator()(int64_t i) const { return make_float2(x[i] * x[i], 0); }
};

__global__ void root_of_parts(int tensors, const float2* parts, const double* scale, double* out) {
  double sum = 0;
  for (int t = 0; t < tensors; ++t) sum += double(add_up(parts + t * most_parts, most_parts).x);
  if (threadIdx.x == 0) *out = sqrt(sum) / scale[int(ScaleField::scale)];
}

std::unique_ptr<Prepared> prepare_gradient_norm(const Problem& p) {
  const int tensors = int(p.in.size()) - 1;
  return prepared(
      [p, tensors](const KernelArgs& a) {
        auto* parts = reinterpret_cast<float2*>(a.workspace);
        check(cudaMemsetAsync(parts, 0, static_cast<size_t>(tensors * parts_bytes), stream()), "clearing parts");
        for (int t = 0; t < tensors; ++t) {
          const int64_t n = p.in[size_t(t)].shape.elements();
          sum_terms<<<parts_of(n), threads, 0, stream()>>>(n, Squares{data<const float>(a.in[size_t(t)])},
                                                           parts + t * most_parts);
        }
        root_of_parts<<<1, threads, 0, stream()>>>(tensors, parts, data<const double>(a.in[size_t(tensors)]),
                                                   data<double>(a.out[0]));
        check_launch("gradient_norm");
      },
      tensors * parts_bytes);
}

__global__ void loss_scale(LossScaleAttrs a, const float* finite, double* state) {
  double &scale = state[int(ScaleField::scale)], &good = state[int(ScaleField::good_steps)];
  if (*finite != 0) {
    state[int(ScaleField::applied)] += 1;
    good += 1;
    if (good >= double(a.interval)) scale *= a.growth, good = 0;
  } else {
    state[int(ScaleField::skipped)] += 1;
    scale *= a.backoff;
    good = 0;
  }
}

std::unique_ptr<Prepared> prepare_loss_scale(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    loss_scale<<<1, 1, 0, stream()>>>(p.op.as<LossScaleAttrs>(), data<const float>(a.in[0]), data<double>(a.out[0]));
    check_launch("loss_scale_update");
  });
}

__global__ void accumulate(int64_t n, const float* g, const double* step, float* sum) {
  const bool first = step[int(StepField::micro_step)] == 0;
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n; i += int64_t(gridDim.x) * threads)
    sum[i] = g[i] + (first ? 0.0f : sum[i]);
}

std::unique_ptr<Prepared> prepare_accumulate(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    const int64_t n = p.in[0].shape.elements();
    accumulate<<<grid_for(n, threads), threads, 0, stream()>>>(n, data<const float>(a.in[0]),
                                                               data<const double>(a.in[1]), data<float>(a.out[0]));
    check_launch("accumulate");
  });
}

std::unique_ptr<Prepared> prepare_assign(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    check(cudaMemcpyAsync(a.out[0].bytes(), a.in[0].bytes(), static_cast<size_t>(p.in[0].bytes()),
                          cudaMemcpyDeviceToDevice, stream()),
          "assign");
  });
}

}  // namespace

std::vector<KernelPtr> optimizer_cuda_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::sgd_update, supports_update, prepare_sgd));
  list.push_back(kernel("cuda", OpKind::adam_update, supports_update, prepare_adam));
  list.push_back(kernel("cuda", OpKind::lamb_update, supports_update, prepare_lamb));
  list.push_back(kernel("cuda", OpKind::gradient_norm, supports_update, prepare_gradient_norm));
  list.push_back(kernel("cuda", OpKind::assign, supports_update, prepare_assign));
  list.push_back(kernel("cuda", OpKind::accumulate, supports_update, prepare_accumulate));
  list.push_back(kernel(
      "cuda", OpKind::loss_scale_update, [](const Problem&) { return Support::yes(); }, prepare_loss_scale));
  return list;
}

}  // namespace convoy
