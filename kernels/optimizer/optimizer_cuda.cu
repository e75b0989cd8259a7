// State updates on CUDA devices: one pass over gradient, parameter and moments. What changes from step to step (rate,
// loss scale, finite flag) is read from the device's memory, so that recorded steps see it.
#include <cmath>

#include "kernels/device/cuda.h"
#include "kernels/optimizer/loss_scale.h"
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

struct Sgd {
  StepInputs in;
  float momentum;
  bool nesterov;
  float *w, *v;
  struct Factors {
    float rate;
  };
  __device__ Factors factors() const { return {in.rate() * in.inverse_scale()}; }
  __device__ void update(const Factors& f, int64_t i, float g) const {
    const float step = f.rate * g, velocity = momentum * v[i] - step;
    v[i] = velocity;
    w[i] += nesterov ? momentum * velocity - step : velocity;
  }
};

struct Adam {
  StepInputs in;
  double beta1, beta2;
  float epsilon, weight_decay, l2;
  float *w, *m, *v;
  struct Factors {
    float inverse_scale, rate, c1, c2;
  };
  __device__ Factors factors() const {
    const double t = in.scale[int(ScaleField::applied)] + 1;
    return {in.inverse_scale(), in.rate(), float(1 / (1 - pow(beta1, t))), float(1 / (1 - pow(beta2, t)))};
  }
  __device__ void update(const Factors& f, int64_t i, float gradient) const {
    const float weight = w[i], g = gradient * f.inverse_scale + l2 * weight;
    const float mean = float(beta1) * m[i] + float(1 - beta1) * g,
                square = float(beta2) * v[i] + float(1 - beta2) * g * g;
    m[i] = mean, v[i] = square;
    w[i] = weight - f.rate * (mean * f.c1 / (sqrtf(square * f.c2) + epsilon) + weight_decay * weight);
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
};

/// A step whose gradients are not finite leaves everything as it was.
template <class Update>
__global__ void update(const __grid_constant__ Batch<Update> batch) {
  int t = 0;
  while (int(blockIdx.x) >= batch.first_block[t + 1]) ++t;
  const Update& u = batch.update[t];
  if (*u.in.finite == 0) return;
  __shared__ typename Update::Factors factors;  // of powers in double, which every thread would wait for
  if (threadIdx.x == 0) factors = u.factors();
  __syncthreads();
  const float* g = batch.gradient[t];
  const int64_t begin = int64_t(blockIdx.x - batch.first_block[t]) * chunk, end = min(begin + chunk, batch.elements[t]);
  for (int64_t i = begin + threadIdx.x; i < end; i += threads) u.update(factors, i, g[i]);
}

Support supports_update(const Problem& p) {
  const auto* sgd = std::get_if<SgdAttrs>(&p.op.attrs);
  const auto* adam = std::get_if<AdamAttrs>(&p.op.attrs);
  if ((sgd && sgd->larc > 0) || (adam && adam->larc > 0)) return Support::no("no LARC");
  return p.in[0].dtype == DType::f32 ? dense_floats(p) : Support::no("f32 only");
}

Sgd update_of(const SgdAttrs& t, const KernelArgs& a) {
  return {StepInputs(a), float(t.momentum), t.nesterov != 0, data<float>(a.out[0]), data<float>(a.out[1])};
}
Adam update_of(const AdamAttrs& t, const KernelArgs& a) {
  return {StepInputs(a),
          t.beta1,
          t.beta2,
          float(t.epsilon),
          float(t.weight_decay),
          float(t.l2),
          data<float>(a.out[0]),
          data<float>(a.out[1]),
          data<float>(a.out[2])};
}

/// Updates of parameters one after the other in the plan are one launch (per 24 of them).
template <class Attrs>
class Updates final : public Joinable {
 public:
  explicit Updates(const Attrs& attrs) : attrs_(attrs) {}
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

__global__ void loss_scale(LossScaleAttrs a, const float* finite, double* state) {
  advance_loss_scale(a, *finite != 0, state);
}

std::unique_ptr<Prepared> prepare_loss_scale(const Problem& p) {
  return prepared([p](const KernelArgs& a) {
    loss_scale<<<1, 1, 0, stream()>>>(p.op.as<LossScaleAttrs>(), data<const float>(a.in[0]), data<double>(a.out[0]));
    check_launch("loss_scale_update");
  });
}

}  // namespace

std::vector<KernelPtr> optimizer_cuda_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::sgd_update, supports_update, prepare_sgd));
  list.push_back(kernel("cuda", OpKind::adam_update, supports_update, prepare_adam));
  list.push_back(kernel(
      "cuda", OpKind::loss_scale_update, [](const Problem&) { return Support::yes(); }, prepare_loss_scale));
  return list;
}

}  // namespace convoy
