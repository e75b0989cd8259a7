// Convolutions of 16-bit types on tensor cores: which problems they take, and in what pieces. The functions themselves:
// conv_mma_direct.cu (forward, into a pool, data gradients, those from a pooled gradient), conv_wgmma_direct.cu (the
// same on Hopper's warpgroup products), conv_mma_weights.cu and conv_wgmma_weights.cu (weight gradients from a pooled
// gradient), conv_mma_four.cu and conv_wgmma_four.cu (a first layer of four channels).
#include "kernels/conv/conv_mma_kernels.h"
#include "kernels/conv/pooled_cube.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace conv_mma {
namespace {

using namespace cuda;

/// The convolution that a kernel runs: a data gradient is one from dy to dx with the weights turned.
struct Setup {
  MmaConv p{};
  MmaCut cut;
  Int3 tile{};
  bool four = false;
};

/// What is convolved, to what, and the padding: for a data gradient the other way round.
struct Direction {
  Shape from, to;
  Int3 pad;
  Direction(const ConvShapes& s, bool backward_data)
      : from(backward_data ? s.y : s.x), to(backward_data ? s.x : s.y), pad(s.attrs.pad_low) {
    if (backward_data)
      for (int64_t& side : pad) side = 2 - side;
  }
};

Setup wgmma_setup(const ConvShapes& s, bool backward_data, double slope) {
  const auto [from, to, pad] = Direction(s, backward_data);
  Setup r;
  r.cut.block_k = to.c() % 128 == 0 ? 128 : 64;
  r.tile = wgmma_tile(int(to.c()), r.cut.block_k);
  r.p = describe(from, to, pad, slope, r.tile);
  // Where blocks are few, as many as run at once share the input channels out.
  const int64_t blocks = int64_t(r.p.all_tiles()) * ((r.p.k + r.cut.block_k - 1) / r.cut.block_k);
  if (!wgmma_deep(r.p.k)) r.cut.splits = int(std::clamp<int64_t>(multiprocessors() / blocks, 1, r.p.c / 16));
  return r;
}

Setup setup(const ConvShapes& s, bool backward_data, double slope) {
  const auto [from, to, pad] = Direction(s, backward_data);
  Setup r;
  r.four = !backward_data && from.c() == 4;
  MmaCut& cut = r.cut;
  cut.columns = r.four || to.w() > 8 ? 16 : 8;
  r.tile = mma_tile(cut.columns);
  r.p = describe(from, to, pad, slope, r.tile);
  const MmaConv& p = r.p;
  // Wide blocks reuse more of what they load, if they and shares of the input channels keep every multiprocessor busy.
  const int64_t sm = multiprocessors(), chunks = std::max(1, p.c / 32);
  if (p.k % 64 || int64_t(p.all_tiles()) * (p.k / 64) * chunks < sm) cut.block_k = 32;
  const int64_t blocks = int64_t(p.all_tiles()) * (p.k / cut.block_k);
  if (!r.four && blocks < 3 * sm / 2) cut.splits = int(std::min(chunks, (2 * sm + blocks - 1) / blocks));
  return r;
}

bool is_backward_data(const Problem& p) {
  return p.op.kind == OpKind::conv_backward_data || p.op.kind == OpKind::conv_pool_backward_data;
}

Support supports(const Problem& p) {
  if (const Support support = runs_mma(); !support.ok) return support;
  const DType type = p.in[0].dtype;
  if (type != DType::bf16 && type != DType::f16) return Support::no("bf16 and f16 only");
  if (const Support support = dense_floats(p); !support.ok) return support;
  if (const auto* a = std::get_if<ConvAttrs>(&p.op.attrs); a && a->slope != 1)
    return Support::no("ends in no activation without a pool");
  const ConvShapes s = *conv_shapes(p);
  if (const Support support = supports_cube(p, s); !support.ok) return support;
  const Int3 one{1, 1, 1};
  if (s.attrs.pad_low != one || s.attrs.pad_high != one) return Support::no("one position of padding only");
  if (s.y.d() % 2 || s.y.h() % 2 || s.y.w() % 2) return Support::no("even extents only");
  const bool four = s.x.c() == 4 && s.y.c() == 32;
  const bool weights = p.op.kind == OpKind::conv_pool_backward_weights;
  if (shared_memory() < (!weights ? mma_direct_shared_bytes()
                         : four   ? mma_four_shared_bytes()
                                  : mma_weights_shared_bytes()))
    return Support::no("the device's blocks have too little shared memory");
  switch (p.op.kind) {
    case OpKind::conv_pool_forward:
      if (four) return Support::yes();
      break;
    case OpKind::conv_pool_backward_weights:
      if (four) return Support::yes();
      if (s.y.c() % 64) return Support::no("multiples of 64 output channels");
      break;
    default:
      break;
  }
  return s.x.c() % 32 || s.y.c() % 32 ? Support::no("multiples of 32 channels, or 4 to 32 into a pool")
                                      : Support::yes();
}

Support supports_wgmma(const Problem& p) {
  if (const Support support = runs_wgmma(); !support.ok) return support;
  if (const Support support = supports(p); !support.ok) return support;
  const ConvShapes s = *conv_shapes(p);
  const int64_t k = is_backward_data(p) ? s.x.c() : s.y.c();
  const bool weights = p.op.kind == OpKind::conv_pool_backward_weights;
  if (s.x.c() == 4) return weights ? Support::yes() : Support::no("multiples of 32 input channels");
  if (k % 64 && (k != 32 || p.op.kind == OpKind::conv_pool_forward))
    return Support::no("multiples of 64 output channels, or 32 without a pool behind them");
  return Support::yes();
}

std::string detail(const Setup& s) {
  if (s.four) return "four channels, rows of taps";
  return std::to_string(s.tile[0] * s.tile[1] * s.tile[2]) + " positions (" + std::to_string(s.tile[2]) +
         " across) x " + std::to_string(std::min(s.cut.block_k, s.p.k)) + " channels" +
         (s.cut.splits > 1 ? ", " + std::to_string(s.cut.splits) + " shares of the input" : "");
}

class Direct final : public Prepared {
 public:
  Direct(const Problem& p, bool hopper)
      : problem_(p),
        hopper_(hopper),
        backward_(is_backward_data(p)),
        pooled_source_(p.op.kind == OpKind::conv_pool_backward_data),
        shapes_(*conv_shapes(p)),
        setup_((hopper ? wgmma_setup : setup)(shapes_, backward_, slope_of(p))) {}

  std::string detail() const override { return conv_mma::detail(setup_); }
  int64_t workspace_bytes() const override {
    const MmaConv& p = setup_.p;
    return setup_.cut.splits > 1 ? 4 * int64_t(setup_.cut.splits) * p.n * p.od * p.oh * p.ow * p.k : 0;
  }

  std::vector<PackRequest> packed_weights() const override {
    const DType type = problem_.in[0].dtype;
    const Shape& w = shapes_.w;
    if (setup_.four)
      return {{1, "four channels", mma_four_pack_bytes,
               [type](const Tensor& weight, std::byte* packed) { queue_mma_four_pack(type, weight.bytes(), packed); }}};
    const int input = pooled_source_ ? 3 : 1;
    if (hopper_) {
      const WgmmaWeights packed{setup_.p.k, setup_.p.c, backward_};
      return {{input, backward_ ? "fragments, turned" : "fragments", wgmma_pack_bytes(packed),
               [type, packed](const Tensor& weight, std::byte* to) {
                 queue_wgmma_pack(type, packed, weight.bytes(), to);
               }}};
    }
    if (!backward_) return {};
    const int k = int(w.n()), taps = int(w.d() * w.h() * w.w()), c = int(w.c());
    return {{input, "turned", w.elements() * 2, [=](const Tensor& weight, std::byte* packed) {
               queue_mma_turn(type, k, taps, c, weight.bytes(), packed);
             }}};
  }

  void run(const KernelArgs& a) const override {
    const DType type = problem_.in[0].dtype;
    const float* bias = !pooled_source_ && a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr;
    const MmaResult to{a.out[0].bytes(),
                       problem_.op.kind == OpKind::conv_pool_forward ? data<uint8_t>(a.out[1]) : nullptr};
    if (setup_.four) return queue_mma_four(type, setup_.p, a.in[0].bytes(), a.packed[0], bias, to);
    MmaSource from;
    if (pooled_source_)
      from = {nullptr, a.in[0].bytes(), a.in[1].bytes(), data<const uint8_t>(a.in[2])};
    else
      from.x = a.in[0].bytes();
    const void* weights = hopper_ || backward_ ? a.packed[0] : a.in[1].bytes();
    MmaCut cut = setup_.cut;
    cut.parts = reinterpret_cast<float*>(a.workspace);
    (hopper_ ? queue_wgmma_direct : queue_mma_direct)(type, setup_.p, cut, from, weights, bias, to);
  }

 private:
  Problem problem_;
  bool hopper_, backward_, pooled_source_;
  ConvShapes shapes_;
  Setup setup_;
};

class PooledWeights final : public Prepared {
 public:
  PooledWeights(const Problem& p, bool hopper) : type_(p.in[0].dtype), hopper_(hopper) {
    const ConvShapes s = *conv_shapes(p);
    four_ = s.x.c() == 4;
    columns_ = four_ || (!hopper && s.y.w() > 8) ? 16 : wgmma_width;
    c_ = describe(s.x, s.y, s.attrs.pad_low, slope_of(p), mma_tile(columns_));
    // As many blocks as run at once: of mma.sync's for four channels two to a multiprocessor, else one.
    const int room = (four_ && !hopper ? 2 : 1) * multiprocessors(), blocks = four_ ? 1 : c_.k / 64 * (c_.c / 32) * 3;
    parts_ = {p.in[1].shape, p.out[0].shape.elements(), std::min(c_.all_tiles(), std::max(1, room / blocks)), hopper};
  }

  std::string detail() const override { return std::to_string(parts_.splits) + " shares of the positions"; }
  int64_t workspace_bytes() const override { return parts_.workspace_bytes(); }
  void run(const KernelArgs& a) const override {
    const MmaSource dy{nullptr, a.in[1].bytes(), a.in[2].bytes(), data<const uint8_t>(a.in[3])};
    const GradientParts parts = parts_.target(a);
    const void* x = a.in[0].bytes();
    if (hopper_)
      (four_ ? queue_wgmma_four_weights : queue_wgmma_weights)(type_, c_, parts_.splits, x, dy, parts);
    else if (four_)
      queue_mma_four_weights(type_, c_, parts_.splits, x, dy, parts.weights);
    else
      queue_mma_weights(type_, c_, columns_, parts_.splits, x, dy, parts.weights);
    dispatch_16(type_, [&](auto zero) { parts_.finish<decltype(zero)>(a, c_.slope); });
  }

 private:
  DType type_;
  bool hopper_, four_;
  int columns_;
  MmaConv c_;
  WeightParts parts_{};
};

template <bool hopper>
std::unique_ptr<Prepared> prepare_direct(const Problem& p) {
  return std::make_unique<Direct>(p, hopper);
}
template <bool hopper>
std::unique_ptr<Prepared> prepare_weights(const Problem& p) {
  return std::make_unique<PooledWeights>(p, hopper);
}

}  // namespace
}  // namespace conv_mma

std::vector<KernelPtr> conv_mma_kernels() {
  using namespace conv_mma;
  std::vector<KernelPtr> list;
  for (OpKind kind :
       {OpKind::conv_forward, OpKind::conv_pool_forward, OpKind::conv_backward_data, OpKind::conv_pool_backward_data}) {
    list.push_back(kernel("cuda_wgmma", kind, supports_wgmma, prepare_direct<true>));
    list.push_back(kernel("cuda_mma", kind, supports, prepare_direct<false>));
  }
  list.push_back(kernel("cuda_wgmma", OpKind::conv_pool_backward_weights, supports_wgmma, prepare_weights<true>));
  list.push_back(kernel("cuda_mma", OpKind::conv_pool_backward_weights, supports, prepare_weights<false>));
  return list;
}

}  // namespace convoy
