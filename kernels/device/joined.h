// Small tensors, one launch: kernels of nodes that stand next to each other in a plan (core/kernel.h, Joinable), each
// block with a share of one tensor.
#pragma once

#include "kernels/device/cuda.h"

namespace convoy::cuda {

/// Same kernels of neighbouring nodes, none of which writes what another reads or writes, as one launch, or one per
/// pass, of up to Same::most_joined of them:
/// Same::same(other) and Same::launch(args of all).
template <class Same>
class Joined : public Joinable {
 public:
  bool joins(const Prepared& next) const override {
    const auto* other = dynamic_cast<const Same*>(&next);
    return other && other->same(static_cast<const Same&>(*this));
  }
  void run_joined(std::span<const KernelRun> all) const override {
    constexpr size_t most = Same::most_joined;
    std::vector<KernelArgs> args;
    for (const KernelRun& each : all) {
      args.push_back(each.args);
      if (args.size() < most && &each != &all.back()) continue;
      static_cast<const Same&>(*this).launch(args);
      args.clear();
    }
  }
};

constexpr int cut_threads = 256, cut_chunk = 16 * cut_threads;
inline int cut_blocks(int64_t elements) {
  return int((elements + cut_chunk - 1) / cut_chunk);
}

/// The tensors of one launch, f32: every block takes `cut_chunk` elements of one of them.
template <int most>
struct Cut {
  const float* from[most];
  int64_t elements[most];
  int first_block[most + 1];
  int tensors = 0;

  Cut() { first_block[0] = 0; }
  void add(const Tensor& t) {
    from[tensors] = data<const float>(t), elements[tensors] = t.shape().elements();
    first_block[tensors + 1] = first_block[tensors] + cut_blocks(elements[tensors]);
    ++tensors;
  }
  unsigned blocks() const { return static_cast<unsigned>(first_block[tensors]); }
};

#ifdef __CUDACC__
/// What the calling block takes of which tensor.
struct Share {
  int tensor = 0;
  int64_t begin, end;
  template <int most>
  __device__ explicit Share(const Cut<most>& cut) {
    for (int above = cut.tensors; above - tensor > 1;) {
      const int middle = (tensor + above) / 2;
      (int(blockIdx.x) < cut.first_block[middle] ? above : tensor) = middle;
    }
    begin = int64_t(blockIdx.x - cut.first_block[tensor]) * cut_chunk;
    end = min(begin + cut_chunk, cut.elements[tensor]);
  }
};
#endif

}  // namespace convoy::cuda
