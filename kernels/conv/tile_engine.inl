// The engine of direct.inl on AMX tiles, and the register file that emulates them. Included after pair_words.inl.

/// Tiles of 16 rows by 64 bytes: 2 x 2 tiles of sums take 32 positions x 32 channels, so four tile loads feed four
/// products (64 cycles of products beside 32 of loads from the first cache). Runs are multiples of 16 words.
/// `Tiles` is the hardware's or the emulated register file.
template <class Tiles>
struct TileEngine : PairWords<bf16> {
  static constexpr int64_t run_multiple = 16, spare_rows = 32;
  using Scope = typename Tiles::Scope;
  template <class F>
  static void for_blocks(int64_t count, int64_t, F&& f) {
    for (int64_t j = 0; j < count; j += 32) f(j, std::min<int64_t>(32, count - j));
  }

  static void block(int64_t rows, int64_t vectors, const BlockCall<Word>& call) {
    __asm__ volatile("" ::: "memory");  // the compiler does not know that tile loads read memory
    for (int64_t q = 0; q < vectors; q += 2) {
      const bool two_rows = rows > 16, two_columns = q + 1 < vectors;
      const float* init = call.init + q * 16;
      const int64_t pitch = call.init_pitch * 4;  // 0 repeats the bias in every row
      Tiles::template load<0>(init, pitch);
      if (two_columns) Tiles::template load<1>(init + 16, pitch);
      if (two_rows) Tiles::template load<2>(init + 16 * call.init_pitch, pitch);
      if (two_rows && two_columns) Tiles::template load<3>(init + 16 * call.init_pitch + 16, pitch);
      for (int64_t s = 0; s < call.count; ++s) {
        const Segment<Word>& segment = call.segments[s];
        if (call.position >= segment.high || call.position + rows <= segment.low) continue;
        const Word *a = segment.a + call.a_shift, *b = segment.b + q * 16;
        for (int64_t i = 0; i < segment.length; i += 16, a += 16, b += 16 * call.width) {
          Tiles::template load<4>(a, call.row_step * 4);
          Tiles::template load<6>(b, call.width * 4);
          Tiles::template multiply_add<0, 4, 6>();
          if (two_rows) {
            Tiles::template load<5>(a + 16 * call.row_step, call.row_step * 4);
            Tiles::template multiply_add<2, 5, 6>();
          }
          if (!two_columns) continue;
          Tiles::template load<7>(b + 16, call.width * 4);
          Tiles::template multiply_add<1, 4, 7>();
          if (two_rows) Tiles::template multiply_add<3, 5, 7>();
        }
      }
      float* to = call.to + q * 16;
      write<0>(to, call.to_pitch, rows);
      if (two_columns) write<1>(to + 16, call.to_pitch, rows);
      if (two_rows) write<2>(to + 16 * call.to_pitch, call.to_pitch, rows - 16);
      if (two_rows && two_columns) write<3>(to + 16 * call.to_pitch + 16, call.to_pitch, rows - 16);
    }
  }

 private:
  /// A whole tile goes straight to memory, the rows of a partial one through a buffer.
  template <int tile>
  static void write(float* to, int64_t pitch, int64_t rows) {
    if (rows >= 16) return Tiles::template store<tile>(to, pitch * 4);
    alignas(64) float buffer[16 * 16];
    Tiles::template store<tile>(buffer, 64);
    for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * pitch, buffer + r * 16, 64);
  }
};

/// The eight tile registers in memory: the same sums up to their order (and the hardware flushes denormals), on any
/// machine. For tests.
struct EmulatedTiles {
  struct Scope {
    Scope() {}
  };
  static inline thread_local std::array<std::array<uint32_t, 256>, 8> tiles;
  template <int tile>
  static void load(const void* from, int64_t pitch) {
    for (int64_t r = 0; r < 16; ++r) std::memcpy(&tiles[tile][static_cast<size_t>(r * 16)], static_cast<const char*>(from) + r * pitch, 64);
  }
  template <int tile>
  static void stream(const void* from, int64_t pitch) {
    load<tile>(from, pitch);
  }
  template <int tile>
  static void store(void* to, int64_t pitch) {
    for (int64_t r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * pitch, &tiles[tile][static_cast<size_t>(r * 16)], 64);
  }
  static void store_line(bf16* to, Vec low, Vec high, bool streams) {
    constexpr std::integral_constant<int64_t, 0> whole;
    put_output(to, low, whole, streams), put_output(to + 16, high, whole, streams);
  }
  static float widened(uint32_t word, int half) { return std::bit_cast<float>(half ? word & 0xffff0000u : word << 16); }
  template <int sum, int a, int b>
  static void multiply_add() {
    for (size_t r = 0; r < 16; ++r)
      for (size_t k = 0; k < 16; ++k)
        for (size_t c = 0; c < 16; ++c) {
          float total = std::bit_cast<float>(tiles[sum][r * 16 + c]);
          for (int half = 0; half < 2; ++half) total += widened(tiles[a][r * 16 + k], half) * widened(tiles[b][k * 16 + c], half);
          tiles[sum][r * 16 + c] = std::bit_cast<uint32_t>(total);
        }
  }
};
