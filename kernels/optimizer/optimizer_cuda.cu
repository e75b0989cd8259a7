// State updates on CUDA devices: one pass over gradient, parameter and moments, two where LARC or LAMB need norms; the
// norm of all gradients, and their sums over several passes. What changes from step to step (rate, loss scale, finite
// flag) is read from the device's memory, so that recorded steps see it.
#include <cmath>

#include "kernels/device/early.h"
#include "kernels/device/joined.h"
#include "kernels/function_kernel.h"
#include "kernels/optimizer/loss_scale.h"

namespace convoy {
namespace optimizer_cuda {
namespace {

using namespace cuda;

constexpr int threads = cut_threads;

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

/// Two sums over a whole tensor, for the norms of LARC and LAMB: a first launch leaves a pair per block, which all
/// blocks of the second add up in the same order.
struct Sums {
  float2* parts;
  int count;
  /// On thread 0; all threads of a block call it.
  __device__ float2 total() const {
    float2 sum = make_float2(0, 0);
    if (count == 0) return sum;
    for (int i = threadIdx.x; i < count; i += threads) sum.x += parts[i].x, sum.y += parts[i].y;
    return make_float2(block_sum(sum.x), block_sum(sum.y));
  }
};

/// What LARC multiplies a gradient by (SgdAttrs), of the squares of parameter and (scaled) gradient; 1 without it.
struct Larc {
  float trust, epsilon;
  __device__ float factor(const StepInputs& in, float2 squares) const {
    if (trust == 0 || in.rate() == 0) return 1;
    const float gradient = sqrtf(squares.y) * in.inverse_scale();
    const float local = squares.x > 0 && gradient > 0 ? trust * sqrtf(squares.x) / gradient : epsilon;
    return fminf(1, local / in.rate());
  }
};

/// n floats that follow each other, by one instruction; states and gradients begin at multiples of 64 bytes.
template <int n>
__device__ Pack<float, n>& floats(float* from, int64_t i) {
  return *reinterpret_cast<Pack<float, n>*>(from + i);
}

// An update says what it needs per tensor (`factors`, of its sums), what its first launch adds up (`terms`, which may
// change its moments) and what the last one does with an element (`update`).

struct Sgd {
  using Attrs = SgdAttrs;
  StepInputs in;
  Larc larc;
  float momentum;
  float *w, *v;
  Sgd() = default;
  Sgd(const Attrs& t, const KernelArgs& a)
      : in(a),
        larc{float(t.larc), float(t.larc_epsilon)},
        momentum(float(t.momentum)),
        w(data<float>(a.out[0])),
        v(data<float>(a.out[1])) {}
  static bool sums(const Attrs& t) { return t.larc > 0; }
  struct Factors {
    float rate;
  };
  __device__ Factors factors(float2 squares) const {
    return {in.rate() * in.inverse_scale() * larc.factor(in, squares)};
  }
  struct Values {
    float w, v;
  };
  template <int n>
  __device__ void load(int64_t i, Values (&x)[n]) const {
    const Pack<float, n> ws = floats<n>(w, i), vs = floats<n>(v, i);
    for (int k = 0; k < n; ++k) x[k] = {ws.v[k], vs.v[k]};
  }
  template <int n>
  __device__ void store(int64_t i, const Values (&x)[n]) const {
    Pack<float, n> ws, vs;
    for (int k = 0; k < n; ++k) ws.v[k] = x[k].w, vs.v[k] = x[k].v;
    floats<n>(w, i) = ws, floats<n>(v, i) = vs;
  }
  static constexpr bool first_pass_stores = false;
  __device__ float2 terms(const Factors&, Values& x, float g) const { return make_float2(x.w * x.w, g * g); }
  __device__ void update(const Factors& f, Values& x, float g) const {
    const float step = f.rate * g;
    x.v = momentum * x.v - step;
    x.w += x.v;
  }
};

/// Adam's moments and direction, which LAMB shares.
struct Moments {
  double beta1, beta2;
  float epsilon, weight_decay;
  float *w, *m, *v;
  Moments() = default;
  template <class Attrs>
  Moments(const Attrs& t, const KernelArgs& a)
      : beta1(t.beta1),
        beta2(t.beta2),
        epsilon(float(t.epsilon)),
        weight_decay(float(t.weight_decay)),
        w(data<float>(a.out[0])),
        m(data<float>(a.out[1])),
        v(data<float>(a.out[2])) {}
  struct Corrections {
    float c1, c2;
  };
  __device__ Corrections corrections(const StepInputs& in) const {
    const double t = in.scale[int(ScaleField::applied)] + 1;
    return {float(1 / (1 - pow(beta1, t))), float(1 / (1 - pow(beta2, t)))};
  }
  struct Values {
    float w, m, v;
  };
  template <int n>
  __device__ void load(int64_t i, Values (&x)[n]) const {
    const Pack<float, n> ws = floats<n>(w, i), ms = floats<n>(m, i), vs = floats<n>(v, i);
    for (int k = 0; k < n; ++k) x[k] = {ws.v[k], ms.v[k], vs.v[k]};
  }
  template <int n>
  __device__ void store(int64_t i, const Values (&x)[n]) const {
    Pack<float, n> ws, ms, vs;
    for (int k = 0; k < n; ++k) ws.v[k] = x[k].w, ms.v[k] = x[k].m, vs.v[k] = x[k].v;
    floats<n>(w, i) = ws, floats<n>(m, i) = ms, floats<n>(v, i) = vs;
  }
  __device__ void advance(Values& x, float g) const {
    x.m = float(beta1) * x.m + float(1 - beta1) * g;
    x.v = float(beta2) * x.v + float(1 - beta2) * g * g;
  }
  __device__ float direction(const Corrections& c, const Values& x) const {
    return x.m * c.c1 / (sqrtf(x.v * c.c2) + epsilon) + weight_decay * x.w;
  }
};

struct Adam : Moments {
  using Attrs = AdamAttrs;
  StepInputs in;
  Larc larc;
  float l2;
  Adam() = default;
  Adam(const Attrs& t, const KernelArgs& a)
      : Moments(t, a), in(a), larc{float(t.larc), float(t.larc_epsilon)}, l2(float(t.l2)) {}
  static bool sums(const Attrs& t) { return t.larc > 0; }
  struct Factors {
    float gradient, rate;
    Corrections corrections;
  };
  __device__ Factors factors(float2 squares) const {
    return {in.inverse_scale() * larc.factor(in, squares), in.rate(), corrections(in)};
  }
  static constexpr bool first_pass_stores = false;
  __device__ float2 terms(const Factors&, Values& x, float g) const { return make_float2(x.w * x.w, g * g); }
  __device__ void update(const Factors& f, Values& x, float gradient) const {
    advance(x, gradient * f.gradient + l2 * x.w);
    x.w -= f.rate * direction(f.corrections, x);
  }
};

/// Its first launch moves the moments; the squares are those of parameter and direction.
struct Lamb : Moments {
  using Attrs = LambAttrs;
  StepInputs in;
  const double* all_norm;
  float most;
  Lamb() = default;
  Lamb(const Attrs& t, const KernelArgs& a)
      : Moments(t, a), in(a), all_norm(data<const double>(a.in[4])), most(float(t.max_grad_norm)) {}
  static bool sums(const Attrs&) { return true; }
  struct Factors {
    float gradient, rate;
    Corrections corrections;
  };
  __device__ Factors factors(float2 squares) const {
    const float clip = most > 0 ? fminf(1, most / float(*all_norm)) : 1;
    // Roots first: behind some hundred gradients of zeros the quotient of the squares is beyond f32.
    const float ratio = squares.x > 0 && squares.y > 0 ? sqrtf(squares.x) / sqrtf(squares.y) : 1;
    return {in.inverse_scale() * clip, in.rate() * ratio, corrections(in)};
  }
  static constexpr bool first_pass_stores = true;
  __device__ float2 terms(const Factors& f, Values& x, float g) const {
    advance(x, g * f.gradient);
    const float step = direction(f.corrections, x);
    return make_float2(x.w * x.w, step * step);
  }
  __device__ void update(const Factors& f, Values& x, float) const { x.w -= f.rate * direction(f.corrections, x); }
};

constexpr int most_tensors = 24;

template <class Update>
struct Batch {
  Cut<most_tensors> cut;
  Update update[most_tensors];
  Sums sums[most_tensors];  ///< none: no parts
};

/// Leaves a block's sums where the second launch finds them.
__device__ void leave_sums(float2 sum, float2* part) {
  sum.x = block_sum(sum.x), sum.y = block_sum(sum.y);
  if (threadIdx.x == 0) *part = sum;
}

/// f(values, gradient) of a block's elements, which it stores then if asked to: four neighbours to a thread, two such
/// packs of them on their way at once; the first of them already while thread 0 makes the factors that f reads. A step
/// whose gradients are not finite leaves everything as it was.
template <bool stores, class Update, class F>
__device__ void for_elements(const Update& u, const Share& share, const float* g, F&& f) {
  constexpr int pack = 4, ahead = 2;
  using Values = typename Update::Values;
  const bool finite = *u.in.finite != 0;
  Values values[ahead][pack];
  Pack<float, pack> gradients[ahead];
  const int64_t packs_end = share.begin + (share.end - share.begin) / pack * pack;
  const auto load = [&](int64_t first) {
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (const int64_t i = first + k * threads * pack; i < packs_end)
        u.load(i, values[k]), gradients[k] = *reinterpret_cast<const Pack<float, pack>*>(g + i);
  };
  int64_t first = share.begin + int64_t(threadIdx.x) * pack;
  load(first);
  __syncthreads();
  if (!finite) return;
  while (first < packs_end) {
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (const int64_t i = first + k * threads * pack; i < packs_end) {
        for (int e = 0; e < pack; ++e) f(values[k][e], gradients[k].v[e]);
        if (stores) u.store(i, values[k]);
      }
    first += ahead * threads * pack;
    load(first);
  }
  if (const int64_t i = packs_end + threadIdx.x; i < share.end) {
    Values last[1];
    u.load(i, last);
    f(last[0], g[i]);
    if (stores) u.store(i, last);
  }
}

template <class Update>
__global__ void first_pass(const __grid_constant__ Batch<Update> batch) {
  await_kernel_ahead();
  const Share share(batch.cut);
  const Update& u = batch.update[share.tensor];
  __shared__ typename Update::Factors factors;  // of powers in double, which every thread would wait for
  if (threadIdx.x == 0) factors = u.factors(make_float2(0, 0));
  float2 sum = make_float2(0, 0);
  for_elements<Update::first_pass_stores>(u, share, batch.cut.from[share.tensor],
                                          [&](typename Update::Values& x, float g) {
                                            const float2 term = u.terms(factors, x, g);
                                            sum.x += term.x, sum.y += term.y;
                                          });
  leave_sums(sum, batch.sums[share.tensor].parts + (blockIdx.x - batch.cut.first_block[share.tensor]));
}

template <class Update>
__global__ void last_pass(const __grid_constant__ Batch<Update> batch) {
  await_kernel_ahead();
  const Share share(batch.cut);
  const Update& u = batch.update[share.tensor];
  __shared__ typename Update::Factors factors;
  const float2 squares = batch.sums[share.tensor].total();
  if (threadIdx.x == 0) factors = u.factors(squares);
  for_elements<true>(u, share, batch.cut.from[share.tensor],
                     [&](typename Update::Values& x, float g) { u.update(factors, x, g); });
}

Support supports_update(const Problem& p) {
  return p.in[0].dtype == DType::f32 ? dense_floats(p) : Support::no("f32 only");
}
Support supports_gradient_norm(const Problem& p) {
  for (size_t t = 0; t + 1 < p.in.size(); ++t)
    if (p.in[t].dtype != DType::f32 || !p.in[t].dense()) return Support::no("dense f32 gradients only");
  return Support::yes();
}

template <class Update>
class Updates final : public Joined<Updates<Update>> {
 public:
  static constexpr size_t most_joined = most_tensors;
  explicit Updates(const Problem& p)
      : attrs_(p.op.as<typename Update::Attrs>()), blocks_(cut_blocks(p.in[0].shape.elements())) {}
  int64_t workspace_bytes() const override { return sums() ? blocks_ * int64_t(sizeof(float2)) : 0; }
  bool same(const Updates& other) const { return attrs_ == other.attrs_; }
  void launch(std::span<const KernelArgs> all) const {
    const auto batch = std::make_unique<Batch<Update>>();
    for (size_t t = 0; t < all.size(); ++t) {
      batch->cut.add(all[t].in[0]);
      batch->update[t] = Update(attrs_, all[t]);
      batch->sums[t] = {reinterpret_cast<float2*>(all[t].workspace),
                        sums() ? cut_blocks(all[t].in[0].shape().elements()) : 0};
    }
    if (sums()) launch_early(first_pass<Update>, dim3(batch->cut.blocks()), dim3(threads), 0, *batch);
    launch_early(last_pass<Update>, dim3(batch->cut.blocks()), dim3(threads), 0, *batch);
  }

 private:
  bool sums() const { return Update::sums(attrs_); }
  typename Update::Attrs attrs_;
  int blocks_;
};

template <class Update>
std::unique_ptr<Prepared> prepare_update(const Problem& p) {
  return std::make_unique<Updates<Update>>(p);
}

__global__ void sum_squares(const __grid_constant__ Cut<most_tensors> cut, float2* parts) {
  const Share share(cut);
  const float* g = cut.from[share.tensor];
  float2 sum = make_float2(0, 0);
#pragma unroll 4
  for (int64_t i = share.begin + threadIdx.x; i < share.end; i += threads) sum.x += g[i] * g[i];
  leave_sums(sum, parts + blockIdx.x);
}

__global__ void root_of_sums(Sums sums, const double* scale, double* norm) {
  const float squares = sums.total().x;
  if (threadIdx.x == 0) *norm = sqrt(double(squares)) / scale[int(ScaleField::scale)];
}

std::unique_ptr<Prepared> prepare_gradient_norm(const Problem& p) {
  const size_t tensors = p.in.size() - 1;
  int blocks = 0;
  for (size_t t = 0; t < tensors; ++t) blocks += cut_blocks(p.in[t].shape.elements());
  return prepared(
      [tensors, blocks](const KernelArgs& a) {
        auto* parts = reinterpret_cast<float2*>(a.workspace);
        for (size_t t = 0, done = 0; t < tensors;) {
          Cut<most_tensors> cut;
          for (; t < tensors && cut.tensors < most_tensors; ++t) cut.add(a.in[t]);
          sum_squares<<<cut.blocks(), threads, 0, stream()>>>(cut, parts + done);
          done += cut.blocks();
        }
        root_of_sums<<<1, threads, 0, stream()>>>({parts, blocks}, data<const double>(a.in[tensors]),
                                                  data<double>(a.out[0]));
        check_launch("gradient_norm");
      },
      blocks * int64_t(sizeof(float2)));
}

/// The sums that gradients of several passes are added to.
struct Accumulators {
  float* sum[most_tensors];
};

__global__ void accumulate(const __grid_constant__ Cut<most_tensors> cut, const __grid_constant__ Accumulators to,
                           const double* step) {
  const Share share(cut);
  const bool first = step[int(StepField::micro_step)] == 0;
  const float* g = cut.from[share.tensor];
  float* sum = to.sum[share.tensor];
  for (int64_t i = share.begin + threadIdx.x; i < share.end; i += threads) sum[i] = g[i] + (first ? 0.0f : sum[i]);
}

class Accumulation final : public Joined<Accumulation> {
 public:
  static constexpr size_t most_joined = most_tensors;
  bool same(const Accumulation&) const { return true; }
  void launch(std::span<const KernelArgs> all) const {
    Cut<most_tensors> cut;
    Accumulators to;
    for (const KernelArgs& a : all) to.sum[cut.tensors] = data<float>(a.out[0]), cut.add(a.in[0]);
    accumulate<<<cut.blocks(), threads, 0, stream()>>>(cut, to, data<const double>(all[0].in[1]));
    check_launch("accumulate");
  }
};

std::unique_ptr<Prepared> prepare_accumulate(const Problem&) {
  return std::make_unique<Accumulation>();
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
}  // namespace optimizer_cuda

std::vector<KernelPtr> optimizer_cuda_kernels() {
  using namespace optimizer_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::sgd_update, supports_update, prepare_update<Sgd>));
  list.push_back(kernel("cuda", OpKind::adam_update, supports_update, prepare_update<Adam>));
  list.push_back(kernel("cuda", OpKind::lamb_update, supports_update, prepare_update<Lamb>));
  list.push_back(kernel("cuda", OpKind::gradient_norm, supports_gradient_norm, prepare_gradient_norm));
  list.push_back(kernel("cuda", OpKind::accumulate, supports_update, prepare_accumulate));
  list.push_back(kernel(
      "cuda", OpKind::loss_scale_update, [](const Problem&) { return Support::yes(); }, prepare_loss_scale));
  return list;
}

}  // namespace convoy
