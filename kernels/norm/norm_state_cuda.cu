// What batch norms leave in the state on CUDA devices: gradients of gamma and beta, running statistics. One launch for
// many layers.
#include "kernels/device/joined.h"
#include "kernels/norm/norm_cuda.h"

namespace convoy {
namespace {

using namespace cuda;

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

std::vector<KernelPtr> norm_state_cuda_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::batch_norm_backward_parameters, supports_vectors, prepare_parameters));
  list.push_back(kernel("cuda", OpKind::batch_norm_update, supports_vectors, prepare_update));
  return list;
}

}  // namespace convoy
