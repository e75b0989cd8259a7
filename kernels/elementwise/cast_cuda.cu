// Casts on CUDA devices; those of f32 to 16 bits that stand next to each other, as those of a step's weights do, are
// one launch. Bound by memory.
#include "kernels/device/joined.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace cast_cuda {
namespace {

using namespace cuda;

constexpr int width = 8;

template <class A, class O>
__device__ void cast_share(const A* from, O* to, int64_t begin, int64_t end) {
  const int packs = int(end - begin) / width;
  constexpr int each = cut_chunk / width / cut_threads;  // of a thread, all loads under way at once
  Pack<A, width> x[each];
#pragma unroll
  for (int k = 0; k < each; ++k)
    if (const int i = int(threadIdx.x) + k * cut_threads; i < packs)
      x[k] = reinterpret_cast<const Pack<A, width>*>(from + begin)[i];
#pragma unroll
  for (int k = 0; k < each; ++k)
    if (const int i = int(threadIdx.x) + k * cut_threads; i < packs) {
      Pack<O, width> y;
      for (int v = 0; v < width; ++v) y.v[v] = from_float<O>(to_float(x[k].v[v]));
      reinterpret_cast<Pack<O, width>*>(to + begin)[i] = y;
    }
  for (int64_t i = begin + packs * width + threadIdx.x; i < end; i += blockDim.x)
    to[i] = from_float<O>(to_float(from[i]));
}

template <class A, class O>
__global__ void cast_one(int64_t n, const A* from, O* to) {
  const int64_t begin = int64_t(blockIdx.x) * cut_chunk;
  cast_share(from, to, begin, min(begin + cut_chunk, n));
}

template <class O>
struct Narrow {
  static constexpr int most = 64;
  Cut<most> cut;
  O* to[most];
};

template <class O>
__global__ void cast_all(const __grid_constant__ Narrow<O> casts) {
  const Share share(casts.cut);
  cast_share(casts.cut.from[share.tensor], casts.to[share.tensor], share.begin, share.end);
}

/// From f32 to bf16 or f16.
class Narrowing final : public Joined<Narrowing> {
 public:
  static constexpr size_t most_joined = Narrow<bfloat>::most;
  explicit Narrowing(DType to) : to_(to) {}
  bool same(const Narrowing& other) const { return to_ == other.to_; }
  void launch(std::span<const KernelArgs> all) const {
    dispatch_16(to_, [&](auto zero) {
      using O = decltype(zero);
      Narrow<O> casts;
      for (const KernelArgs& a : all) casts.to[casts.cut.tensors] = data<O>(a.out[0]), casts.cut.add(a.in[0]);
      cast_all<<<casts.cut.blocks(), cut_threads, 0, stream()>>>(casts);
    });
    check_launch("casts");
  }

 private:
  DType to_;
};

std::unique_ptr<Prepared> prepare(const Problem& p) {
  const DType to = p.out[0].dtype;
  if (p.in[0].dtype == DType::f32 && to != DType::f32) return std::make_unique<Narrowing>(to);
  return prepared([p](const KernelArgs& a) {
    const int64_t n = p.in[0].shape.elements();
    dispatch(p.in[0].dtype, [&](auto from) {
      dispatch(p.out[0].dtype, [&](auto result) {
        cast_one<<<static_cast<unsigned>(cut_blocks(n)), cut_threads, 0, stream()>>>(
            n, data<const decltype(from)>(a.in[0]), data<decltype(result)>(a.out[0]));
      });
    });
    check_launch("cast");
  });
}

Support supports(const Problem& p) {
  if (const Support to = dense_floats({p.op, p.out, p.in}); !to.ok) return to;
  return dense_floats(p);
}

}  // namespace
}  // namespace cast_cuda

std::vector<KernelPtr> cast_cuda_kernels() {
  using namespace cast_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::cast, supports, prepare));
  return list;
}

}  // namespace convoy
