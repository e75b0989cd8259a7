#include "tests/random_problems.h"

#include <algorithm>
#include <optional>
#include <random>

#include "core/error.h"
#include "tests/kernel_check.h"
#include "tests/kernel_problems.h"

namespace convoy::testing {
namespace {

constexpr double most_products = 4e7;  // of a problem: the reference's seconds
constexpr int64_t most_elements_drawn = 4'000'000;

/// What one problem is drawn from.
class Draw {
 public:
  explicit Draw(uint64_t seed) : bits_(seed) {}

  std::optional<Problem> next() {
    type_ = of({DType::f32, DType::f32, DType::bf16, DType::f16});
    wide_ = accumulation_type(type_);
    const int64_t family = between(0, 6);
    return family < 4 ? convolution() : family == 4 ? pooled_convolution() : other();
  }

 private:
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(bits_() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t n) { return between(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> list) {
    return list.begin()[between(0, std::ssize(list) - 1)];
  }
  /// Vectors of 8 and 16, whole, too short and with a rest; more than one chunk or panel takes.
  int64_t channels() {
    return of<int64_t>({1,  2,  3,  4,  5,  7,  8,  12,  15,  16,  16,  17,  20,  24,  31,  32,  32,  33,  40, 48,
                        48, 63, 64, 64, 65, 80, 96, 100, 112, 128, 129, 144, 160, 200, 256, 304, 400, 512, 530});
  }
  TensorDesc slice_or_not(const TensorDesc& dense) {
    if (!one_in(4)) return dense;
    return strided(dense, dense.shape.c() + of<int64_t>({1, 3, 8, 16, 16, 32, 64, dense.shape.c()}));
  }
  /// The problem with its first output a slice, sometimes.
  Problem into_slice(Problem p) {
    p.out[0] = slice_or_not(p.out[0]);
    return p;
  }
  TensorDesc vector(int64_t length) { return TensorDesc(Shape::vector(length), wide_); }

  std::optional<Problem> convolution() {
    const bool volume = one_in(3);
    const int first = volume ? 0 : 1;  // axis
    int64_t c = channels(), k = channels();
    ConvAttrs a;
    if (one_in(4)) {
      if (const int64_t kind = between(0, 9); kind < 7)
        a.groups = k = c;
      else if (kind == 7)
        a.groups = c, k = c * between(1, 3);
      else
        a.groups = between(2, 4), c = a.groups * between(1, 40), k = a.groups * between(1, 40);
    }
    const int64_t taps = of<int64_t>({1, 1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 7}), stride = of<int64_t>({1, 1, 1, 1, 2, 2, 3}),
                  dilation = of<int64_t>({1, 1, 1, 1, 2, 3, 6, 12}), padding = between(0, 5),
                  widest = of<int64_t>({4, 12, 24, 50, 100, 320});
    Int3 kernel{1, 1, 1}, in{1, 1, 1};
    for (int i = first; i < 3; ++i) {
      kernel[i] = one_in(7) ? between(1, 5) : taps;
      a.stride[i] = one_in(7) ? between(1, 3) : stride;
      a.dilation[i] = one_in(7) ? between(1, 4) : dilation;
      const int64_t reach = a.dilation[i] * (kernel[i] - 1);
      if (padding < 4) a.pad_low[i] = a.pad_high[i] = reach / 2;
      if (padding == 3) a.pad_low[i] = between(0, reach), a.pad_high[i] = between(0, reach);
      if (padding == 4) a.pad_low[i] = reach / 2, a.pad_high[i] = reach / 2 + between(0, 3);
      in[i] = between(1, volume ? 26 : widest);
      if (one_in(5)) in[i] = (in[i] + 7) / 8 * 8;
    }
    if (!volume && one_in(30)) a.pad_low[0] = 1;
    const TensorDesc x({of<int64_t>({1, 1, 1, 2, 3}), in[0], in[1], in[2], c}, type_),
        w({k, kernel[0], kernel[1], kernel[2], c / a.groups}, type_);
    const TensorDesc y = problem({OpKind::conv_forward, a}, {x, w}).out[0];
    if (too_large(x, w, y)) return std::nullopt;
    ConvAttrs data = a, weights = a, activated = a;
    data.result_size = in, weights.result_size = kernel, activated.slope = of({0.0, 0.25});
    switch (between(0, 9)) {
      case 0:
        return into_slice(problem({OpKind::conv_forward, a}, {slice_or_not(x), w}));
      case 1:
        return into_slice(problem({OpKind::conv_forward, a}, {slice_or_not(x), w, vector(k)}));
      case 2:
        return into_slice(problem({OpKind::conv_activation_forward, activated}, {slice_or_not(x), w}));
      case 3:
        return into_slice(problem({OpKind::conv_activation_forward, activated}, {slice_or_not(x), w, vector(k)}));
      case 4:
        return into_slice(problem({OpKind::conv_backward_data, data}, {slice_or_not(y), w}));
      case 5:
        return into_slice(problem({OpKind::conv_backward_data, data}, {slice_or_not(y), w, vector(c)}));
      case 6:
        return into_slice(problem({OpKind::conv_backward_data_add, data}, {slice_or_not(y), w, slice_or_not(x)}));
      default:
        return problem({OpKind::conv_backward_weights, weights}, {slice_or_not(x), slice_or_not(y)});
    }
  }

  static bool too_large(const TensorDesc& x, const TensorDesc& w, const TensorDesc& y) {
    const double products = double(y.shape.elements()) * double(w.shape.elements()) / double(w.shape.n());
    return products > most_products || x.shape.elements() > most_elements_drawn;
  }

  /// Behind it an activation and a pool of pairs.
  std::optional<Problem> pooled_convolution() {
    const bool volume = !one_in(3);
    const int64_t c = channels(), k = channels(), taps = of<int64_t>({1, 2, 3, 3, 3, 5});
    Int3 kernel{1, 1, 1}, in{1, 1, 1}, window{1, 2, 2};
    if (volume) window[0] = 2;
    ConvAttrs a;
    for (int i = volume ? 0 : 1; i < 3; ++i) {
      kernel[i] = taps;
      a.pad_low[i] = one_in(5) ? between(0, taps - 1) : taps / 2;
      a.pad_high[i] = one_in(5) ? between(0, taps - 1) : (taps - 1) / 2;
      in[i] = between(2, volume ? 26 : 100);
      if (one_in(3)) in[i] = (in[i] + 7) / 8 * 8;
    }
    const TensorDesc x({of<int64_t>({1, 1, 2}), in[0], in[1], in[2], c}, type_),
        w({k, kernel[0], kernel[1], kernel[2], c}, type_);
    const TensorDesc y = problem({OpKind::conv_forward, a}, {x, w}).out[0];
    if (too_large(x, w, y)) return std::nullopt;
    const ActivationPoolAttrs pool{{.slope = of({0.0, 0.25})}, {.kernel = window, .stride = window}};
    const Problem forward = problem({OpKind::conv_pool_forward, ConvPoolAttrs{a, pool}}, {x, w, vector(k)});
    const TensorDesc& cells = forward.out[0];
    const TensorDesc winners(cells.shape, DType::u8);
    ActivationPoolAttrs back = pool;
    back.pool.result_size = spatial(y.shape);
    ConvAttrs data = a, weights = a;
    data.result_size = in, weights.result_size = kernel;
    switch (between(0, 3)) {
      case 0:
        return forward;
      case 1:
        return problem({OpKind::conv_pool_backward_data, ConvPoolAttrs{data, back}}, {cells, cells, winners, w});
      default:
        return problem({OpKind::conv_pool_backward_weights, ConvPoolAttrs{weights, back}}, {x, cells, cells, winners});
    }
  }

  std::optional<Problem> other() {
    const int64_t c = one_in(2) ? between(1, 70) : channels();
    const bool volume = one_in(3);
    const Shape s{of<int64_t>({1, 1, 2, 3}), volume ? between(1, 9) : 1, between(1, 33), between(1, 40), c};
    const TensorDesc dense(s, type_), x = slice_or_not(dense), beside = slice_or_not(dense);
    const TensorDesc pair(Shape::vector(2 * c), DType::f64), step(Shape::vector(8), DType::f64);
    const BatchNormAttrs norm{.relu = between(0, 1)};
    const ActivationAttrs act{.function = of({Activation::leaky_relu, Activation::leaky_relu, Activation::tanh}),
                              .slope = of({0.0, 0.25}),
                              .scale = of({1.0, 0.5})};
    const ResizeAttrs size{of({Corners::half_pixel, Corners::aligned, Corners::asymmetric}),
                           {s.d(), between(1, 60), between(1, 60)}};
    switch (between(0, 18)) {
      case 0:
        return into_slice(problem({OpKind::add, NoAttrs{}}, {x, beside}));
      case 1:
        return into_slice(problem({OpKind::activation, act}, {x}));
      case 2:
        return into_slice(problem({OpKind::activation_backward, act}, {x, beside}));
      case 3:
        return into_slice(problem({OpKind::dropout, DropoutAttrs{0.4, 99}}, {x, step}));
      case 4:
        return problem({OpKind::channel_sum, NoAttrs{}}, {x});
      case 5:
        return problem({OpKind::channel_dot, NoAttrs{}}, {x, beside});
      case 6:
        return into_slice(problem({OpKind::channel_scale, NoAttrs{}}, {x, vector(c), vector(c)}));
      case 7:
        return problem({OpKind::channel_moments, NoAttrs{}}, {x});
      case 8:
        return into_slice(problem({OpKind::batch_norm, norm}, {x, vector(c), vector(c), pair}));
      case 9:
        return into_slice(problem({OpKind::batch_norm, norm}, {x, vector(c), vector(c), vector(c), vector(c)}));
      case 10:
        return problem({OpKind::batch_norm_sums, norm}, {x, beside, vector(c), vector(c), pair});
      case 11:
        return into_slice(
            problem({OpKind::batch_norm_backward_data, norm}, {x, beside, vector(c), vector(c), pair, pair}));
      case 12:
        return into_slice(problem({OpKind::resize, size}, {x}));
      case 13:
        return into_slice(problem({OpKind::resize_backward, size}, {x}));
      case 14:
        return problem({OpKind::arg_max, NoAttrs{}}, {x});
      case 15:
        return into_slice(problem({OpKind::pad_channels, SliceAttrs{between(0, 9), c + 9 + between(0, 9)}}, {x}));
      case 16:
        return into_slice(problem({OpKind::cast, CastAttrs{of({DType::f32, DType::bf16, DType::f16})}}, {x}));
      case 17:
        return dense_layer(dense);
      default:
        return pool(dense, volume);
    }
  }

  std::optional<Problem> dense_layer(const TensorDesc& x) {
    const Shape& s = x.shape;
    const int64_t outputs = channels();
    if (double(s.elements()) * double(outputs) > most_products) return std::nullopt;
    const TensorDesc w({outputs, 1, 1, 1, s.d() * s.h() * s.w() * s.c()}, type_), dy({s.n(), 1, 1, 1, outputs}, type_);
    switch (between(0, 2)) {
      case 0:
        return problem({OpKind::dense_forward, NoAttrs{}}, {x, w, vector(outputs)});
      case 1:
        return problem({OpKind::dense_backward_data, ConvAttrs{.result_size = spatial(s)}}, {dy, w});
      default:
        return problem({OpKind::dense_backward_weights, NoAttrs{}}, {x, dy});
    }
  }

  Problem pool(const TensorDesc& x, bool volume) {
    PoolAttrs a;
    for (int i = 0; i < 3; ++i) {
      a.kernel[i] = i > 0 || volume ? between(1, 4) : 1, a.stride[i] = i > 0 || volume ? between(1, 3) : 1;
      a.pad_low[i] = between(0, a.kernel[i] / 2), a.pad_high[i] = between(0, a.kernel[i] / 2);
    }
    a.count_padding = between(0, 1);
    const ActivationAttrs leaky{.slope = 0.25};
    const int64_t kind = between(0, 5);
    if (kind == 0) return problem({OpKind::avg_pool, a}, {x});
    if (kind == 1) return problem({OpKind::max_pool, a}, {x});
    if (kind == 2) return problem({OpKind::activation_max_pool, ActivationPoolAttrs{leaky, a}}, {x});
    const TensorDesc y = problem({OpKind::avg_pool, a}, {x}).out[0];
    const TensorDesc winners(y.shape, DType::u8);
    a.result_size = spatial(x.shape);
    if (kind == 3) return problem({OpKind::avg_pool_backward, a}, {y});
    if (kind == 4) return problem({OpKind::max_pool_backward, a}, {y, winners});
    return problem({OpKind::activation_max_pool_backward, ActivationPoolAttrs{leaky, a}}, {y, y, winners});
  }

  std::mt19937_64 bits_;
  DType type_ = DType::f32, wide_ = DType::f32;
};

}  // namespace

std::vector<Problem> random_problems(uint64_t seed, int64_t count) {
  Draw draw(seed);
  std::vector<Problem> list;
  while (std::ssize(list) < count) {
    std::optional<Problem> p;
    try {
      p = draw.next();
    } catch (const Error&) {  // no outputs
    }
    if (p) list.push_back(*p);
  }
  return list;
}

}  // namespace convoy::testing
