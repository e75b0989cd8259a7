// What batch norms leave in the state on CUDA devices: gradients of gamma and beta, running statistics. One launch for
// many layers.
#include "kernels/device/joined.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace norm_state_cuda {
namespace {

using namespace cuda;

constexpr int threads = 128;

/// A batch norm's sums per channel, two vectors behind each other, and the two of the state that are made of them.
struct Layer {
  int channels;
  const double* sums;
  float *first, *second;
};

/// The layers of one launch: a row of blocks each, as many as the one of most channels wants.
struct Layers {
  static constexpr int most = 64;
  Layer layer[most];
  explicit Layers(std::span<const KernelArgs> all) {
    for (size_t i = 0; i < all.size(); ++i)
      layer[i] = {int(all[i].out[0].shape().c()), data<const double>(all[i].in[0]), data<float>(all[i].out[0]),
                  data<float>(all[i].out[1])};
  }
  dim3 blocks(size_t count) const {
    int channels = 0;
    for (size_t i = 0; i < count; ++i) channels = std::max(channels, layer[i].channels);
    return dim3(static_cast<unsigned>((channels + threads - 1) / threads), static_cast<unsigned>(count));
  }
};

/// Gradients of gamma and beta from the means of gradients, times what they are multiplied with, and of gradients.
__global__ void parameter_gradients(const __grid_constant__ Layers layers, double count) {
  const Layer& l = layers.layer[blockIdx.y];
  const int c = int(blockIdx.x) * threads + int(threadIdx.x);
  if (c < l.channels) l.first[c] = float(count * l.sums[l.channels + c]), l.second[c] = float(count * l.sums[c]);
}

/// Running mean and variance from moments; those of a diverged step, and those beyond f32, are left out: the running
/// ones must survive them.
__global__ void update_running(const __grid_constant__ Layers layers, double momentum, double unbiased) {
  const Layer& l = layers.layer[blockIdx.y];
  const int c = int(blockIdx.x) * threads + int(threadIdx.x);
  if (c >= l.channels) return;
  const double m = l.sums[c], v = fmax(0.0, l.sums[l.channels + c] - m * m) * unbiased;
  if (!isfinite(float(m)) || !isfinite(float(v))) return;
  l.first[c] = float((1 - momentum) * double(l.first[c]) + momentum * m);
  l.second[c] = float((1 - momentum) * double(l.second[c]) + momentum * v);
}

class BackwardParameters final : public Joined<BackwardParameters> {
 public:
  static constexpr size_t most_joined = Layers::most;
  explicit BackwardParameters(double count) : count_(count) {}
  bool same(const BackwardParameters& other) const { return count_ == other.count_; }
  void launch(std::span<const KernelArgs> all) const {
    const Layers layers(all);
    parameter_gradients<<<layers.blocks(all.size()), threads, 0, stream()>>>(layers, count_);
    check_launch("batch_norm_backward_parameters");
  }

 private:
  double count_;
};

class UpdateRunning final : public Joined<UpdateRunning> {
 public:
  static constexpr size_t most_joined = Layers::most;
  explicit UpdateRunning(const RunningAttrs& attrs) : attrs_(attrs) {}
  bool same(const UpdateRunning& other) const { return attrs_ == other.attrs_; }
  void launch(std::span<const KernelArgs> all) const {
    const Layers layers(all);
    const double unbiased = double(attrs_.count) / double(std::max<int64_t>(1, attrs_.count - 1));
    update_running<<<layers.blocks(all.size()), threads, 0, stream()>>>(layers, attrs_.momentum, unbiased);
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
}  // namespace norm_state_cuda

std::vector<KernelPtr> norm_state_cuda_kernels() {
  using namespace norm_state_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::batch_norm_backward_parameters, supports_vectors, prepare_parameters));
  list.push_back(kernel("cuda", OpKind::batch_norm_update, supports_vectors, prepare_update));
  return list;
}

}  // namespace convoy
