// Winograd transforms along one axis (Winograd 1980; Lavin & Gray 2016): outputs m and taps k meet in m + k - 1 points.
// The weight gradient of F(m,k) is F(k,m): k results from m values of the gradient.
//   4 points 0, 1, -1, infinity: F(2,3), F(3,2); entries 0, 1, 1/2, exact on small integers.
//   6 points 0, +-1/sqrt 2, +-sqrt 2, infinity: F(4,3), F(3,4), F(2,5), F(5,2); these points keep the entries' spread,
//     and with it the rounding error, smaller than the textbook's +-1, +-2.
//   1 point: an axis without a kernel.
// With points p and M(x) = x prod(x - p): rows of B^T are the coefficients of M(x)/(x - p), rows of G the powers of p
// over M'(p), columns of A^T the powers of p.

constexpr float root_half = 0.70710678f, root_two = 1.41421356f;

/// B^T in place.
template <int points>
inline void input_line(Vec* d) {
  if constexpr (points == 4) {
    const Vec t0 = d[0] - d[2], t1 = d[1] + d[2], t2 = d[2] - d[1], t3 = d[1] - d[3];
    d[0] = t0, d[1] = t1, d[2] = t2, d[3] = t3;
  } else if constexpr (points == 6) {
    const Vec half = Vec::all(-0.5f), two = Vec::all(-2.0f), sum = Vec::all(-2.5f);
    const Vec r0 = fma(sum, d[2], d[0] + d[4]), r5 = fma(sum, d[3], d[1] + d[5]);
    const Vec e1 = fma(two, d[2], d[4]), o1 = Vec::all(root_half) * fma(two, d[1], d[3]);
    const Vec e2 = fma(half, d[2], d[4]), o2 = Vec::all(root_two) * fma(half, d[1], d[3]);
    d[0] = r0, d[1] = e1 + o1, d[2] = e1 - o1, d[3] = e2 + o2, d[4] = e2 - o2, d[5] = r5;
  }
}

/// A^T: points in, outputs out; `in` and `out` may overlap.
template <int points, int outputs>
inline void output_line(const Vec* in, Vec* out) {
  if constexpr (points == 1) {
    out[0] = in[0];
  } else if constexpr (points == 4) {
    const Vec sum = in[1] + in[2], difference = in[1] - in[2], last = in[3];
    out[0] = in[0] + sum;
    if constexpr (outputs == 2) {
      out[1] = difference - last;
    } else {
      out[1] = difference, out[2] = sum - last;
    }
  } else {
    const Vec s1 = in[1] + in[2], t1 = in[1] - in[2], s2 = in[3] + in[4], t2 = in[3] - in[4], last = in[5];
    const Vec odd = fma(Vec::all(root_half), t1, Vec::all(root_two) * t2);
    out[0] = in[0] + s1 + s2;
    if constexpr (outputs == 2) {
      out[1] = odd + last;
    } else {
      // The point at infinity belongs to the last output.
      const auto power = [&](float small, float large, Vec a, Vec b, bool ends) {
        return fma(Vec::all(small), a, ends ? fma(Vec::all(large), b, last) : Vec::all(large) * b);
      };
      out[1] = odd;
      out[2] = power(0.5f, 2.0f, s1, s2, outputs == 3);
      if constexpr (outputs > 3) out[3] = power(0.5f * root_half, 2.0f * root_two, t1, t2, outputs == 4);
      if constexpr (outputs > 4) out[4] = power(0.25f, 4.0f, s1, s2, true);
    }
  }
}

/// G: taps in, points out.
template <int points, int taps>
inline void weight_line(const Vec* g, Vec* out) {
  if constexpr (points == 1) {
    out[0] = g[0];
  } else if constexpr (points == 4) {
    const Vec half = Vec::all(0.5f), even = (taps == 3 ? g[0] + g[taps - 1] : g[0]) * half, odd = g[1] * half;
    const Vec last = g[taps - 1];
    out[0] = g[0], out[1] = even + odd, out[2] = even - odd, out[3] = last;
  } else {
    const auto pair = [&](float square, float root, float scale, Vec& plus, Vec& minus) {
      Vec even = g[0], odd = g[1];
      if constexpr (taps > 2) even = fma(Vec::all(square), g[2], even);
      if constexpr (taps > 3) odd = fma(Vec::all(square), g[3], odd);
      if constexpr (taps > 4) even = fma(Vec::all(square * square), g[4], even);
      even = even * Vec::all(scale), odd = odd * Vec::all(scale * root);
      plus = even + odd, minus = even - odd;
    };
    out[0] = g[0];
    pair(0.5f, root_half, -1.0f / 1.5f, out[1], out[2]);
    pair(2.0f, root_two, 1.0f / 6.0f, out[3], out[4]);
    out[5] = g[taps - 1];
  }
}

/// One axis of a scheme. A stride of 2 splits three taps: the outer two meet every second position, two taps in four
/// points (F(3,2)), and the middle one meets the positions between, a product each: 7 instead of 9 for 3 outputs. Upwards
/// (transposed) the same taps give every second output from four inputs: 7 for 6 outputs.
template <int points_, int outputs_, int taps_, int inputs_ = points_, int weights_ = points_, int down_ = 1, int up_ = 1>
struct Axis {
  static constexpr int points = points_, outputs = outputs_, taps = taps_, inputs = inputs_;
  static constexpr int weights = weights_;        ///< the points behind use the last of them again
  static constexpr int down = down_, up = up_;    ///< stride, and stride of the convolution that is transposed
  static constexpr int advance = outputs * down / up;  ///< inputs from tile to tile
  static constexpr bool splits = down > 1 || up > 1;
  /// First input position of the tile at output `at`.
  static constexpr int64_t first(int64_t at, int64_t pad) { return up > 1 ? (at + pad) / up - 1 : at * down - pad; }
};
using Flat = Axis<1, 1, 1>;
using TwoThree = Axis<4, 2, 3>;
using FourThree = Axis<6, 4, 3>;
using TwoFive = Axis<6, 2, 5>;
using ThreeDown = Axis<7, 3, 3, 7, 5, 2, 1>;
using ThreeUp = Axis<7, 6, 3, 4, 5, 1, 2>;

/// B^T of an axis in place: inputs in, points out.
template <class A>
inline void axis_input(Vec* d) {
  if constexpr (!A::splits) {
    input_line<A::points>(d);
  } else {
    constexpr int step = A::down;
    Vec outer[4], middle[3];
    for (int i = 0; i < 4; ++i) outer[i] = d[i * step];
    for (int i = 0; i < 3; ++i) middle[i] = d[i * step + 1];
    input_line<4>(outer);
    for (int i = 0; i < 4; ++i) d[i] = outer[i];
    for (int i = 0; i < 3; ++i) d[4 + i] = middle[i];
  }
}

/// A^T of an axis; `in` and `out` may overlap where no stride splits it.
template <class A>
inline void axis_output(const Vec* in, Vec* out) {
  if constexpr (!A::splits) {
    output_line<A::points, A::outputs>(in, out);
  } else {
    Vec outer[3];
    output_line<4, 3>(in, outer);
    for (int i = 0; i < 3; ++i) {
      if constexpr (A::up > 1) out[2 * i] = outer[i], out[2 * i + 1] = in[4 + i];
      else out[i] = outer[i] + in[4 + i];
    }
  }
}

/// G of an axis: taps in, weights out.
template <class A>
inline void axis_weights(const Vec* g, Vec* out) {
  if constexpr (!A::splits) {
    weight_line<A::points, A::taps>(g, out);
  } else {
    const Vec outer[2] = {g[0], g[2]};
    weight_line<4, 2>(outer, out);
    out[4] = g[1];
  }
}
