// A block of a dense product in registers. Columns of the right factor are packed two vectors at a time.

constexpr int64_t gemm_rows = Vec::lanes == 16 ? 8 : 4;  // times two vectors: the accumulators
constexpr int64_t gemm_columns = 2 * Vec::lanes;

/// m (rows x columns vectors) = v (rows x C) * u (C x columns vectors); u is packed, `columns` is 1 or 2 vectors.
template <int columns>
inline void gemm_tile(const float* v, int64_t channels, const float* u, float* m, int64_t m_row) {
  Vec total[gemm_rows][columns];
#pragma GCC unroll 8
  for (int r = 0; r < gemm_rows; ++r)
#pragma GCC unroll 2
    for (int q = 0; q < columns; ++q) total[r][q] = Vec::all(0.0f);
  for (int64_t c = 0; c < channels; ++c) {
    Vec weight[columns];
#pragma GCC unroll 2
    for (int q = 0; q < columns; ++q) weight[q] = load(u + c * gemm_columns + q * Vec::lanes);
#pragma GCC unroll 8
    for (int r = 0; r < gemm_rows; ++r) {
      const Vec value = Vec::all(v[r * channels + c]);
#pragma GCC unroll 2
      for (int q = 0; q < columns; ++q) total[r][q] = fma(value, weight[q], total[r][q]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < gemm_rows; ++r)
#pragma GCC unroll 2
    for (int q = 0; q < columns; ++q) store(m + r * m_row + q * Vec::lanes, total[r][q]);
}
