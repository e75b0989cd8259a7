// The register file that emulates the tiles of hardware_tiles.inl, for tests.

/// The eight tile registers in memory: the same sums up to their order (and the hardware flushes denormals), on any
/// machine. For tests.
struct EmulatedTiles : TileLines {
  struct Scope {
    Scope() {}
  };
  alignas(64) static inline thread_local std::array<std::array<uint32_t, 256>, 8> tiles;
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
  template <int sum, int a, int b>
  static void multiply_add() {
    float* sums = reinterpret_cast<float*>(tiles[sum].data());
    const uint32_t *left = tiles[a].data(), *right = tiles[b].data();
    Vec total[16];
    for (int r = 0; r < 16; ++r) total[r] = set::load(sums + 16 * r);
    for (int k = 0; k < 16; ++k) {
      const Vec first = first_halves(right + 16 * k), second = second_halves(right + 16 * k);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        const uint32_t word = left[16 * r + k];
        total[r] = fma(Vec::all(std::bit_cast<float>(word << 16)), first, total[r]);
        total[r] = fma(Vec::all(std::bit_cast<float>(word & 0xffff0000u)), second, total[r]);
      }
    }
    for (int r = 0; r < 16; ++r) set::store(sums + 16 * r, total[r]);
  }
};
