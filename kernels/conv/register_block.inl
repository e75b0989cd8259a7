// The register block of the direct convolutions: `rows` values broadcast against `vectors` vectors, summed along runs
// of memory. Forward and backward_data: rows are output positions, the run is taps x channels. Backward_weights: rows
// are taps x channels of the input, the run is positions. One scheme, so one place to tune.
//
// Registers: rows * vectors sums, `vectors` weights, one broadcast. AVX-512 6 x 4 (29 of 32), 8 x 3 or 12 x 2; AVX2 6 x
// 2 (15 of 16) or 12 x 1.
// Loads per multiply-add: (rows + vectors) / (rows * vectors) = 0.42 and 0.67; the second-level cache supplies
// `vectors` vectors per rows * vectors multiply-adds (21 bytes per cycle at two FMA per cycle).

constexpr int block_rows = sanitized ? 2 : 6;  // beside all vectors; narrower blocks take more rows
constexpr int block_vectors = Vec::lanes == 16 ? 4 : 2;
constexpr int64_t block_width = block_vectors * Vec::lanes;

/// Products of f32 values.
struct F32Dot {
  static constexpr bool narrows = false;
  using Word = float;
  using Wide = Vec;
  static Wide load_words(const Word* p) { return load(p); }
  static Wide broadcast(const Word* p) { return Vec::all(*p); }
  static Vec multiply_add(Wide a, Wide b, Vec total) { return fma(a, b, total); }
};

/// One contiguous piece of a sum. `a` and `b` point at the block's first row and first vector.
template <class Word>
struct Segment {
  const Word* a;
  const Word* b;
  int64_t length;
  int64_t low, high;  ///< positions whose values are not all padding
};

/// Adds up segments. Row r of step i is a[r * row_step + i * run_step]; b advances by `width` words a step.
/// Starts from `init` (row pitch init_pitch, 0 repeats one row), writes to `to`.
template <class Word>
struct BlockCall {
  const Segment<Word>* segments;
  int64_t count;
  int64_t position;  ///< of row 0, for low and high
  int64_t a_shift;   ///< words from a segment's `a` to row 0
  int64_t row_step, run_step, width;
  const float* init;
  int64_t init_pitch;
  float* to;
  int64_t to_pitch;
  int64_t ahead = 0;  ///< words from a row to one that a later block reads; its cache lines may be asked for meanwhile
  bool streams = false;  ///< whole cache lines of `to`, or of `narrow`, go past the caches
  void* narrow =
      nullptr;  ///< written instead of `to` (same pitch, in its elements), in the 16-bit type of a Dot that `narrows`
};
constexpr int64_t line_words = 16;  // of a cache line

/// Calls put(offset, vector) for a block of sums. Inlined, or the sums would live in memory.
template <int rows, int vectors, class Put>
[[gnu::always_inline]] inline void put_block(const Vec (&total)[rows][vectors], int64_t pitch, Put put) {
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) put(r * pitch + q * Vec::lanes, total[r][q]);
}

/// The same in a 16-bit type, where vectors are even a cache line at a time; streamed blocks are.
template <class Dot, int rows, int vectors>
[[gnu::always_inline]] inline void put_narrow(const Vec (&total)[rows][vectors],
                                              const BlockCall<typename Dot::Word>& call) {
#pragma GCC unroll 12
  for (int r = 0; r < rows; ++r) {
    if constexpr (vectors % 2 == 0) {
#pragma GCC unroll 2
      for (int q = 0; q < vectors; q += 2)
        Dot::store_line(call.narrow, r * call.to_pitch + q * Vec::lanes, total[r][q], total[r][q + 1], call.streams);
    } else {
#pragma GCC unroll 3
      for (int q = 0; q < vectors; ++q) Dot::store_half(call.narrow, r * call.to_pitch + q * Vec::lanes, total[r][q]);
    }
  }
}

template <class Dot, int rows, int vectors, bool unit_run>
void register_block(const BlockCall<typename Dot::Word>& call) {
  using Word = typename Dot::Word;
  Vec total[rows][vectors];
  if (call.init_pitch == 0) {  // the bias: no load for every sum of short runs
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) {
      const Vec first = load(call.init + q * Vec::lanes);
#pragma GCC unroll 12
      for (int r = 0; r < rows; ++r) total[r][q] = first;
    }
  } else {
#pragma GCC unroll 12
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < vectors; ++q) total[r][q] = load(call.init + r * call.init_pitch + q * Vec::lanes);
  }
  const int64_t row_step = unit_run ? call.row_step : 1, run_step = unit_run ? 1 : call.run_step, width = call.width;
  for (int64_t s = 0; s < call.count; ++s) {
    const Segment<Word>& segment = call.segments[s];
    if (call.position >= segment.high || call.position + rows <= segment.low) continue;
    const Word* a = segment.a + call.a_shift;
    const Word* b = segment.b;
    const int64_t piece = unit_run && call.ahead && segment.length > 2 * line_words ? line_words : segment.length;
    for (int64_t begin = 0; begin < segment.length; begin += piece) {
      const int64_t steps = std::min(piece, segment.length - begin);
      if (unit_run && call.ahead)
        for (int64_t line = 0; line < steps; line += line_words)
#pragma GCC unroll 12
          for (int r = 0; r < rows; ++r) __builtin_prefetch(a + r * row_step + call.ahead + line);
      for (int64_t i = 0; i < steps; ++i, a += run_step, b += width) {
        typename Dot::Wide weight[vectors];
#pragma GCC unroll 4
        for (int q = 0; q < vectors; ++q) weight[q] = Dot::load_words(b + q * Vec::lanes);
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
          const typename Dot::Wide value = Dot::broadcast(a + r * row_step);
#pragma GCC unroll 4
          for (int q = 0; q < vectors; ++q) total[r][q] = Dot::multiply_add(value, weight[q], total[r][q]);
        }
      }
    }
  }
  if constexpr (Dot::narrows) {
    if (call.narrow) return put_narrow<Dot>(total, call);
  } else if (call.streams) {
    return put_block(total, call.to_pitch, [to = call.to](int64_t at, Vec v) { store_line(to + at, v); });
  }
  put_block(total, call.to_pitch, [to = call.to](int64_t at, Vec v) { store(to + at, v); });
}

/// The register block of every size for products `Dot`: F32Dot, or an engine's own.
template <class Dot, bool unit_run>
struct RegisterBlock {
  using Word = typename Dot::Word;
  static constexpr bool narrows = Dot::narrows;
  template <int rows, int vectors>
  static void run(const BlockCall<Word>& call) {
    register_block<Dot, rows, vectors, unit_run>(call);
  }
};

/// Rows that fill the registers beside `vectors` vectors.
constexpr int rows_beside(int vectors) {
  return std::min(12, block_rows * block_vectors / vectors);
}

template <class Block, int vectors, int rows = rows_beside(vectors)>
void run_block_of(int64_t wanted, const BlockCall<typename Block::Word>& call) {
  if (wanted == rows) return Block::template run<rows, vectors>(call);
  if constexpr (rows > 1) run_block_of<Block, vectors, rows - 1>(wanted, call);
}

/// vectors in [1, block_vectors], rows in [1, rows_beside(vectors)].
template <class Block, int most = block_vectors>
void run_block(int64_t rows, int64_t vectors, const BlockCall<typename Block::Word>& call) {
  if (vectors == most) return run_block_of<Block, most>(rows, call);
  if constexpr (most > 1) run_block<Block, most - 1>(rows, vectors, call);
}

/// Cuts `total` rows into register blocks.
template <class F>
void for_row_blocks(int64_t total, int64_t vectors, F&& f) {
  for_even_blocks(total, rows_beside(static_cast<int>(vectors)), f);
}
