// Convolutions of 16-bit types on tensor cores: which problems they take, and in what pieces. The functions themselves:
// conv_mma_direct.cu (forward, into a pool, data gradients, those from a pooled gradient), conv_mma_weights.cu (weight
// gradients from a pooled gradient) and conv_mma_four.cu (a first layer of four channels).
#include "core/conv_shapes.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/conv/conv_mma_kernels.h"
#include "kernels/device/sums.h"

namespace convoy {
namespace {

using namespace cuda;

/// The convolution that a kernel runs: a data gradient is one from dy to dx with the weights turned.
struct Setup {
  MmaConv p{};
  MmaCut cut;
  bool four = false;
};

Setup setup(const ConvShapes& s, bool backward_data, double slope) {
  Setup r;
  MmaConv& p = r.p;
  const Shape &from = backward_data ? s.y : s.x, &to = backward_data ? s.x : s.y;
  p.n = int(from.n()), p.d = int(from.d()), p.h = int(from.h()), p.w = int(from.w()), p.c = int(from.c());
  p.od = int(to.d()), p.oh = int(to.h()), p.ow = int(to.w()), p.k = int(to.c());
  for (int i = 0; i < 3; ++i) {
    p.kernel[i] = int(s.w[i + 1]);
    p.pad[i] = int(backward_data ? p.kernel[i] - 1 - s.attrs.pad_low[i] : s.attrs.pad_low[i]);
  }
  p.slope = float(slope);
  r.four = !backward_data && p.c == 4;
  MmaCut& cut = r.cut;
  cut.columns = r.four || p.ow > 8 ? 16 : 8;
  p.tiles[0] = (p.od + 3) / 4;
  p.tiles[1] = (p.oh + 64 / cut.columns - 1) / (64 / cut.columns);
  p.tiles[2] = (p.ow + cut.columns - 1) / cut.columns;
  // Wide blocks reuse more of what they load, if they and shares of the input channels keep every multiprocessor busy.
  const int64_t sm = multiprocessors(), chunks = std::max(1, p.c / 32);
  if (p.k % 64 || int64_t(p.all_tiles()) * (p.k / 64) * chunks < sm) cut.block_k = 32;
  const int64_t blocks = int64_t(p.all_tiles()) * (p.k / cut.block_k);
  if (!r.four && blocks < 3 * sm / 2) cut.splits = int(std::min(chunks, (2 * sm + blocks - 1) / blocks));
  return r;
}

const PoolAttrs* pool_of(const Problem& p) {
  const auto* both = std::get_if<ConvPoolAttrs>(&p.op.attrs);
  return both ? &both->pool.pool : nullptr;
}
double slope_of(const Problem& p) {
  const auto* both = std::get_if<ConvPoolAttrs>(&p.op.attrs);
  return both ? both->pool.activation.slope : 1;
}
bool is_backward_data(const Problem& p) {
  return p.op.kind == OpKind::conv_backward_data || p.op.kind == OpKind::conv_pool_backward_data;
}

Support supports(const Problem& p) {
  if (capability() < 80) return Support::no(capability() ? "compute capability below 8.0" : "no CUDA device is open");
  const DType type = p.in[0].dtype;
  if (type != DType::bf16 && type != DType::f16) return Support::no("bf16 and f16 only");
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& desc : *list)
      if (!desc.dense()) return Support::no("dense tensors only");
  if (const auto* a = std::get_if<ConvAttrs>(&p.op.attrs); a && a->slope != 1)
    return Support::no("ends in no activation without a pool");
  const ConvShapes s = *conv_shapes(p);
  const Int3 one{1, 1, 1}, two{2, 2, 2}, zero{0, 0, 0};
  if (s.attrs.stride != one || s.attrs.dilation != one || s.attrs.groups != 1)
    return Support::no("stride, dilation and groups 1 only");
  if (s.w.d() != 3 || s.w.h() != 3 || s.w.w() != 3 || s.attrs.pad_low != one || s.attrs.pad_high != one)
    return Support::no("3 x 3 x 3 kernels with one position of padding only");
  if (s.y.d() < 2) return Support::no("three dimensions only");
  if (s.x.rows() > (1 << 30) || s.y.rows() > (1 << 30)) return Support::no("more than 2^30 positions");
  if (const PoolAttrs* pool = pool_of(p))
    if (pool->kernel != two || pool->stride != two || pool->pad_low != zero || pool->pad_high != zero)
      return Support::no("pools of 2 x 2 x 2 only");
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

std::string detail(const Setup& s) {
  if (s.four) return "four channels, rows of taps";
  return "256 positions (" + std::to_string(s.cut.columns) + " across) x " + std::to_string(s.cut.block_k) +
         " channels" + (s.cut.splits > 1 ? ", " + std::to_string(s.cut.splits) + " shares of the input" : "");
}

class Direct final : public Prepared {
 public:
  explicit Direct(const Problem& p)
      : problem_(p),
        backward_(is_backward_data(p)),
        pooled_source_(p.op.kind == OpKind::conv_pool_backward_data),
        shapes_(*conv_shapes(p)),
        setup_(setup(shapes_, backward_, slope_of(p))) {}

  std::string detail() const override { return convoy::detail(setup_); }
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
    if (!backward_) return {};
    const int k = int(w.n()), taps = int(w.d() * w.h() * w.w()), c = int(w.c());
    return {{pooled_source_ ? 3 : 1, "turned", w.elements() * 2, [=](const Tensor& weight, std::byte* packed) {
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
    const void* weights = backward_ ? static_cast<const void*>(a.packed[0]) : a.in[1].bytes();
    MmaCut cut = setup_.cut;
    cut.parts = reinterpret_cast<float*>(a.workspace);
    queue_mma_direct(type, setup_.p, cut, from, weights, bias, to);
  }

 private:
  Problem problem_;
  bool backward_, pooled_source_;
  ConvShapes shapes_;
  Setup setup_;
};

/// A pooled gradient behind the slope of its activation.
template <class T>
struct ScaledGradient {
  const T *gradient, *output;
  int64_t columns;
  float slope;
  __device__ float operator()(int64_t row, int64_t column) const {
    const int64_t i = row * columns + column;
    return to_float(output[i]) > 0 ? to_float(gradient[i]) : rounded<T>(slope * to_float(gradient[i]));
  }
};

class PooledWeights final : public Prepared {
 public:
  explicit PooledWeights(const Problem& p)
      : type_(p.in[0].dtype),
        pooled_(p.in[1].shape),
        weights_(p.out[0].shape.elements()),
        setup_(setup(*conv_shapes(p), false, slope_of(p))) {
    // As many blocks as run at once: two to a multiprocessor for four channels, else one.
    const int tiles = setup_.p.all_tiles(), room = setup_.four ? 2 * multiprocessors() : multiprocessors();
    const int blocks = setup_.four ? 1 : setup_.p.k / 64 * (setup_.p.c / 32) * 3;
    splits_ = std::min(tiles, std::max(1, room / blocks));
  }

  std::string detail() const override { return std::to_string(splits_) + " shares of the positions"; }
  int64_t workspace_bytes() const override {
    return 4 * (weights_ * splits_ + row_sum_floats(pooled_.rows(), pooled_.c()));
  }
  void run(const KernelArgs& a) const override {
    auto* parts = reinterpret_cast<float*>(a.workspace);
    float* dw = data<float>(a.out[0]);
    float* target = splits_ > 1 ? parts : dw;
    const MmaSource dy{nullptr, a.in[1].bytes(), a.in[2].bytes(), data<const uint8_t>(a.in[3])};
    if (setup_.four)
      queue_mma_four_weights(type_, setup_.p, splits_, a.in[0].bytes(), dy, target);
    else
      queue_mma_weights(type_, setup_.p, setup_.cut.columns, splits_, a.in[0].bytes(), dy, target);
    if (splits_ > 1) add_parts(splits_, weights_, parts, dw);
    dispatch(type_, [&](auto zero) {
      using T = decltype(zero);
      row_sums(pooled_.rows(), pooled_.c(),
               ScaledGradient<T>{data<const T>(a.in[1]), data<const T>(a.in[2]), pooled_.c(), setup_.p.slope},
               parts + weights_ * splits_, data<float>(a.out[1]));
    });
  }

 private:
  DType type_;
  Shape pooled_;
  int64_t weights_;
  Setup setup_;
  int splits_ = 1;
};

std::unique_ptr<Prepared> prepare_direct(const Problem& p) {
  return std::make_unique<Direct>(p);
}
std::unique_ptr<Prepared> prepare_weights(const Problem& p) {
  return std::make_unique<PooledWeights>(p);
}

}  // namespace

std::vector<KernelPtr> conv_mma_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind :
       {OpKind::conv_forward, OpKind::conv_pool_forward, OpKind::conv_backward_data, OpKind::conv_pool_backward_data})
    list.push_back(kernel("cuda_mma", kind, supports, prepare_direct));
  list.push_back(kernel("cuda_mma", OpKind::conv_pool_backward_weights, supports, prepare_weights));
  return list;
}

}  // namespace convoy
