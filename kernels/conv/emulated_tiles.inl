// The register file that emulates the tiles of hardware_tiles.inl, for tests.

/// The eight tile registers in memory: the same sums up to their order (and the hardware flushes denormals), on any
/// machine. For tests.
struct EmulatedTiles : NoLines {
  struct Scope {
    Scope() {}
  };
  static inline thread_local std::array<std::array<uint32_t, 256>, 8> tiles;
  template <int tile>
  static void load(const void* from, int64_t pitch) {
    for (int64_t r = 0; r < 16; ++r)
      std::memcpy(&tiles[tile][static_cast<size_t>(r * 16)], static_cast<const char*>(from) + r * pitch, 64);
  }
  template <int tile>
  static void stream(const void* from, int64_t pitch) {
    load<tile>(from, pitch);
  }
  template <int tile>
  static void store(void* to, int64_t pitch) {
    for (int64_t r = 0; r < 16; ++r)
      std::memcpy(static_cast<char*>(to) + r * pitch, &tiles[tile][static_cast<size_t>(r * 16)], 64);
  }
  static void weave(const bf16* first, const bf16* second, int64_t n, uint32_t* low, uint32_t* high) {
    for (int64_t k = 0; k < panel_width; ++k) {
      const int64_t column = woven_column(k, panel_width);
      const bf16 a = first && k < n ? first[k] : bf16{}, b = second && k < n ? second[k] : bf16{};
      (column < 16 ? low + column : high + column - 16)[0] = PairWords<bf16>::word(a, b);
    }
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
          for (int half = 0; half < 2; ++half)
            total += widened(tiles[a][r * 16 + k], half) * widened(tiles[b][k * 16 + c], half);
          tiles[sum][r * 16 + c] = std::bit_cast<uint32_t>(total);
        }
  }
};
