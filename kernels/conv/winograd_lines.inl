// Winograd transforms along one axis (Winograd 1980; Lavin & Gray 2016): outputs m and taps k meet in m + k - 1 points.
// The weight gradient of F(m,k) is F(k,m): k results from m values of the gradient.
//   4 points 0, +-1, infinity: F(2,3), F(3,2); entries 0, 1, 1/2, exact on small integers.
//   6 points 0, +-1/sqrt 2, +-sqrt 2, infinity: F(4,3), F(3,4), F(2,5), F(5,2); these points keep the entries' spread,
//     and with it the rounding error, smaller than the textbook's +-1, +-2.
//   8 points 0, +-1/2, +-1, +-2, infinity: F(6,3), F(3,6), F(4,5), F(5,4).
//   10 points 0, +-0.4, +-0.8, +-1.25, +-2.5, infinity: F(6,5), F(5,6); of such sets the one that rounds least.
//   1 point: an axis without a kernel.
// With points p, N(x^2) = prod(x^2 - p^2) over the pairs +-p and M(x) = x N(x^2): rows of B^T are the coefficients of
// M(x)/(x - p), rows of G the powers of p over M'(p), columns of A^T the powers of p; M itself stands for infinity.
// Squares that come with their reciprocals make N(0) = +-1, by which the row of 0 is divided.

/// The pairs +-p of a set of points: p, and p^2.
template <int points>
struct Pairs;
template <>
struct Pairs<4> {
  static constexpr double root[] = {1}, square[] = {1};
};
template <>
struct Pairs<6> {
  static constexpr double root[] = {0.70710678118654752, 1.41421356237309505}, square[] = {0.5, 2};
};
template <>
struct Pairs<8> {
  static constexpr double root[] = {0.5, 1, 2}, square[] = {0.25, 1, 4};
};
template <>
struct Pairs<10> {
  static constexpr double root[] = {0.4, 0.8, 1.25, 2.5}, square[] = {0.16, 0.64, 1.5625, 6.25};
};

/// What the lines of a set of points are made of.
template <int points>
struct Lines {
  using P = Pairs<points>;
  static constexpr int pairs = points / 2 - 1;
  float zero[pairs] = {};         ///< N(y)/N(0) from y on
  float infinity[pairs] = {};     ///< N(y) below its leading 1
  float pair[pairs][pairs] = {};  ///< the same of N(y)/(y - p^2)
  float root[pairs] = {};
  float power[pairs][points] = {};   ///< p^j
  float weight[pairs][points] = {};  ///< p^j/M'(p)
  constexpr Lines() {
    double n[pairs + 1];
    product(-1, n);
    for (int k = 0; k < pairs; ++k) zero[k] = float(n[k + 1] / n[0]), infinity[k] = float(n[k]);
    for (int i = 0; i < pairs; ++i) {
      product(i, n);
      for (int k = 0; k < pairs; ++k) pair[i][k] = float(n[k]);
      double slope = 2 * P::square[i];
      for (int j = 0; j < pairs; ++j) slope *= j == i ? 1 : P::square[i] - P::square[j];
      root[i] = float(P::root[i]);
      for (int j = 0; j < points; ++j) {
        double p = j % 2 ? P::root[i] : 1;
        for (int e = 0; e < j / 2; ++e) p *= P::square[i];
        power[i][j] = float(p), weight[i][j] = float(p / slope);
      }
    }
  }

 private:
  /// Coefficients of prod(y - square), the pair `without` left out.
  static constexpr void product(int without, double (&c)[pairs + 1]) {
    for (int j = 0; j <= pairs; ++j) c[j] = j == 0;
    for (int i = 0; i < pairs; ++i)
      for (int j = pairs; i != without && j >= 0; --j) c[j] = (j > 0 ? c[j - 1] : 0) - P::square[i] * c[j];
  }
};
template <int points>
constexpr Lines<points> lines_of;

/// How often loops over the points of a line are unrolled, whatever the level of optimisation: an array that is indexed
/// at run time lives in memory (CosmoFlow took 1.1 to 1.25 times as long with -O2).
constexpr int all_points = sanitized ? 1 : 10;

/// `count` vectors that stand `step` floats apart, to registers and back.
template <int count>
[[gnu::always_inline]] inline void read_points(const float* from, int64_t step, Vec* line) {
#pragma GCC unroll all_points
  for (int k = 0; k < count; ++k) line[k] = load(from + k * step);
}
template <int count>
[[gnu::always_inline]] inline void write_points(const Vec* line, float* to, int64_t step) {
#pragma GCC unroll all_points
  for (int k = 0; k < count; ++k) store(to + k * step, line[k]);
}
template <int count>
[[gnu::always_inline]] inline void move_points(const Vec* from, Vec* to) {
#pragma GCC unroll all_points
  for (int k = 0; k < count; ++k) to[k] = from[k];
}

/// B^T in place. Lines are inlined, or their vectors would live in memory.
template <int points>
[[gnu::always_inline]] inline void input_line(Vec* d) {
  if constexpr (points > 1) {
    constexpr auto& lines = lines_of<points>;
    constexpr int pairs = lines.pairs, last = points - 1;
    Vec zero = d[0], infinity = d[last], even[pairs], odd[pairs];
#pragma GCC unroll 4
    for (int k = 0; k < pairs; ++k) {
      zero = fma(Vec::all(lines.zero[k]), d[2 * k + 2], zero);
      infinity = fma(Vec::all(lines.infinity[k]), d[2 * k + 1], infinity);
    }
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i) {
      even[i] = d[last - 1], odd[i] = d[last - 2];
#pragma GCC unroll 3
      for (int k = 0; k < pairs - 1; ++k)
        even[i] = fma(Vec::all(lines.pair[i][k]), d[2 * k + 2], even[i]),
        odd[i] = fma(Vec::all(lines.pair[i][k]), d[2 * k + 1], odd[i]);
    }
    d[0] = zero, d[last] = infinity;
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i)
      d[2 * i + 1] = fma(Vec::all(lines.root[i]), odd[i], even[i]),
                d[2 * i + 2] = fma(Vec::all(-lines.root[i]), odd[i], even[i]);
  }
}

/// A^T: points in, outputs out; `in` and `out` may overlap.
template <int points, int outputs>
[[gnu::always_inline]] inline void output_line(const Vec* in, Vec* out) {
  if constexpr (points == 1) {
    out[0] = in[0];
  } else {
    constexpr auto& lines = lines_of<points>;
    constexpr int pairs = lines.pairs;
    Vec first = in[0], last = in[points - 1], terms[2][pairs];
#pragma GCC unroll 4
    for (int i = 0; i < pairs; ++i) {
      terms[0][i] = in[2 * i + 1] + in[2 * i + 2], terms[1][i] = in[2 * i + 1] - in[2 * i + 2];
      first = first + terms[0][i];
    }
    out[0] = first;
#pragma GCC unroll 5
    for (int j = 1; j < outputs; ++j) {
      const Vec* term = terms[j % 2];
      Vec total = Vec::all(lines.power[0][j]) * term[0];
      if (j == outputs - 1)
        total = fma(Vec::all(lines.power[0][j]), term[0], last);  // infinity belongs to the last output
#pragma GCC unroll 3
      for (int i = 1; i < pairs; ++i) total = fma(Vec::all(lines.power[i][j]), term[i], total);
      out[j] = total;
    }
  }
}

/// G: taps in, points out.
template <int points, int taps>
[[gnu::always_inline]] inline void weight_line(const Vec* g, Vec* out) {
  if constexpr (points == 1) {
    out[0] = g[0];
  } else {
    constexpr auto& lines = lines_of<points>;
    const Vec first = g[0], last = g[taps - 1];
#pragma GCC unroll 4
    for (int i = 0; i < lines.pairs; ++i) {
      Vec part[2] = {Vec::all(lines.weight[i][0]) * g[0], Vec::all(lines.weight[i][1]) * g[1]};
#pragma GCC unroll 4
      for (int t = 2; t < taps; ++t) part[t % 2] = fma(Vec::all(lines.weight[i][t]), g[t], part[t % 2]);
      out[2 * i + 1] = part[0] + part[1], out[2 * i + 2] = part[0] - part[1];
    }
    out[0] = first, out[points - 1] = last;
  }
}

/// One axis of a scheme. A stride of 2 splits three taps: the outer two meet every second position, two taps in four
/// points (F(3,2)), and the middle one meets the positions between, a product each: 7 instead of 9 for 3 outputs.
/// Upwards (transposed) the same taps give every second output from four inputs: 7 for 6 outputs.
template <int points_, int outputs_, int taps_, int inputs_ = points_, int weights_ = points_, int down_ = 1,
          int up_ = 1>
struct Axis {
  static constexpr int points = points_, outputs = outputs_, taps = taps_, inputs = inputs_;
  static constexpr int weights = weights_;             ///< the points behind use the last of them again
  static constexpr int down = down_, up = up_;         ///< stride, and stride of the convolution that is transposed
  static constexpr int advance = outputs * down / up;  ///< inputs from tile to tile
  static constexpr bool splits = down > 1 || up > 1;
  /// First input position of the tile at output `at`.
  static constexpr int64_t first(int64_t at, int64_t pad) { return up > 1 ? (at + pad) / up - 1 : at * down - pad; }
};
using Flat = Axis<1, 1, 1>;
using TwoThree = Axis<4, 2, 3>;
using FourThree = Axis<6, 4, 3>;
using SixThree = Axis<8, 6, 3>;
using TwoFive = Axis<6, 2, 5>;
using FourFive = Axis<8, 4, 5>;
using SixFive = Axis<10, 6, 5>;
using ThreeDown = Axis<7, 3, 3, 7, 5, 2, 1>;
using ThreeUp = Axis<7, 6, 3, 4, 5, 1, 2>;

/// Of a weight gradient, outputs and taps change places.
template <class A>
struct MirroredAxis {
  using Type = Axis<A::points, A::taps, A::outputs>;
};
/// Three values of the gradient become seven points, 4 for the outer taps and each for itself in the middle, whose
/// three products add up in one of five sums.
struct ThreeGradient {
  static constexpr int points = 5, outputs = 3, taps = 3, inputs = 5, weights = 7, down = 1, up = 1;
};
template <>
struct MirroredAxis<ThreeDown> {
  using Type = ThreeGradient;
};
template <class A>
using Mirrored = typename MirroredAxis<A>::Type;

/// B^T of an axis in place: inputs in, points out.
template <class A>
[[gnu::always_inline]] inline void axis_input(Vec* d) {
  if constexpr (!A::splits) {
    input_line<A::points>(d);
  } else {
    constexpr int step = A::down;
    Vec outer[4], middle[3];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) outer[i] = d[i * step];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) middle[i] = d[i * step + 1];
    input_line<4>(outer);
    move_points<4>(outer, d), move_points<3>(middle, d + 4);
  }
}

/// A^T of an axis; `in` and `out` may overlap where no stride splits it.
template <class A>
[[gnu::always_inline]] inline void axis_output(const Vec* in, Vec* out) {
  if constexpr (std::is_same_v<A, ThreeGradient>) {
    Vec outer[2];
    output_line<4, 2>(in, outer);
    out[0] = outer[0], out[1] = in[4], out[2] = outer[1];
  } else if constexpr (!A::splits) {
    output_line<A::points, A::outputs>(in, out);
  } else {
    Vec outer[3];
    output_line<4, 3>(in, outer);
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      if constexpr (A::up > 1)
        out[2 * i] = outer[i], out[2 * i + 1] = in[4 + i];
      else
        out[i] = outer[i] + in[4 + i];
    }
  }
}

/// G of an axis: taps in, weights out.
template <class A>
[[gnu::always_inline]] inline void axis_weights(const Vec* g, Vec* out) {
  if constexpr (std::is_same_v<A, ThreeGradient>) {
    weight_line<4, 3>(g, out);
    move_points<3>(g, out + 4);
  } else if constexpr (!A::splits) {
    weight_line<A::points, A::taps>(g, out);
  } else {
    const Vec outer[2] = {g[0], g[2]};
    weight_line<4, 2>(outer, out);
    out[4] = g[1];
  }
}
