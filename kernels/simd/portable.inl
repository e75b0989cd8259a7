// Sixteen f32 lanes in plain C++: what loop nests for AMX use of avx512.inl and avx512_words.inl, under the same names,
// so that tests run them on any CPU. Included inside a namespace.

struct Vec {
  static constexpr int lanes = 16;
  typedef float Lanes __attribute__((vector_size(64)));  // in as many registers as the CPU needs
  Lanes v;
  static Vec all(float x);
};
struct Mask {
  bool m[16];
};
struct WordVec {
  uint32_t word[16];
};
struct Ints {
  WordVec v;
  static Ints all(int x);
};

/// f(lane) of every lane.
template <class F>
inline Vec vec_of(F&& f) {
  Vec a{};
  for (int i = 0; i < 16; ++i) a.v[i] = f(i);
  return a;
}
template <class F>
inline Mask mask_of(F&& f) {
  Mask a;
  for (int i = 0; i < 16; ++i) a.m[i] = f(i);
  return a;
}
template <class F>
inline WordVec words_of(F&& f) {
  WordVec a;
  for (int i = 0; i < 16; ++i) a.word[i] = f(i);
  return a;
}

inline Vec Vec::all(float x) { return {x - Lanes{}}; }
inline Ints Ints::all(int x) {
  return {words_of([=](int) { return static_cast<uint32_t>(x); })};
}
inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Mask greater(Vec a, Vec b) {
  return mask_of([&](int i) { return a.v[i] > b.v[i]; });
}
/// a is larger, or a NaN that b is not.
inline Mask passes(Vec a, Vec b) {
  return mask_of([&](int i) { return !(a.v[i] <= b.v[i]) && b.v[i] == b.v[i]; });
}
inline Vec select(Mask m, Vec yes, Vec no) {
  return vec_of([&](int i) { return m.m[i] ? yes.v[i] : no.v[i]; });
}
inline Ints select(Mask m, Ints yes, Ints no) {
  return {words_of([&](int i) { return m.m[i] ? yes.v.word[i] : no.v.word[i]; })};
}
inline Mask equal(Ints a, Ints b) {
  return mask_of([&](int i) { return a.v.word[i] == b.v.word[i]; });
}

/// Sixteen values, or the first n and zeros.
template <class T>
inline Vec load(const T* p) {
  return vec_of([=](int i) { return static_cast<float>(p[i]); });
}
template <class T>
inline Vec load(const T* p, int64_t n) {
  return vec_of([=](int i) { return i < n ? static_cast<float>(p[i]) : 0.0f; });
}
template <class T>
inline void store(T* p, Vec a) {
  for (int i = 0; i < 16; ++i) p[i] = T(a.v[i]);
}
template <class T>
inline void store(T* p, Vec a, int64_t n) {
  for (int i = 0; i < n; ++i) p[i] = T(a.v[i]);
}
/// Past the caches, where there is such a way.
template <class T>
inline void store_line(T* p, Vec a) {
  store(p, a);
}
inline void fence() {}
/// Values as they read back after a store of the type.
template <class T>
inline Vec rounded(T, Vec a) {
  return vec_of([&](int i) { return static_cast<float>(T(a.v[i])); });
}

inline Ints load_bytes(const uint8_t* p, int64_t n = 16) {
  return {words_of([=](int i) { return i < n ? uint32_t{p[i]} : 0u; })};
}
inline void store_bytes(uint8_t* p, Ints a, int64_t n = 16) {
  for (int i = 0; i < n; ++i) p[i] = static_cast<uint8_t>(a.v.word[i]);
}

/// Rows and columns change places.
inline void turn_words(WordVec (&m)[16]) {
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < r; ++c) std::swap(m[r].word[c], m[c].word[r]);
}
inline void turn(Vec (&m)[16]) {
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < r; ++c) {
      const float other = m[r].v[c];
      m[r].v[c] = m[c].v[r], m[c].v[r] = other;
    }
}

/// Words of two 16-bit values.
inline WordVec no_words() { return {}; }
inline void store_words(uint32_t* p, WordVec a) { std::memcpy(p, a.word, sizeof a.word); }
/// bf16 in the lower halves of the lanes.
inline Ints as_halves(bf16, Vec a) {
  return {words_of([&](int i) { return uint32_t{bf16(a.v[i]).bits}; })};
}
inline void store_halves(bf16* p, Ints a, int64_t n) {
  for (int i = 0; i < n; ++i) p[i].bits = static_cast<uint16_t>(a.v.word[i]);
}
inline void store_halves(bf16* p, Ints a, std::integral_constant<int64_t, 0>) { store_halves(p, a, int64_t{16}); }
/// Neighbouring values of a 16-bit type, each in the lower half of a lane; a tail of n is filled up with zeros.
template <class T>
inline WordVec low_halves(const T* p, int64_t n) {
  return words_of([=](int i) { return i < n ? uint32_t{std::bit_cast<uint16_t>(p[i])} : 0u; });
}
template <class T>
inline WordVec low_halves(const T* p, std::integral_constant<int64_t, 0>) {
  return low_halves(p, int64_t{16});
}
/// Words of two positions for neighbouring channels.
template <class T, class N>
inline WordVec pair_positions(const T* first, const T* second, N n) {
  const WordVec a = low_halves(first, n), b = low_halves(second, n);
  return words_of([&](int i) { return a.word[i] | b.word[i] << 16; });
}
