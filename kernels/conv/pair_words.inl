// Engines for direct.inl whose words are two neighbouring channels of a 16-bit type: products of pairs, f32 sums. Runs
// that are filled up read neighbouring values against zero weights: where those are infinite or not a number, so is the
// result beside them.

template <class T>
struct PairWords {
  using Value = T;
  using Word = uint32_t;
  template <class>
  using Copied = T;
  static constexpr int64_t pair = 2;
  static constexpr bool weaves = false;
  template <class F>
  static void by_type(DType, F&& f) {
    f(T{});
  }
  /// Bits as they are; a missing odd channel is zero, and so is everything outside the image.
  static void copy(const TensorDesc& desc, const T* row, int64_t first, int64_t columns, int64_t channels, Word* to) {
    const int64_t low = std::clamp<int64_t>(-first, 0, columns),
                  high = std::clamp<int64_t>(desc.shape.w() - first, low, columns);
    const int64_t words = (channels + 1) / 2;
    std::fill(to, to + low * words, 0u);
    std::fill(to + high * words, to + columns * words, 0u);
    const T* from = row + (first + low) * desc.stride[3];
    if (channels % 2 == 0 && desc.stride[3] == channels) {
      std::memcpy(to + low * words, from, static_cast<size_t>((high - low) * channels) * sizeof(T));
      return;
    }
    int64_t c = low;
    if (channels % 2 == 0) {
      for (; c < high; ++c, from += desc.stride[3]) {
        prefetch(from + 8 * desc.stride[3], channels * int64_t{sizeof(T)});
        auto* target = reinterpret_cast<float*>(to + c * words);
        for_vectors(0, words,
                    [&](int64_t i, auto n) { put(target + i, get(reinterpret_cast<const float*>(from) + i, n), n); });
      }
      return;
    }
    if (channels == 3)  // four values at once, but for the last position, behind which there may be nothing
      for (; c + 1 < high; ++c, from += desc.stride[3]) {
        uint64_t four;
        std::memcpy(&four, from, sizeof four);
        four &= 0xffffffffffffu;
        std::memcpy(to + c * words, &four, sizeof four);
      }
    for (; c < high; ++c, from += desc.stride[3]) {
      to[(c + 1) * words - 1] = 0;
      std::memcpy(to + c * words, from, static_cast<size_t>(channels) * sizeof(T));
    }
  }
  /// One position; a missing odd channel is zero.
  static void copy_column(const T* from, int64_t channels, Word* to) {
    for_vectors(0, channels / 2, [&](int64_t i, auto n) {
      put(reinterpret_cast<float*>(to) + i, get(reinterpret_cast<const float*>(from) + i, n), n);
    });
    if (channels % 2) to[channels / 2] = word(from[channels - 1], T{});
  }
  static Vec words(const T* p) { return load(reinterpret_cast<const float*>(p)); }
  /// A vector of words of two rows.
  static void store_pairs(const T* first, const T* second, Word* to) {
    store_words(to, pair_positions(first, second, std::integral_constant<int64_t, 0>{}));
  }
  static int64_t output_of(int64_t lane, int64_t /*width*/) { return lane; }
  static Word word(T first, T second) {
    return std::bit_cast<uint16_t>(first) | uint32_t{std::bit_cast<uint16_t>(second)} << 16;
  }
};

/// The same with vectors in pairs: the first one's words are for the even outputs of 32, the second one's for the odd
/// ones. A vector without a partner, the last of a block, is in order.
template <class T>
struct WovenWords : PairWords<T> {
  static constexpr bool weaves = true;
  static int64_t output_of(int64_t lane, int64_t width) {
    constexpr int64_t both = 2 * Vec::lanes;
    const int64_t first = lane / both * both;
    return first + both <= width ? first + lane % Vec::lanes * 2 + lane % both / Vec::lanes : lane;
  }
  /// A pair of vectors of words of two rows.
  static void store_woven_pairs(const T* first, const T* second, uint32_t* to) {
    store_woven(load_pairs(first, 2 * Vec::lanes), load_pairs(second, 2 * Vec::lanes), to);
  }
};

/// An engine on the register block `Block`.
template <class T, class Block, class Words = PairWords<T>>
struct PairEngine : Words {
  static constexpr bool reads_in_place = true;  // blocks load words at any address
  static constexpr bool narrows = Block::narrows;
  struct Scope {
    Scope() {}  // nothing to set up per thread
  };
  template <class F>
  static void for_blocks(int64_t count, int64_t vectors, F&& f) {
    for_row_blocks(count, vectors, f);
  }
  static void block(int64_t rows, int64_t vectors, const BlockCall<uint32_t>& call) {
    run_block<Block>(rows, vectors, call);
  }
};

template <class Engine>
Support supports_pairs(const Problem& p) {
  constexpr DType type = dtype_of<typename Engine::Value>();
  if (p.in[0].dtype != type) return Support::no("handles " + std::string(name_of(type)) + ", found " + p.in[0].str());
  return p.op.kind == OpKind::conv_backward_weights ? supports_direct_weights(p) : supports_direct(p);
}
