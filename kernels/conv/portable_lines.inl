// Lines of channels between tiles and memory, as tile_lines.inl has them, on any CPU: for emulated tiles.

struct TileLines {
  static void weave(const bf16* first, const bf16* second, int64_t n, uint32_t* low, uint32_t* high) {
    for (int64_t c = 0; c < 32; ++c) {
      const bf16 a = first && c < n ? first[c] : bf16{}, b = second && c < n ? second[c] : bf16{};
      (c % 8 < 4 ? low : high)[c / 8 * 4 + c % 4] = PairWords<bf16>::word(a, b);
    }
  }
  static void copy_line(const bf16* from, int64_t n, bf16* to) {
    std::copy(from, from + n, to);
    std::fill(to + n, to + 32, bf16{});
  }
  static void turn_four(const bf16* from, bf16* to, int64_t pitch) {
    for (int64_t i = 0; i < 16; ++i)
      for (int64_t c = 0; c < 4; ++c) to[c * pitch + i] = from[i * 4 + c];
  }
  static Vec first_halves(const uint32_t* words) {
    return vec_of([=](int i) { return std::bit_cast<float>(words[i] << 16); });
  }
  static Vec second_halves(const uint32_t* words) {
    return vec_of([=](int i) { return std::bit_cast<float>(words[i] & 0xffff0000u); });
  }
  static void store_line(bf16* to, Vec low, Vec high, bool /*streams*/) { store(to, low), store(to + 16, high); }
  static constexpr int64_t channels = 0;  // pools a vector of channels at a time
};
