// Included inside the namespace of an instruction set, like common.inl.

/// exp for arguments of -87 to 88, to about 2 units in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, and the
/// polynomial of Moshier's Cephes library for exp(r).
inline Vec exp_bounded(Vec x) {
  const Vec n = round_nearest(x * Vec::all(1.44269504088896341f));
  Vec r = fma(n, Vec::all(-0.693359375f), x);
  r = fma(n, Vec::all(2.12194440e-4f), r);
  Vec e = fma(r, Vec::all(1.9875691500e-4f), Vec::all(1.3981999507e-3f));
  e = fma(e, r, Vec::all(8.3334519073e-3f));
  e = fma(e, r, Vec::all(4.1665795894e-2f));
  e = fma(e, r, Vec::all(1.6666665459e-1f));
  e = fma(e, r, Vec::all(5.0000001201e-1f));
  return fma(e * r, r, r + Vec::all(1.0f)) * exp2_integral(max(Vec::all(-126.0f), n));
}

/// log for arguments of 1 to 16, to about 1e-7 of the larger of result and 1e-7: powers of two are taken out until the
/// rest lies around 1, where the polynomial is that of Cephes.
inline Vec log_one_to_sixteen(Vec x) {
  Vec twos = Vec::all(0.0f);
  const auto take_out = [&](float above, float factor, float exponent) {
    const Mask m = greater(x, Vec::all(above));
    x = select(m, x * Vec::all(factor), x);
    twos = select(m, twos + Vec::all(exponent), twos);
  };
  take_out(2.82842712f, 0.25f, 2);
  take_out(2.82842712f, 0.25f, 2);
  take_out(1.41421356f, 0.5f, 1);
  const Vec z = x - Vec::all(1.0f);
  Vec p = fma(z, Vec::all(7.0376836292e-2f), Vec::all(-1.1514610310e-1f));
  for (float c : {1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f, 2.0000714765e-1f,
                  -2.4999993993e-1f, 3.3333331174e-1f})
    p = fma(p, z, Vec::all(c));
  const Vec square = z * z;
  Vec result = fma(p * z, square, twos * Vec::all(-2.12194440e-4f));
  result = fma(square, Vec::all(-0.5f), result) + z;
  return fma(twos, Vec::all(0.693359375f), result);
}
