// Direct convolution, channels last: forward, forward with LeakyReLU and 2-wide max-pool at the end, and backward_data
// (also as a transposed convolution, or from the gradient behind such a pool), any rank, stride, dilation, padding,
// groups and tensor strides; f32, bf16 and f16 storage, f32 sums.
//
// Loops: a unit is a band of output rows, a tile of columns and a range of output channels. Per chunk of input channels
//   1. the distinct input rows that the band reads are copied once, zero-padded and widened, into a patch in the
//      second-level cache: no border cases below, and any storage type or stride costs the copy only; rows behind a
//      pool are un-pooled on the way. One tap, or several over all channels, read rows of whole words where they are
//      unless a tile meets the image's sides. The register block asks for the next block's cache lines meanwhile,
//      because rows side by side are nothing that a prefetcher recognises (1x1 with 128 channels: 0.55 -> 0.95 of the
//      FMA rate on Zen 5; engines with a register block of their own leave that out). in_one_row joins the rows of 1x1;
//   2. for every 64 (AVX2: 16) output channels, the register block runs over the band's positions; its sum follows the
//      segments (row tap, column taps, channels) for which the row is not padding;
//   3. the first chunk starts from the bias, or from what a data gradient is added to (addend.h); the last rounds into
//      the output; earlier ones leave f32 sums in the workspace. Before a pool all chunks do, bands hold whole rows of
//      windows, and the unit ends with activation and maximum. Large outputs go past the caches, which saves reading
//      what is overwritten (a third of the traffic of wide 1x1 layers).
// Weights come packed in exactly the order of step 2 from a Pack node. Chunks depend on the problem alone, so the order
// of a sum does not depend on threads or tiles.
// Copying costs about 1/(KW * K/groups) of the multiply-adds. Limit: the f32 FMA rate.
//
// Refuses types other than f32, bf16, f16, depthwise convolutions (but into a pool), strided weights, windows of a pool
// that supports_window() does not know, and addends of unevenly spaced pixels.

/// Copies columns [first, first + columns) and `channels` channels of an input row as f32, zero outside the image.
template <class T>
void copy_columns(const TensorDesc& desc, const T* row, int64_t first, int64_t columns, int64_t channels, float* to) {
  const int64_t low = std::clamp<int64_t>(-first, 0, columns),
                high = std::clamp<int64_t>(desc.shape.w() - first, low, columns);
  std::fill(to, to + low * channels, 0.0f);
  std::fill(to + high * channels, to + columns * channels, 0.0f);
  const T* from = row + (first + low) * desc.stride[3];
  const auto copy = [&](const T* source, float* target, int64_t count) {
    for_vectors(0, count, [&](int64_t i, auto n) { put(target + i, get(source + i, n), n); });
  };
  if (desc.stride[3] == channels) return copy(from, to + low * channels, (high - low) * channels);
  for (int64_t c = low; c < high; ++c) {
    const T* column = from + (c - low) * desc.stride[3];
    prefetch(column + 8 * desc.stride[3], channels * int64_t{sizeof(T)});
    copy(column, to + c * channels, channels);
  }
}

/// Sums of f32 words in vector registers.
struct F32Engine {
  using Word = float;
  template <class T>
  using Copied = float;
  static constexpr int64_t pair = 1;
  static constexpr bool reads_in_place = true, narrows = false, weaves = false;
  struct Scope {
    Scope() {}  // nothing to set up per thread
  };
  template <class F>
  static void by_type(DType type, F&& f) {
    by_storage(type, f);
  }
  template <class T>
  static void copy(const TensorDesc& desc, const T* row, int64_t first, int64_t columns, int64_t channels, Word* to) {
    copy_columns(desc, row, first, columns, channels, to);
  }
  template <class F>
  static void for_blocks(int64_t count, int64_t vectors, F&& f) {
    for_row_blocks(count, vectors, f);
  }
  static void block(int64_t rows, int64_t vectors, const BlockCall<Word>& call) {
    run_block<RegisterBlock<F32Dot, true>>(rows, vectors, call);
  }
  /// The output that a lane of a block of `width` is for.
  static int64_t output_of(int64_t lane, int64_t /*width*/) { return lane; }
  template <class T>
  static Word word(T first, T) {
    return static_cast<float>(first);
  }
  /// A vector of words of neighbouring channels.
  template <class T>
  static Vec words(const T* p) {
    return load(p);
  }
};

/// Has no faster way to pool a line of channels.
struct NoLines {
  static constexpr int64_t channels = 0;
};

/// Activates and pools the sums of a unit: [row][position][channel] in the order of the windows. `Lines` may pool whole
/// lines of channels in its own way.
template <class T, class Lines = NoLines>
void pool_sums(const Problem& p, const DirectPlan& d, const KernelArgs& args, Range rows, int64_t first, int64_t last,
               int64_t k_first, int64_t k_last, const float* sums) {
  const DirectShape& s = d.shape;
  const Vec slope = Vec::all(static_cast<float>(p.op.as<ConvPoolAttrs>().pool.activation.slope));
  T* y = args.out[0].data<T>();
  uint8_t* arg = args.out[1].data<uint8_t>();
  const int64_t group = s.row_group();
  for (int64_t r = 0; r < rows.size(); r += group) {
    const int64_t row = DirectShape::row_offset(p.out[0], (rows.begin + r) / group),
                  arg_row = DirectShape::row_offset(p.out[1], (rows.begin + r) / group);
    for (int64_t j = first; j < last; j += 2) {
      const int64_t at = row + j / 2 * p.out[0].stride[3] + k_first,
                    arg_at = arg_row + j / 2 * p.out[1].stride[3] + k_first;
      const float* corner = sums + (r * d.tile_positions + j - first) * d.sums_pitch();
      const auto value = [&](int q) { return corner + ((q >> 1) * d.tile_positions + (q & 1)) * d.sums_pitch(); };
      int64_t done = 0;
      if constexpr (Lines::channels > 0)
        while (done + Lines::channels <= k_last - k_first &&
               Lines::pool_line(value(0) + done, value(2) - value(0), d.sums_pitch(), 2 * group, slope, y + at + done,
                                arg + arg_at + done))
          done += Lines::channels;
      for_vectors(done, k_last - k_first, [&](int64_t k, auto n) {
        const WindowMaximum best = pooled<T>(2 * group, slope, [&](int q) { return load(value(q) + k); });
        put(y + at + k, best.best, n);
        put_bytes(arg + arg_at + k, best.winner, n);
      });
    }
  }
}

/// The units of a thread, one after the other.
template <class T, class Engine>
class DirectUnit {
 public:
  DirectUnit(const Problem& p, const DirectPlan& d, const KernelArgs& args, std::byte* memory)
      : p_(p), d_(d), s_(d.shape), args_(args), m_(d, memory), addend_(p, args), bias_(bias_of(p, args)) {
    // A block of 16-bit channels that is half a line (AVX2) would come back for the other half.
    streams_ = !s_.pooled() && block_width * sizeof(T) % 64 == 0 && streams_lines(s_.y, args.out[0], s_.out);
    slope_ = Vec::all(s_.activates ? static_cast<float>(p.op.as<ConvAttrs>().slope) : 1.0f);
  }
  bool streams() const { return streams_; }

  void run(int64_t index, int64_t /*next*/) {
    unit_ = d_.unit(index);
    std::fill(m_.bias, m_.bias + d_.part_channels, 0.0f);
    if (bias_)
      std::copy(bias_ + unit_.group * s_.out + unit_.k_first, bias_ + unit_.group * s_.out + unit_.k_last, m_.bias);
    const int64_t sources = RowSet::collect(s_, unit_.rows.begin, unit_.rows.size(), m_.slots, m_.sources);
    for (int64_t chunk = 0; chunk < d_.chunks; ++chunk) {
      begin(chunk);
      for (int64_t i = 0; i < sources && !in_place_; ++i) copy(m_.sources[i], m_.patch + i * d_.row_words);
      for (int64_t k = unit_.k_first; k < unit_.k_last; k += block_width) multiply(k);
    }
    if (s_.pooled())
      pool_sums<T>(p_, d_, args_, unit_.rows, unit_.first, unit_.last, unit_.group * s_.out + unit_.k_first,
                   unit_.group * s_.out + unit_.k_last, m_.sums);
  }

 private:
  using Word = typename Engine::Word;
  /// Positions of a row and phase that are computed together, and where they go.
  struct Line {
    const ColumnPhase& phase;
    int64_t segments, count;  ///< of m_.segments; of positions
    int64_t k, width;         ///< output channels of the block, padded
    float* sums;              ///< of the first position, between chunks
    T* to;                    ///< its output
    int64_t to_step;          ///< elements from position to position of the output
    const T* addend;          ///< of its output; null for none
  };

  void begin(int64_t chunk) {
    chunk_ = chunk, c_first_ = chunk * d_.chunk;
    channels_ = std::min(d_.chunk, s_.in - c_first_), words_ = d_.words_of(channels_);
    column_ = s_.phases[0].advance * unit_.first + s_.column_low;
    in_place_ = reads_in_place();
    pitch_ = in_place_ ? s_.x.stride[3] / Engine::pair : words_;
    stores_ = chunk + 1 == d_.chunks && !s_.pooled();
  }
  /// Rows that are whole words already, and that the unit's columns do not leave.
  bool reads_in_place() const {
    if (s_.unpools) return false;
    const bool same_words = Engine::reads_in_place && sizeof(T) * Engine::pair == sizeof(Word);
    const bool whole_words = channels_ % Engine::pair == 0 && s_.x.stride[3] % Engine::pair == 0;
    const bool one_run = d_.single_taps || (d_.chunks == 1 && s_.x.stride[3] == s_.in);  // several taps side by side
    return same_words && whole_words && one_run && column_ >= 0 &&
           column_ + s_.columns(unit_.last - unit_.first) <= s_.x.shape.w();
  }
  /// The unit's columns and the chunk's channels of an input row.
  void copy(int64_t source, Word* to) const {
    const int64_t columns = s_.columns(unit_.last - unit_.first);
    if (s_.unpools)
      return copy_unpooled<T>(p_, args_, 0, s_.x.shape, source, column_, columns, unit_.group * s_.in + c_first_,
                              channels_, reinterpret_cast<typename Engine::template Copied<T>*>(to));
    Engine::copy(s_.x, source_row(source), column_, columns, channels_, to);
  }
  /// The chunk's channels of column 0 of an input row.
  const T* source_row(int64_t row) const {
    return args_.in[0].data<T>() + DirectShape::row_offset(s_.x, row) + unit_.group * s_.in + c_first_;
  }

  /// All rows and phases of the unit for output channels from k on.
  void multiply(int64_t k) {
    const int64_t width = std::min(block_width, d_.padded_out - k);
    const Word* block = reinterpret_cast<const Word*>(args_.packed[0]) + d_.block_words(unit_.group, k, width, chunk_);
    float* sums = m_.sums + k - unit_.k_first;
    for (int64_t r = 0; r < unit_.rows.size(); ++r) {
      T* row = args_.out[0].data<T>() + DirectShape::row_offset(s_.y, unit_.rows.begin + r) + unit_.group * s_.out + k;
      const Word* weights = block;
      for (const ColumnPhase& phase : s_.phases) {
        const int64_t count = std::min(unit_.last, phase.count) - unit_.first, to_step = phase.step * s_.y.stride[3];
        const int64_t column = phase.start + unit_.first * phase.step;
        T* to = row + column * s_.y.stride[3];
        const T* addend = nullptr;
        if (addend_) addend = addend_.at((unit_.rows.begin + r) * s_.y.shape.w() + column) + unit_.group * s_.out + k;
        if (count > 0)
          blocks({phase, collect(phase, r, count, weights, width), count, k, width, sums, to, to_step, addend});
        weights += d_.phase_words(phase, words_) * width;
        sums += d_.tile_positions * d_.sums_pitch();
      }
    }
  }

  /// Lists the segments of a row's sums; returns how many.
  int64_t collect(const ColumnPhase& phase, int64_t r, int64_t count, const Word* weights, int64_t width) {
    const auto taps = static_cast<int64_t>(phase.taps.size());
    const int64_t run = d_.padded_run(words_);
    int64_t found = 0;
    for (int64_t t = 0; t < s_.row_taps() && taps > 0; ++t) {
      const int32_t slot = m_.slots[r * s_.row_taps() + t];
      if (slot < 0) continue;
      const Word* row = in_place_
                            ? reinterpret_cast<const Word*>(source_row(m_.sources[slot]) + column_ * s_.x.stride[3])
                            : m_.patch + slot * d_.row_words;
      const Word* from = weights + t * d_.tap_words(words_) * width;
      for (int64_t q = 0; q < (phase.contiguous ? 1 : taps); ++q) {
        const ColumnTap& tap = phase.taps[static_cast<size_t>(q)];
        Segment<Word>& segment = m_.segments[found++];
        segment = {row + (tap.column - s_.column_low) * pitch_, from + q * run * width, run, 0, count};
        if (phase.contiguous) {
          segment.length = d_.padded_run(taps * words_);
        } else {
          const Range inside = s_.inside(phase, tap);
          segment.low = inside.begin - unit_.first, segment.high = inside.end - unit_.first;
        }
      }
    }
    return found;
  }

  /// The register blocks of a line.
  void blocks(const Line& line) {
    const int64_t row_step = line.phase.advance * pitch_;
    Engine::for_blocks(line.count, line.width / Vec::lanes, [&](int64_t j, int64_t rows) {
      BlockCall<Word> call{.segments = m_.segments,
                           .count = line.segments,
                           .position = j,
                           .a_shift = j * row_step,
                           .row_step = row_step,
                           .run_step = 1,
                           .width = line.width,
                           .init = m_.bias + (line.k - unit_.k_first),
                           .init_pitch = 0,
                           .to = m_.rounded,
                           .to_pitch = line.width};
      float* sums = line.sums + j * d_.sums_pitch();
      if (chunk_ > 0)
        call.init = sums, call.init_pitch = d_.sums_pitch();
      else if (line.addend)
        call.init = widened_addend(line, j, rows), call.init_pitch = line.width;
      // Rows in place come from memory when the unit's first outputs meet them.
      if (in_place_ && line.k == unit_.k_first) call.ahead = rows * row_step;
      if (!stores_) {
        call.to = sums, call.to_pitch = d_.sums_pitch();
        return Engine::block(rows, line.width / Vec::lanes, call);
      }
      T* to = line.to + j * line.to_step;
      const bool whole = line.k + line.width <= s_.out;
      bool direct = false;  // the block writes the output itself
      if constexpr (std::is_same_v<T, float>)
        if (whole && !(streams_ && s_.activates)) call.to = to, direct = true;
      if constexpr (Engine::narrows)
        if (whole && !s_.activates) call.narrow = to, direct = true;
      if (direct) call.to_pitch = line.to_step, call.streams = streams_;
      Engine::block(rows, line.width / Vec::lanes, call);
      if (!direct || s_.activates) round(call.to, call.to_pitch, line, to, rows);
    });
  }

  /// What `rows` positions of a line from j on start from, a row of the block's width each.
  const float* widened_addend(const Line& line, int64_t j, int64_t rows) const {
    const int64_t step = line.phase.step * addend_.pitch, valid = std::min(line.width, s_.out - line.k);
    const T* from = line.addend + j * step;
    float* to = m_.rounded;  // the block reads it before it writes its sums there
    for (int64_t i = 0; i < rows; ++i, from += step, to += line.width) {
      for_vectors(0, valid, [&](int64_t c, auto n) { put(to + c, get(from + c, n), n); });
      std::fill(to + valid, to + line.width, 0.0f);
    }
    return m_.rounded;
  }

  /// Activates finished sums and rounds them into the output.
  void round(const float* sums, int64_t pitch, const Line& line, T* to, int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i, sums += pitch, to += line.to_step)
      for_vectors(0, std::min(line.width, s_.out - line.k), [&](int64_t c, auto n) {
        const Vec sum = load(sums + c);
        put_output(to + c, s_.activates ? leaky<T>(sum, slope_) : sum, n, streams_);
      });
  }

  const Problem& p_;
  const DirectPlan& d_;
  const DirectShape& s_;
  const KernelArgs& args_;
  const DirectScratch<Word> m_;
  const Addend<T> addend_;
  const float* bias_;
  Vec slope_;
  bool streams_ = false;
  DirectPlan::Unit unit_{};
  // Of the present chunk: its index and channels, the unit's first input column, words from column to column, and
  // whether its sums are the last.
  int64_t chunk_ = 0, c_first_ = 0, channels_ = 0, words_ = 0, column_ = 0, pitch_ = 0;
  bool in_place_ = false, stores_ = false;
};

template <class Engine>
class PreparedDirect final : public Prepared {
 public:
  explicit PreparedDirect(const Problem& p)
      : problem_(p), plan_(without_addend(p), {.word_channels = Engine::pair, .copying = 16 * Engine::pair}) {}
  int64_t workspace_bytes() const override { return problem_.threads * plan_.thread_bytes(); }
  std::string detail() const override { return plan_.detail(); }
  std::vector<PackRequest> packed_weights() const override { return {direct_pack_request<Engine>(problem_, plan_)}; }
  void run(const KernelArgs& args) const override {
    Engine::by_type(problem_.in[0].dtype, [&](auto zero) {
      run_units<DirectUnit<decltype(zero), Engine>, typename Engine::Scope>(problem_, plan_, args);
    });
  }

 private:
  Problem problem_;
  DirectPlan plan_;
};

Support supports_direct(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  if (const Support sum = supports_addend(p); !sum.ok) return sum;
  if (!weight_of(p).dense()) return Support::no("needs dense weights, found " + weight_of(p).str());
  if (const auto* pool = std::get_if<ConvPoolAttrs>(&p.op.attrs)) return supports_window(*pool);
  if (is_depthwise(p)) return Support::no("leaves depthwise convolutions to their own kernel");
  return Support::yes();
}

template <class Engine>
std::unique_ptr<Prepared> prepare_direct_with(const Problem& p) {
  return std::make_unique<PreparedDirect<Engine>>(p);
}
