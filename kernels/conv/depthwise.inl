// Depthwise convolution (groups = input channels = output channels), channels last: the three passes, any kernel, stride,
// dilation and padding; f32, bf16 and f16 storage, f32 sums.
//
// A vector holds neighbouring channels, or half of a cache line of them: one side (f32 with AVX2: depthwise_pairs.inl) or
// every second one (bf16 with AVX-512: depthwise_lines.inl). Forward and backward_data: four or eight positions of an output
// row at a time, so a weight is loaded once for all of them, and with three evenly spaced column taps, positions as far
// apart, an input once for three; away from the borders the rows' pointers only shift, elsewhere the list of taps inside the
// image is made first; then all channels stream past it, and each vector asks for the columns that the next block adds in
// rows nobody has read yet: so many short streams are beyond a prefetcher. Strided outputs, which share few columns, go
// through memory in its order instead: one position, several vectors at a time, inputs of a later position asked for. Large
// outputs are written past the caches. Backward_weights: per part of the rows, sums of up to three column taps and four
// vectors of channels stay in registers along a row.
// Limit: memory; 2 * taps FLOP per element read and written (2.25 FLOP per byte for 3x3 f32) stays below any machine's
// balance. Parts depend on the problem alone: the same bits for any number of threads.

constexpr int64_t depthwise_parts = 64;
constexpr int64_t many_channels = 512;  // fewer positions at a time then, for the prefetchers
constexpr int depthwise_run = 4;        // units of channels that one position takes at a time
/// Positions at a time, whose sums stay in registers.
template <class T>
constexpr int64_t most_positions = Vec::lanes < 16 && depthwise_width<T> > Vec::lanes ? 4 : 8;
// How far ahead inputs are asked for, in bytes.
constexpr int64_t bytes_ahead = 2048;  // strided outputs: of whole positions
constexpr int64_t bias_ahead = 8192;   // sums of a bias: of whole positions
constexpr int64_t sums_ahead = 4096;   // sums of weights: of the channels at hand
constexpr int64_t chained_bytes = 3 << 19;  // of rows; with more, chains were measured to take up to a quarter longer

Support supports_depthwise(const Problem& p) {
  if (!narrow_float(p.in[0].dtype)) return Support::no("handles f32, bf16 and f16, found " + p.in[0].str());
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
  bool streams;  ///< past the caches
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
          for (int u = 0; u < units; ++u) __builtin_prefetch(fresh[r] + next + c + (i * positions + j) * pitch + u * width);
  }
  /// Inlined, or the sums would live in memory.
  template <class Unit, int positions, int units, class N>
  [[gnu::always_inline]] void write(const typename Unit::Sum (&total)[positions][units], int64_t c, N n) const {
#pragma GCC unroll 8
    for (int i = 0; i < positions; ++i)
#pragma GCC unroll 4
      for (int u = 0; u < units; ++u) Unit::write(to + i * to_step + c + u * depthwise_width<T>, total[i][u], n, streams);
  }
};

/// `positions` neighbouring outputs, all channels: the taps' inputs stream along the channels, `most` units at a time.
template <int positions, int most, class T>
inline void depthwise_block(const DepthwiseTap<T>* taps, int64_t count, const DepthwiseCall<T>& call) {
  for_depthwise<T, most>(call.channels, [&]<class Unit, int units>(Unit, std::integral_constant<int, units>, int64_t c, auto n) {
    using Sum = typename Unit::Sum;
    constexpr int64_t width = depthwise_width<T>;
    call.template ask_ahead<positions, units>(c);
    Sum total[positions][units];
#pragma GCC unroll 4
    for (int u = 0; u < units; ++u) {
      const Sum start = Unit::bias(call.bias ? call.bias + c + u * width : nullptr, n);
#pragma GCC unroll 8
      for (int i = 0; i < positions; ++i) total[i][u] = start;
    }
    for (int64_t t = 0; t < count; ++t) {
      const T* from = taps[t].from + c;
#pragma GCC unroll 4
      for (int u = 0; u < units; ++u) {
        const Sum weight = Unit::weight(taps[t].weight + c + u * width, n);
#pragma GCC unroll 8
        for (int i = 0; i < positions; ++i) total[i][u] = Unit::add(Unit::input(from + i * call.from_step + u * width, n), weight, total[i][u]);
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
    const Sum start = Unit::bias(call.bias ? call.bias + c : nullptr, n);
    call.template ask_ahead<positions, 1>(c);
    Sum total[positions][1];
#pragma GCC unroll 8
    for (int i = 0; i < positions; ++i) total[i][0] = start;
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
    return (s.row_taps() * ((s.kernel[2] + 1) * int64_t(sizeof(DepthwiseTap<T>)) + int64_t(sizeof(T*))) + 63) / 64 * 64;
  }
  DepthwiseScratch(const DirectShape& s, std::byte* at)
      : taps(reinterpret_cast<DepthwiseTap<T>*>(at)), rows(taps + s.row_taps() * s.kernel[2]), fresh(reinterpret_cast<const T**>(rows + s.row_taps())) {}
};

/// Distance of positions that share columns of three taps so far apart; 0 = none do.
inline int64_t shared_columns(const DirectShape& s, const ColumnPhase& phase) {
  if (phase.taps.size() != 3 || phase.advance != 1 || s.phases.size() != 1) return 0;
  const int64_t apart = phase.taps[1].column - phase.taps[0].column;
  return phase.taps[2].column - phase.taps[1].column == apart ? apart : 0;
}

/// One output row. `weights` is [row tap][column tap of all phases][channels].
template <class T>
void depthwise_row(const DirectShape& s, const KernelArgs& args, const float* weights, const float* bias, bool streams, int64_t row, const DepthwiseScratch<T>& m) {
  const int64_t channels = s.y.shape.c();
  T* y = args.out[0].data<T>() + DirectShape::row_offset(s.y, row);
  int64_t row_count = 0, fresh_count = 0;
  for (int64_t t = 0; t < s.row_taps(); ++t)
    if (const int64_t source = s.source_row(row, t); source >= 0) {
      m.rows[row_count++] = {args.in[0].data<T>() + DirectShape::row_offset(s.x, source), weights + t * s.column_taps * channels};
      if (s.meets_new_rows(t)) m.fresh[fresh_count++] = m.rows[row_count - 1].from;
    }
  for (const ColumnPhase& phase : s.phases) {
    const Range interior = s.interior(phase);
    const bool few_channels = channels < many_channels;
    // Strided rows in the order of memory: one position, several lines at a time.
    const bool in_order = phase.advance > 1 && s.x.stride[3] == channels && channels >= depthwise_run * depthwise_width<T> && few_channels;
    const int64_t further = in_order ? bytes_ahead / (channels * int64_t{sizeof(T)}) : 0;
    // A call for positions `apart` from each other. Halves of lines that stand whole pages apart take 2 or 5 ms from run to run
    // where the caches take 2 (1024 f32 channels, Zen 3).
    const auto call_for = [&](int64_t apart) {
      const int64_t to_step = apart * phase.step * s.y.stride[3];
      const bool past_caches = streams && (Vec::lanes == 16 || to_step * int64_t{sizeof(T)} % 4096 != 0);
      return DepthwiseCall<T>{channels, apart * phase.advance * s.x.stride[3], to_step, apart * s.x.stride[3], phase.advance, bias, nullptr, past_caches, m.fresh, phase.start == 0 ? fresh_count : 0, 0};
    };
    const int64_t apart = shared_columns(s, phase);
    const DepthwiseCall<T> neighbours = call_for(1), spaced = call_for(apart);
    const auto at = [&](DepthwiseCall<T> c, int64_t position, int64_t positions) {
      c.next = ((position + positions - 1 + further) * phase.advance + s.column_high + 1) * s.x.stride[3];
      c.to = y + (phase.start + position * phase.step) * s.y.stride[3];
      return c;
    };
    for (int64_t j = 0; j < phase.count;) {
      const int64_t room = j >= interior.begin ? interior.end - j : 0;
      if (apart > 0 && room >= 4 * apart) {
        const int64_t positions = few_channels && room >= most_positions<T> * apart ? most_positions<T> : 4;
        for (int64_t i = j; i < j + apart; ++i) {
          const DepthwiseCall<T> c = at(spaced, i, positions * apart);
          const int64_t shift = (i + phase.taps[0].column) * s.x.stride[3];
          if (positions == most_positions<T>) depthwise_slide<most_positions<T>>(m.rows, row_count, shift, c);
          else depthwise_slide<4>(m.rows, row_count, shift, c);
        }
        j += positions * apart;
      } else {
        const int64_t positions = in_order ? 1 : room >= most_positions<T> && few_channels ? most_positions<T> : room >= 4 ? 4 : 1;
        int64_t count = 0;
        for (int64_t r = 0; r < row_count; ++r)
          for (size_t q = 0; q < phase.taps.size(); ++q)
            if (const int64_t column = j * phase.advance + phase.taps[q].column; column >= 0 && column < s.x.shape.w())
              m.taps[count++] = {m.rows[r].from + column * s.x.stride[3], m.rows[r].weight + (phase.first_tap + static_cast<int64_t>(q)) * channels};
        const DepthwiseCall<T> c = at(neighbours, j, positions);
        if (positions == most_positions<T>) depthwise_block<most_positions<T>, 1>(m.taps, count, c);
        else if (positions == 4) depthwise_block<4, 1>(m.taps, count, c);
        else depthwise_block<1, depthwise_run>(m.taps, count, c);
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
  explicit PreparedDepthwise(const Problem& p) : problem_(p), shape_(p) {}
  std::vector<PackRequest> packed_weights() const override {
    // Taps that only meet padding are left out, so the order depends on which are kept.
    std::string form = "depthwise " + to_text(problem_.op);
    for (const ColumnPhase& phase : shape_.phases)
      for (const ColumnTap& tap : phase.taps) form += " " + std::to_string(tap.weight);
    return {{1, form, std::max<int64_t>(64, shape_.row_taps() * shape_.column_taps * shape_.groups * 4), [s = shape_](const Tensor& weight, std::byte* packed) {
               by_storage(weight.dtype(), [&](auto zero) { depthwise_pack<decltype(zero)>(s, weight, reinterpret_cast<float*>(packed)); });
             }}};
  }
  int64_t workspace_bytes() const override { return problem_.threads * DepthwiseScratch<float>::bytes(shape_); }
  void run(const KernelArgs& args) const override {
    const auto* weights = reinterpret_cast<const float*>(args.packed[0]);
    const float* bias = args.in.size() > 2 ? args.in[2].data<float>() : nullptr;
    by_storage(problem_.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      parallel_threads(problem_.threads, [&](int thread) {
        const DepthwiseScratch<T> memory(shape_, args.workspace + thread * DepthwiseScratch<T>::bytes(shape_));
        // Units smaller than a line would not follow each other.
        const bool streams = depthwise_width<T> * sizeof(T) == 64 && streams_lines(shape_.y, args.out[0], shape_.y.shape.c());
        const Range rows = split_range(shape_.rows(), thread, problem_.threads);
        for (int64_t row = rows.begin; row < rows.end; ++row) depthwise_row<T>(shape_, args, weights, bias, streams, row, memory);
        if (streams) fence();
      });
    });
  }

 private:
  Problem problem_;
  DirectShape shape_;
};

std::unique_ptr<Prepared> prepare_depthwise(const Problem& p) { return std::make_unique<PreparedDepthwise>(p); }

/// total[taps][vectors] += x * dy along a row for neighbouring vectors of channels. A position adds `columns` that nothing
/// has read before, `pitch` apart.
template <int taps, int vectors, class T, class N>
inline void depthwise_sums(const T* const* from, int64_t from_step, int64_t columns, int64_t pitch, const T* dy, int64_t dy_step, const Range* inside, Range all, float* total, int64_t total_step, N n) {
  Vec sum[taps][vectors];
#pragma GCC unroll 3
  for (int q = 0; q < taps; ++q)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[q][v] = get(total + q * total_step + v * Vec::lanes, n);
  const auto add = [&](int64_t j, int q) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[q][v] = fma(get(from[q] + j * from_step + v * Vec::lanes, n), get(dy + j * dy_step + v * Vec::lanes, n), sum[q][v]);
  };
  const auto checked = [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j)
#pragma GCC unroll 3
      for (int q = 0; q < taps; ++q)
        if (j >= inside[q].begin && j < inside[q].end) add(j, q);
  };
  constexpr int64_t ahead = sums_ahead / (vectors * Vec::lanes * int64_t{sizeof(T)});
  constexpr int line_vectors = std::max<int>(1, 64 / (Vec::lanes * int{sizeof(T)}));
  Range interior = all;
  for (int q = 0; q < taps; ++q) interior = {std::max(interior.begin, inside[q].begin), std::min(interior.end, inside[q].end)};
  interior.end = std::max(interior.begin, interior.end);
  checked(all.begin, std::min(interior.begin, all.end));
  for (int64_t j = interior.begin; j < interior.end; ++j) {
    // A few channels of every position are nothing that a prefetcher recognises.
    for (int64_t i = 0; i < columns; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v += line_vectors) __builtin_prefetch(from[taps - 1] + (j + ahead) * from_step - i * pitch + v * Vec::lanes, 0, 2);
#pragma GCC unroll 3
    for (int q = 0; q < taps; ++q) add(j, q);
  }
  checked(std::max(interior.end, std::min(interior.begin, all.end)), all.end);
#pragma GCC unroll 3
  for (int q = 0; q < taps; ++q)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) put(total + q * total_step + v * Vec::lanes, sum[q][v], n);
}

/// What the weight gradients of the next output row will read: a pass over a row asks for it in the order of memory.
template <class T>
struct DepthwiseAhead {
  const T *x, *dy;
  DepthwiseAhead operator+(int64_t elements) const { return {x + elements, dy + elements}; }
};

/// total[3][units] += x * dy for positions whose three taps follow each other as they do, along a row inside the image: every
/// input is loaded once for three positions. With `bias`, that one += dy. Asks for a third of the next row's share.
template <class Unit, int units, bool with_bias, class T, class N>
inline void depthwise_chain(const T* x, int64_t x_step, const T* dy, int64_t dy_step, int64_t count, DepthwiseAhead<T> ahead, float* total, int64_t total_step, float* bias, N n) {
  using Sum = typename Unit::Sum;
  constexpr int64_t width = depthwise_width<T>;
  Sum sum[3][units], value[3][units], gradients[units];
#pragma GCC unroll 2
  for (int u = 0; u < units; ++u) {
#pragma GCC unroll 3
    for (int q = 0; q < 3; ++q) sum[q][u] = Unit::bias(total + q * total_step + u * width, n);
    if (with_bias) gradients[u] = Unit::bias(bias + u * width, n);
    value[0][u] = Unit::input(x + u * width, n), value[1][u] = Unit::input(x + x_step + u * width, n);
  }
  x += 2 * x_step;
  const auto position = [&]<int k>(std::integral_constant<int, k>) {
#pragma GCC unroll 2
    for (int u = 0; u < units; ++u) {
      value[(k + 2) % 3][u] = Unit::input(x + u * width, n);
      const Sum gradient = Unit::input(dy + u * width, n);
#pragma GCC unroll 3
      for (int q = 0; q < 3; ++q) sum[q][u] = Unit::add(value[(k + q) % 3][u], gradient, sum[q][u]);
      if (with_bias) gradients[u] = Unit::plus(gradient, gradients[u]);
    }
    x += x_step, dy += dy_step;
  };
  constexpr std::integral_constant<int, 0> first;
  constexpr std::integral_constant<int, 1> second;
  int64_t j = 0;
  for (; j + 3 <= count; j += 3, ahead = ahead + units * width) {
#pragma GCC unroll 2
    for (int u = 0; u < units; ++u) __builtin_prefetch(ahead.x + u * width, 0, 2), __builtin_prefetch(ahead.dy + u * width, 0, 2);
    position(first), position(second), position(std::integral_constant<int, 2>{});
  }
  if (j < count) position(first);
  if (j + 1 < count) position(second);
#pragma GCC unroll 2
  for (int u = 0; u < units; ++u) {
#pragma GCC unroll 3
    for (int q = 0; q < 3; ++q) Unit::unpack(total + q * total_step + u * width, sum[q][u], n);
    if (with_bias) Unit::unpack(bias + u * width, gradients[u], n);
  }
}

/// The sums of a row tap [column tap][channels] over the positions `all` of a row.
template <class T>
void depthwise_columns(const DirectShape& s, const ColumnPhase& phase, const T* from, int64_t new_columns, const T* gradient, Range all, float* total) {
  const int64_t channels = s.groups, from_step = phase.advance * s.x.stride[3], dy_step = s.y.stride[3];
  if (all.size() <= 0) return;
  for (int64_t q = 0; q < s.column_taps; q += 3) {
    const int64_t taps = std::min<int64_t>(3, s.column_taps - q);
    Range inside[3];
    for (int64_t i = 0; i < taps; ++i) inside[i] = s.inside(phase, phase.taps[static_cast<size_t>(q + i)]);
    const auto sums = [&]<int vectors>(std::integral_constant<int, vectors>, int64_t c, auto n) {
      const T* starts[3];
      for (int64_t i = 0; i < taps; ++i) starts[i] = from + phase.taps[static_cast<size_t>(q + i)].column * s.x.stride[3] + c;
      float* to = total + q * channels + c;
      if (taps == 3) depthwise_sums<3, vectors>(starts, from_step, new_columns, s.x.stride[3], gradient + c, dy_step, inside, all, to, channels, n);
      else if (taps == 2) depthwise_sums<2, vectors>(starts, from_step, new_columns, s.x.stride[3], gradient + c, dy_step, inside, all, to, channels, n);
      else depthwise_sums<1, vectors>(starts, from_step, new_columns, s.x.stride[3], gradient + c, dy_step, inside, all, to, channels, n);
    };
    // A whole run of cache lines per position: single vectors would walk along the row a page at a time.
    const int64_t wide = channels / (4 * Vec::lanes) * (4 * Vec::lanes);
    for (int64_t c = 0; c < wide; c += 4 * Vec::lanes) sums(std::integral_constant<int, 4>{}, c, std::integral_constant<int64_t, 0>{});
    for_vectors(wide, channels, [&](int64_t c, auto n) { sums(std::integral_constant<int, 1>{}, c, n); });
  }
}

/// The rows that output row `row` reads and no earlier one does; those of the first row where there are none.
template <class T>
DepthwiseAhead<T> depthwise_new_rows(const DirectShape& s, const T* x, const T* dy, int64_t row) {
  if (row >= s.rows()) return {x, dy};
  for (int64_t t = 0; t < s.row_taps(); ++t)
    if (const int64_t source = s.source_row(row, t); source >= 0 && s.meets_new_rows(t)) x += DirectShape::row_offset(s.x, source);
  return {x, dy + DirectShape::row_offset(s.y, row)};
}

/// bias += gradients of the positions `all` of a row, four of them at a time.
template <class T>
void depthwise_bias(int64_t channels, const T* gradient, int64_t step, Range all, float* bias) {
  const int64_t ahead = std::max<int64_t>(4, bias_ahead / (channels * int64_t{sizeof(T)}));
  for (int64_t j = all.begin; j < all.end; j += 4)
    for_vectors(0, channels, [&](int64_t c, auto n) {
      Vec sum = get(bias + c, n);
      for (int64_t i = j; i < std::min(j + 4, all.end); ++i) {
        __builtin_prefetch(gradient + (i + ahead) * step + c);
        sum = sum + get(gradient + i * step + c, n);
      }
      put(bias + c, sum, n);
    });
}

/// Sums of a part of the rows: [row tap][column tap][channels], then the bias.
template <class T>
void depthwise_part(const DirectShape& s, const KernelArgs& args, Range rows, float* total) {
  const ColumnPhase& phase = s.phases[0];
  const int64_t channels = s.groups, x_step = s.x.stride[3], dy_step = s.y.stride[3];
  const T *x = args.in[0].data<T>(), *dy = args.in[1].data<T>();
  float* bias = total + s.row_taps() * s.column_taps * channels;
  std::fill(total, bias + channels, 0.0f);
  const int64_t apart = shared_columns(s, phase);
  const Range interior = s.interior(phase), all{0, phase.count};
  // The rows of all taps, the gradients and the next row's share must fit the second-level cache together.
  const int64_t row_bytes = channels * std::max(s.x.shape.w(), phase.count) * int64_t{sizeof(T)};
  const bool chained = apart > 0 && interior.size() >= 3 * apart && (s.row_taps() + 3) * row_bytes <= chained_bytes;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const T* gradient = dy + DirectShape::row_offset(s.y, row);
    DepthwiseAhead<T> ahead = depthwise_new_rows(s, x, dy, row + 1);
    // Without chains the bias comes first: it asks for the gradients in the order of memory.
    if (!chained) depthwise_bias(channels, gradient, dy_step, all, bias);
    bool with_bias = chained;  // the first chain of a row sums its bias, too
    for (int64_t t = 0; t < s.row_taps(); ++t) {
      const int64_t source = s.source_row(row, t);
      if (source < 0) continue;
      const T* from = x + DirectShape::row_offset(s.x, source);
      float* to = total + t * s.column_taps * channels;
      const auto columns = [&](Range some) { depthwise_columns(s, phase, from, s.meets_new_rows(t) ? phase.advance : 0, gradient, some, to); };
      if (!chained) {
        columns(all);
        continue;
      }
      columns({0, interior.begin});
      columns({interior.end, phase.count});
      for_depthwise<T, 2>(channels, [&]<class Unit, int units>(Unit, std::integral_constant<int, units>, int64_t c, auto n) {
        for (int64_t i = 0; i < apart; ++i) {
          const int64_t first = interior.begin + i, count = (interior.end - first + apart - 1) / apart;
          const auto chain = [&]<bool sums_bias>(std::bool_constant<sums_bias>) {
            depthwise_chain<Unit, units, sums_bias>(from + (first + phase.taps[0].column) * x_step + c, apart * x_step, gradient + first * dy_step + c, apart * dy_step, count, ahead, to + c, channels, bias + c, n);
          };
          if (with_bias) chain(std::true_type{});
          else chain(std::false_type{});
          ahead = ahead + count / 3 * units * depthwise_width<T>;
        }
      });
      with_bias = false;
    }
    if (!chained) continue;
    depthwise_bias(channels, gradient, dy_step, with_bias ? all : Range{0, interior.begin}, bias);
    if (!with_bias) depthwise_bias(channels, gradient, dy_step, {interior.end, phase.count}, bias);
  }
}

std::unique_ptr<Prepared> prepare_depthwise_weights(const Problem& p) {
  const DirectShape s(p);
  const int64_t parts = std::clamp<int64_t>(s.rows() / 4, 1, depthwise_parts), floats = (s.row_taps() * s.column_taps + 1) * s.groups;
  return prepared([p, s, parts, floats](const KernelArgs& args) {
    auto* sums = reinterpret_cast<float*>(args.workspace);
    parallel_ranges(parts, p.threads, 1, [&](Range r) {
      for (int64_t part = r.begin; part < r.end; ++part)
        by_storage(p.in[0].dtype, [&](auto zero) { depthwise_part<decltype(zero)>(s, args, split_range(s.rows(), static_cast<int>(part), static_cast<int>(parts)), sums + part * floats); });
    });
    // The sums of all parts into those of the first.
    parallel_ranges(floats, p.threads, 1024, [&](Range r) {
      for_vectors(r.begin, r.end, [&](int64_t i, auto n) {
        Vec total = Vec::all(0.0f);
        for (int64_t part = 0; part < parts; ++part) total = total + get(sums + part * floats + i, n);
        put(sums + i, total, n);
      });
    });
    float* dw = args.out[0].data<float>();
    const int64_t per_channel = s.row_taps() * s.kernel[2];
    std::fill(dw, dw + s.groups * per_channel, 0.0f);
    for (int64_t t = 0; t < s.row_taps(); ++t)
      for (int64_t q = 0; q < s.column_taps; ++q, sums += s.groups)
        for (int64_t c = 0; c < s.groups; ++c) dw[c * per_channel + t * s.kernel[2] + s.phases[0].taps[static_cast<size_t>(q)].weight] = sums[c];
    std::copy(sums, sums + s.groups, args.out[1].data<float>());
  }, parts * floats * 4);
}
