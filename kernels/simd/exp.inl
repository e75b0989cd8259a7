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
