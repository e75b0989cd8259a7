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
