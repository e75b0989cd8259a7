// A convolution as a plugin: weights in an order of its own, packed once per update; rows of outputs divided among
// threads; AVX2 where the CPU has it.
#include <immintrin.h>

#include <algorithm>

#include "core/parallel.h"
#include "kernels/plugin.h"
#include "kernels/simd/isa_kernel.h"

using namespace convoy;

namespace {

constexpr int64_t block = 32;  // output channels that are summed up together: four vectors

/// sums[k] += x[c] * w[c][k] over all c. Nothing but this is compiled for AVX2: the rest runs on every CPU.
__attribute__((target("avx2,fma"))) void add_tap(const float* x, const float* w, int64_t inputs, float* sums) {
  __m256 total[4];
  for (int j = 0; j < 4; ++j) total[j] = _mm256_loadu_ps(sums + 8 * j);
  for (int64_t c = 0; c < inputs; ++c) {
    const __m256 value = _mm256_broadcast_ss(x + c);
    for (int j = 0; j < 4; ++j) total[j] = _mm256_fmadd_ps(value, _mm256_loadu_ps(w + c * block + 8 * j), total[j]);
  }
  for (int j = 0; j < 4; ++j) _mm256_storeu_ps(sums + 8 * j, total[j]);
}

/// K, KD, KH, KW, C to K / 32, KD, KH, KW, C, 32, with zeros behind the last output.
void pack(const Tensor& weight, std::byte* packed) {
  const Shape& s = weight.shape();
  const int64_t products = s.elements() / s.n();  // of an output
  const float* from = weight.data<float>();
  auto* to = reinterpret_cast<float*>(packed);
  for (int64_t k = 0; k < ceil_div(s.n(), block) * block; ++k)
    for (int64_t i = 0; i < products; ++i)
      to[(k / block * products + i) * block + k % block] = k < s.n() ? from[k * products + i] : 0;
}

class MyConv final : public Prepared {
 public:
  explicit MyConv(const Problem& p) : problem_(p) {}

  std::vector<PackRequest> packed_weights() const override {
    const Shape& w = problem_.in[1].shape;
    return {{.input = 1,
             .form = "blocks of 32 outputs",
             .bytes = ceil_div(w.n(), block) * block * (w.elements() / w.n()) * int64_t{sizeof(float)},
             .pack = pack}};
  }

  void run(const KernelArgs& args) const override {
    const Shape& y = problem_.out[0].shape;
    // Every output is summed up by one thread, in an order that does not depend on their number.
    parallel_ranges(y.n() * y.d() * y.h(), problem_.threads, 1, [&](Range rows) {
      for (int64_t row = rows.begin; row < rows.end; ++row)
        for (int64_t w = 0; w < y.w(); ++w) output(args, row / (y.d() * y.h()), {row / y.h() % y.d(), row % y.h(), w});
    });
  }

 private:
  /// All channels of the output at a position.
  void output(const KernelArgs& args, int64_t n, const Int3& at) const {
    const auto& a = problem_.op.as<ConvAttrs>();
    const TensorDesc &x = problem_.in[0], &y = problem_.out[0];  // either may be a slice of a wider tensor
    const Shape& w = problem_.in[1].shape;
    const auto* weights = reinterpret_cast<const float*>(args.packed[0]);
    const float* bias = args.in.size() > 2 ? args.in[2].data<float>() : nullptr;
    for (int64_t k = 0; k < w.n(); k += block, weights += block * (w.elements() / w.n())) {
      const int64_t outputs = std::min(block, w.n() - k);
      float sums[block] = {};
      if (bias) std::copy_n(bias + k, outputs, sums);
      const float* tap = weights;
      for (int64_t kd = 0; kd < w.d(); ++kd)
        for (int64_t kh = 0; kh < w.h(); ++kh)
          for (int64_t kw = 0; kw < w.w(); ++kw, tap += w.c() * block) {
            const Int3 of{kd, kh, kw};
            Int3 from;
            bool inside = true;
            for (size_t i = 0; i < 3; ++i) {
              from[i] = at[i] * a.stride[i] - a.pad_low[i] + of[i] * a.dilation[i];
              inside = inside && from[i] >= 0 && from[i] < x.shape[static_cast<int>(i) + 1];
            }
            if (inside) add_tap(args.in[0].data<float>() + x.offset(n, from[0], from[1], from[2]), tap, w.c(), sums);
          }
      std::copy_n(sums, outputs, args.out[0].data<float>() + y.offset(n, at[0], at[1], at[2]) + k);
    }
  }

  Problem problem_;
};

Support supports(const Problem& p) {
  for (const std::vector<TensorDesc>* side : {&p.in, &p.out})
    for (const TensorDesc& d : *side)
      if (d.dtype != DType::f32) return Support::no("takes f32");
  if (!p.in[1].dense()) return Support::no("takes weights without gaps");
  if (p.op.as<ConvAttrs>().groups != 1) return Support::no("takes one group");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<MyConv>(p);
}

std::vector<KernelPtr> my_convs() {
  std::vector<KernelPtr> list;
  list.push_back(std::make_unique<IsaKernel>("my_conv_avx2", Isa::avx2, OpKind::conv_forward, supports, prepare));
  return list;
}

}  // namespace

CONVOY_PLUGIN(my_convs)
