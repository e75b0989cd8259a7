// The register file that emulates the tiles of hardware_tiles.inl, for tests.

/// The eight tile registers in memory: the same sums up to their order (and the hardware flushes denormals).
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
  static Vec add_products(uint32_t word, Vec first, Vec second, Vec total) {
    total = fma(Vec::all(std::bit_cast<float>(word << 16)), first, total);
    return fma(Vec::all(std::bit_cast<float>(word & 0xffff0000u)), second, total);
  }
  template <int sum, int a, int b>
  static void multiply_add() {
    float* sums = reinterpret_cast<float*>(tiles[sum].data());
    const uint32_t *left = tiles[a].data(), *right = tiles[b].data();
    Vec first[16], second[16];
    for (int k = 0; k < 16; ++k) first[k] = first_halves(right + 16 * k), second[k] = second_halves(right + 16 * k);
    for (int r = 0; r < 16; r += 2) {  // two sums of 16 numbers fit the registers of any CPU
      Vec upper = set::load(sums + 16 * r), lower = set::load(sums + 16 * r + 16);
      const uint32_t* words = left + 16 * r;
      for (int k = 0; k < 16; ++k) {
        upper = add_products(words[k], first[k], second[k], upper);
        lower = add_products(words[16 + k], first[k], second[k], lower);
      }
      set::store(sums + 16 * r, upper), set::store(sums + 16 * r + 16, lower);
    }
  }
};
