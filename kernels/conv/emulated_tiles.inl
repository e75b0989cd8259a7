// The register file that emulates the tiles of hardware_tiles.inl, for tests.

/// The eight tile registers in memory: the same sums up to their order (and the hardware flushes denormals), on any
/// machine. For tests.
struct EmulatedTiles : TileLines {
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
