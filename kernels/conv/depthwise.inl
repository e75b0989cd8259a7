// Depthwise convolution (groups = input channels = output channels), channels last: the three passes, any kernel,
// stride, dilation and padding; f32, bf16 and f16 storage, f32 sums.
//
// A vector holds neighbouring channels, or half of a cache line of them: one side (f32 with AVX2: depthwise_pairs.inl)
// or every second one (bf16 with AVX-512: depthwise_lines.inl). Forward and backward_data: four or eight positions of
// an output row at a time, so a weight is loaded once for all of them, and with three evenly spaced column taps,
// positions as far apart, an input once for three; away from the borders the rows' pointers only shift, elsewhere the
// list of taps inside the image is made first; then all channels stream past it, and each vector asks for the columns
// that the next block adds in rows nobody has read yet: so many short streams are beyond a prefetcher. Strided outputs,
// which share few columns, go through memory in its order instead: one position, several vectors at a time, inputs of a
// later position asked for. Large outputs are written past the caches.
// A data gradient that is added to something (addend.h) starts from that.
// Backward_weights: depthwise_weights.inl.
// Limit: memory; 2 * taps FLOP per element read and written (2.25 FLOP per byte for 3x3 f32) stays below any machine's
// balance.

constexpr int64_t many_channels = 512;  // fewer positions at a time then, for the prefetchers
constexpr int depthwise_run = 4;        // units of channels that one position takes at a time
/// Positions at a time, whose sums stay in registers.
template <class T>
constexpr int64_t most_positions = Vec::lanes != 16 && Vec::lanes < depthwise_width<T> ? 4 : 8;
// How far ahead inputs are asked for, in bytes.
constexpr int64_t bytes_ahead = 2048;  // strided outputs: of whole positions

Support supports_depthwise(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  if (const Support sum = supports_addend(p); !sum.ok) return sum;
  const TensorDesc& weights = p.op.kind == OpKind::conv_backward_weights ? p.out[0] : p.in[1];
  if (!weights.dense()) return Support::no("needs dense weights, found " + weights.str());
  if (!is_depthwise(p)) return Support::no("needs as many groups as channels on both sides");
  return Support::yes();
}

/// A tap that is inside the image for all positions of a block, or a row of taps: its input and its weights, channel 0.
template <class T>
struct DepthwiseTap {
  const T* from;
  const float* weight;
};

/// What a block of outputs needs beside its taps.
template <class T>
struct DepthwiseCall {
  int64_t channels, from_step, to_step, pitch;
  int64_t columns;  ///< that a position adds
  const float* bias;
  T* to;
  const T* addend;      ///< of the first output; null for none
  int64_t addend_step;  ///< from one output to the next
  bool streams;         ///< past the caches
  // Rows that no earlier output has read come from memory: a block asks for the columns that the next one adds.
  const T* const* fresh;
  int64_t fresh_count, next;  ///< `next`: elements from a row's start to the first of them

  template <int positions, int units>
  [[gnu::always_inline]] void ask_ahead(int64_t c) const {
    constexpr int64_t width = depthwise_width<T>;
    if (!streams)  // lines that are to be written come from memory, too
#pragma GCC unroll 8
      for (int i = 0; i < positions; ++i)
#pragma GCC unroll 4
        for (int u = 0; u < units; ++u) __builtin_prefetch(to + (i + positions) * to_step + c + u * width, 1);
    if (addend)
#pragma GCC unroll 8
      for (int i = 0; i < positions; ++i)
#pragma GCC unroll 4
        for (int u = 0; u < units; ++u) __builtin_prefetch(addend + (i + positions) * addend_step + c + u * width);
    if (positions == 1 && pitch == channels) {  // in the order of memory: these channels' share of the columns
      for (int64_t r = 0; r < fresh_count; ++r)
        for (int64_t i = 0; i < columns; ++i)
#pragma GCC unroll 4
          for (int u = 0; u < units; ++u) __builtin_prefetch(fresh[r] + next + c * columns + (i * units + u) * width);
      return;
    }
    for (int64_t r = 0; r < fresh_count; ++r)
      for (int64_t i = 0; i < columns; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < positions; ++j)
#pragma GCC unroll 4
          for (int u = 0; u < units; ++u)
            __builtin_prefetch(fresh[r] + next + c + (i * positions + j) * pitch + u * width);
  }
  /// What sums start from.
  template <class Unit, int positions, int units, class N>
  [[gnu::always_inline]] void start(typename Unit::Sum (&total)[positions][units], int64_t c, N n) const {
    constexpr int64_t width = depthwise_width<T>;
#pragma GCC unroll 4
    for (int u = 0; u < units; ++u) {
      if (addend) {
#pragma GCC unroll 8
        for (int i = 0; i < positions; ++i) total[i][u] = Unit::input(addend + i * addend_step + c + u * width, n);
        continue;
      }
      const typename Unit::Sum first = Unit::bias(bias ? bias + c + u * width : nullptr, n);
#pragma GCC unroll 8
      for (int i = 0; i < positions; ++i) total[i][u] = first;
    }
  }
  /// Inlined, or the sums would live in memory.
  template <class Unit, int positions, int units, class N>
  [[gnu::always_inline]] void write(const typename Unit::Sum (&total)[positions][units], int64_t c, N n) const {
#pragma GCC unroll 8
    for (int i = 0; i < positions; ++i)
#pragma GCC unroll 4
      for (int u = 0; u < units; ++u)
        Unit::write(to + i * to_step + c + u * depthwise_width<T>, total[i][u], n, streams);
  }
};

/// `positions` neighbouring outputs, all channels: the taps' inputs stream along the channels, `most` units at a time.
template <int positions, int most, class T>
inline void depthwise_block(const DepthwiseTap<T>* taps, int64_t count, const DepthwiseCall<T>& call) {
  for_depthwise<T, most>(
      call.channels, [&]<class Unit, int units>(Unit, std::integral_constant<int, units>, int64_t c, auto n) {
        using Sum = typename Unit::Sum;
        constexpr int64_t width = depthwise_width<T>;
        call.template ask_ahead<positions, units>(c);
        Sum total[positions][units];
        call.template start<Unit>(total, c, n);
        for (int64_t t = 0; t < count; ++t) {
          const T* from = taps[t].from + c;
#pragma GCC unroll 4
          for (int u = 0; u < units; ++u) {
            const Sum weight = Unit::weight(taps[t].weight + c + u * width, n);
#pragma GCC unroll 8
            for (int i = 0; i < positions; ++i)
              total[i][u] = Unit::add(Unit::input(from + i * call.from_step + u * width, n), weight, total[i][u]);
          }
        }
        call.template write<Unit>(total, c, n);
      });
}

/// The same for rows of three taps as far apart as the positions, which share columns.
template <int positions, class T>
inline void depthwise_slide(const DepthwiseTap<T>* rows, int64_t count, int64_t shift, const DepthwiseCall<T>& call) {
  for_depthwise<T>(call.channels, [&]<class Unit>(Unit, auto, int64_t c, auto n) {
    using Sum = typename Unit::Sum;
    call.template ask_ahead<positions, 1>(c);
    Sum total[positions][1];
    call.template start<Unit>(total, c, n);
    for (int64_t t = 0; t < count; ++t) {
      Sum weight[3];
#pragma GCC unroll 3
      for (int q = 0; q < 3; ++q) weight[q] = Unit::weight(rows[t].weight + q * call.channels + c, n);
      const T* from = rows[t].from + shift + c;
#pragma GCC unroll 10
      for (int i = 0; i < positions + 2; ++i) {
        const Sum value = Unit::input(from + i * call.from_step, n);
#pragma GCC unroll 3
        for (int q = 0; q < 3; ++q)
          if (i >= q && i - q < positions) total[i - q][0] = Unit::add(value, weight[q], total[i - q][0]);
      }
    }
    call.template write<Unit>(total, c, n);
  });
}

/// A thread's lists: taps of a block, row taps of a row, and those rows that nothing has read before.
template <class T>
struct DepthwiseScratch {
  DepthwiseTap<T>*taps, *rows;
  const T** fresh;
  static int64_t bytes(const DirectShape& s) {
    return round_up(s.row_taps() * ((s.kernel[2] + 1) * int64_t(sizeof(DepthwiseTap<T>)) + int64_t(sizeof(T*))), 64);
  }
  DepthwiseScratch(const DirectShape& s, std::byte* at)
      : taps(reinterpret_cast<DepthwiseTap<T>*>(at)),
        rows(taps + s.row_taps() * s.kernel[2]),
        fresh(reinterpret_cast<const T**>(rows + s.row_taps())) {}
};

/// Distance of positions that share columns of three taps so far apart; 0 = none do.
inline int64_t shared_columns(const DirectShape& s, const ColumnPhase& phase) {
  if (phase.taps.size() != 3 || phase.advance != 1 || s.phases.size() != 1) return 0;
  const int64_t apart = phase.taps[1].column - phase.taps[0].column;
  return phase.taps[2].column - phase.taps[1].column == apart ? apart : 0;
}

/// One output row. `weights` is [row tap][column tap of all phases][channels].
template <class T>
void depthwise_row(const DirectShape& s, const KernelArgs& args, const float* weights, const float* bias,
                   const Addend<T>& addend, bool streams, int64_t row, const DepthwiseScratch<T>& m) {
  const int64_t channels = s.y.shape.c();
  const T* sums = addend ? addend.at(row * s.y.shape.w()) : nullptr;
  T* y = args.out[0].data<T>() + DirectShape::row_offset(s.y, row);
  int64_t row_count = 0, fresh_count = 0;
  for (int64_t t = 0; t < s.row_taps(); ++t)
    if (const int64_t source = s.source_row(row, t); source >= 0) {
      m.rows[row_count++] = {args.in[0].data<T>() + DirectShape::row_offset(s.x, source),
                             weights + t * s.column_taps * channels};
      if (s.meets_new_rows(t)) m.fresh[fresh_count++] = m.rows[row_count - 1].from;
    }
  for (const ColumnPhase& phase : s.phases) {
    const Range interior = s.interior(phase);
    const bool few_channels = channels < many_channels;
    // Strided rows in the order of memory: one position, several lines at a time.
    const bool in_order = phase.advance > 1 && s.x.stride[3] == channels &&
                          channels >= depthwise_run * depthwise_width<T> && few_channels;
    const int64_t further = in_order ? bytes_ahead / (channels * int64_t{sizeof(T)}) : 0;
    // A call for positions `apart` from each other. Halves of lines that stand whole pages apart take 2 or 5 ms from
    // run to run where the caches take 2 (1024 f32 channels, Zen 3).
    const auto call_for = [&](int64_t apart) {
      const int64_t to_step = apart * phase.step * s.y.stride[3];
      const bool past_caches = streams && (Vec::lanes == 16 || to_step * int64_t{sizeof(T)} % 4096 != 0);
      return DepthwiseCall<T>{channels,
                              apart * phase.advance * s.x.stride[3],
                              to_step,
                              apart * s.x.stride[3],
                              phase.advance,
                              bias,
                              nullptr,
                              nullptr,
                              apart * phase.step * addend.pitch,
                              past_caches,
                              m.fresh,
                              phase.start == 0 ? fresh_count : 0,
                              0};
    };
    const int64_t apart = shared_columns(s, phase);
    const DepthwiseCall<T> neighbours = call_for(1), spaced = call_for(apart);
    const auto at = [&](DepthwiseCall<T> c, int64_t position, int64_t positions) {
      c.next = ((position + positions - 1 + further) * phase.advance + s.column_high + 1) * s.x.stride[3];
      const int64_t column = phase.start + position * phase.step;
      c.to = y + column * s.y.stride[3];
      if (sums) c.addend = sums + column * addend.pitch;
      return c;
    };
    for (int64_t j = 0; j < phase.count;) {
      const int64_t room = j >= interior.begin ? interior.end - j : 0;
      if (apart > 0 && room >= 4 * apart) {
        const int64_t positions = few_channels && room >= most_positions<T> * apart ? most_positions<T> : 4;
        for (int64_t i = j; i < j + apart; ++i) {
          const DepthwiseCall<T> c = at(spaced, i, positions * apart);
          const int64_t shift = (i + phase.taps[0].column) * s.x.stride[3];
          if (positions == most_positions<T>)
            depthwise_slide<most_positions<T>>(m.rows, row_count, shift, c);
          else
            depthwise_slide<4>(m.rows, row_count, shift, c);
        }
        j += positions * apart;
      } else {
        const int64_t positions = in_order                                    ? 1
                                  : room >= most_positions<T> && few_channels ? most_positions<T>
                                  : room >= 4                                 ? 4
                                                                              : 1;
        int64_t count = 0;
        for (int64_t r = 0; r < row_count; ++r)
          for (size_t q = 0; q < phase.taps.size(); ++q)
            if (const int64_t column = j * phase.advance + phase.taps[q].column; column >= 0 && column < s.x.shape.w())
              m.taps[count++] = {m.rows[r].from + column * s.x.stride[3],
                                 m.rows[r].weight + (phase.first_tap + static_cast<int64_t>(q)) * channels};
        const DepthwiseCall<T> c = at(neighbours, j, positions);
        if (positions == most_positions<T>)
          depthwise_block<most_positions<T>, 1>(m.taps, count, c);
        else if (positions == 4)
          depthwise_block<4, 1>(m.taps, count, c);
        else
          depthwise_block<1, depthwise_run>(m.taps, count, c);
        j += positions;
      }
    }
  }
}

template <class T>
void depthwise_pack(const DirectShape& s, const Tensor& weight, float* to) {
  const T* from = weight.data<T>();
  const int64_t channels = s.groups, per_channel = s.row_taps() * s.kernel[2];
  for (int64_t t = 0; t < s.row_taps(); ++t)
    for (const ColumnPhase& phase : s.phases)
      for (const ColumnTap& tap : phase.taps)
        for_depthwise<T>(channels, [&]<class Unit>(Unit, auto, int64_t c, auto n) {
          const T* source = from + c * per_channel + t * s.kernel[2] + tap.weight;
          const int64_t count = Unit::channels > 0 ? Unit::channels : n > 0 ? int64_t{n} : Vec::lanes;
          for (int64_t i = 0; i < count; ++i) *to++ = static_cast<float>(source[Unit::channel_at(i) * per_channel]);
        });
}

class PreparedDepthwise final : public Prepared {
 public:
  explicit PreparedDepthwise(const Problem& p) : problem_(p), shape_(without_addend(p)) {}
  std::vector<PackRequest> packed_weights() const override {
    return {{1, "depthwise " + to_text(without_addend(problem_).op) + shape_.kept_taps(),
             std::max<int64_t>(64, shape_.row_taps() * shape_.column_taps * shape_.groups * 4),
             [s = shape_](const Tensor& weight, std::byte* packed) {
               by_storage(weight.dtype(), [&](auto zero) {
                 depthwise_pack<decltype(zero)>(s, weight, reinterpret_cast<float*>(packed));
               });
             }}};
  }
  int64_t workspace_bytes() const override { return problem_.threads * DepthwiseScratch<float>::bytes(shape_); }
  void run(const KernelArgs& args) const override {
    const auto* weights = reinterpret_cast<const float*>(args.packed[0]);
    const float* bias = bias_of(problem_, args);
    by_storage(problem_.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const Addend<T> addend(problem_, args);
      parallel_threads(problem_.threads, [&](int thread) {
        const DepthwiseScratch<T> memory(shape_, args.workspace + thread * DepthwiseScratch<T>::bytes(shape_));
        // Units smaller than a line would not follow each other.
        const bool streams =
            depthwise_width<T> * sizeof(T) == 64 && streams_lines(shape_.y, args.out[0], shape_.y.shape.c());
        const Range rows = split_range(shape_.rows(), thread, problem_.threads);
        for (int64_t row = rows.begin; row < rows.end; ++row)
          depthwise_row<T>(shape_, args, weights, bias, addend, streams, row, memory);
        if (streams) fence();
      });
    });
  }

 private:
  Problem problem_;
  DirectShape shape_;
};

std::unique_ptr<Prepared> prepare_depthwise(const Problem& p) {
  return std::make_unique<PreparedDepthwise>(p);
}
