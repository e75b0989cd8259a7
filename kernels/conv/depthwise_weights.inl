// Weight and bias gradients of depthwise convolutions, channels last. Included after depthwise.inl.
//
// Per part of the rows, sums of three column taps stay in registers along a row, with the last three inputs, so that
// each is loaded once: of three rows of taps (then a gradient is loaded once, too) or of two lines of channels,
// whatever the registers hold. Meanwhile the next row's inputs and gradients are asked for in the order of memory. A
// part takes bands of its columns one after the other, so that the rows of all taps stay in the second-level cache
// until the last one has read them. Other taps and strides: sums of up to three taps and four vectors, every input
// loaded for each. Limit: memory. Parts depend on the problem alone: the same bits for any number of threads.

constexpr int64_t depthwise_parts = 64;
constexpr int64_t slice_grain = 64;  // channels that stay with a thread
// How far ahead inputs are asked for, in bytes.
constexpr int64_t bias_ahead = 8192;            // sums of a bias: of whole positions
constexpr int64_t sums_ahead = 4096;            // sums of weights: of the channels at hand
constexpr int64_t column_band_bytes = 3 << 18;  // of rows that are used together; second-level cache of 1 MiB, Zen 4

/// total[taps][vectors] += x * dy along a row for neighbouring vectors of channels. A position adds `columns` that
/// nothing has read before, `pitch` apart.
template <int taps, int vectors, class T, class N>
inline void depthwise_sums(const T* const* from, int64_t from_step, int64_t columns, int64_t pitch, const T* dy,
                           int64_t dy_step, const Range* inside, Range all, float* total, int64_t total_step, N n) {
  Vec sum[taps][vectors];
#pragma GCC unroll 3
  for (int q = 0; q < taps; ++q)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sum[q][v] = get(total + q * total_step + v * Vec::lanes, n);
  const auto add = [&](int64_t j, int q) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      sum[q][v] =
          fma(get(from[q] + j * from_step + v * Vec::lanes, n), get(dy + j * dy_step + v * Vec::lanes, n), sum[q][v]);
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
  for (int q = 0; q < taps; ++q)
    interior = {std::max(interior.begin, inside[q].begin), std::min(interior.end, inside[q].end)};
  interior.end = std::max(interior.begin, interior.end);
  checked(all.begin, std::min(interior.begin, all.end));
  for (int64_t j = interior.begin; j < interior.end; ++j) {
    // A few channels of every position are nothing that a prefetcher recognises.
    for (int64_t i = 0; i < columns; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v += line_vectors)
        __builtin_prefetch(from[taps - 1] + (j + ahead) * from_step - i * pitch + v * Vec::lanes, 0, 2);
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
  void advance(int64_t elements) { x += elements, dy += elements; }
};

/// A row tap: the inputs under the first position's first column tap, and its sums [column tap][groups].
template <class T>
struct DepthwiseRow {
  const T* x;
  float* total;
};

/// Row taps that a chain sums at a time: as many as registers hold with the inputs of three positions.
template <class T>
constexpr int chained_rows = Vec::lanes == 16 && DepthwiseLine<T>::channels == 0 ? 3 : 1;

/// total[rows][3][units] += x * dy for positions whose three column taps follow each other as they do, along a row
/// inside the image: every input is loaded once for three positions, every gradient once for `rows` row taps. With
/// `bias`, that one += dy. Asks for `rows` thirds of the next row's share, and returns what is left of it.
template <class Unit, int rows, int units, bool with_bias, class T, class N>
inline DepthwiseAhead<T> depthwise_chain(const DepthwiseRow<T>* row, int64_t x_step, const T* dy, int64_t dy_step,
                                         int64_t count, DepthwiseAhead<T> ahead, int64_t c, int64_t total_step,
                                         float* bias, N n) {
  using Sum = typename Unit::Sum;
  constexpr int64_t width = depthwise_width<T>;
  Sum sum[rows][3][units], value[rows][3][units], gradients[units];
  const T* x[rows];
  dy += c;
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r) {
    x[r] = row[r].x + c;
#pragma GCC unroll 2
    for (int u = 0; u < units; ++u) {
#pragma GCC unroll 3
      for (int q = 0; q < 3; ++q) sum[r][q][u] = Unit::bias(row[r].total + q * total_step + c + u * width, n);
      value[r][0][u] = Unit::input(x[r] + u * width, n), value[r][1][u] = Unit::input(x[r] + x_step + u * width, n);
    }
    x[r] += 2 * x_step;
  }
  if constexpr (with_bias)
#pragma GCC unroll 2
    for (int u = 0; u < units; ++u) gradients[u] = Unit::bias(bias + c + u * width, n);
  const auto position = [&]<int k>(std::integral_constant<int, k>) {
#pragma GCC unroll 2
    for (int u = 0; u < units; ++u) {
      const Sum gradient = Unit::input(dy + u * width, n);
#pragma GCC unroll 3
      for (int r = 0; r < rows; ++r) {
        value[r][(k + 2) % 3][u] = Unit::input(x[r] + u * width, n);
#pragma GCC unroll 3
        for (int q = 0; q < 3; ++q) sum[r][q][u] = Unit::add(value[r][(k + q) % 3][u], gradient, sum[r][q][u]);
      }
      if constexpr (with_bias) gradients[u] = Unit::plus(gradient, gradients[u]);
    }
#pragma GCC unroll 3
    for (int r = 0; r < rows; ++r) x[r] += x_step;
    dy += dy_step;
  };
  constexpr std::integral_constant<int, 0> first;
  constexpr std::integral_constant<int, 1> second;
  int64_t j = 0;
  for (; j + 3 <= count; j += 3) {
#pragma GCC unroll 3
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
      for (int u = 0; u < units; ++u)
        __builtin_prefetch(ahead.x + u * width, 0, 2), __builtin_prefetch(ahead.dy + u * width, 0, 2);
      ahead.advance(units * width);
    }
    position(first), position(second), position(std::integral_constant<int, 2>{});
  }
  if (j < count) {
    position(first);
    if (j + 1 < count) position(second);
  }
#pragma GCC unroll 3
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int u = 0; u < units; ++u)
#pragma GCC unroll 3
      for (int q = 0; q < 3; ++q) Unit::unpack(row[r].total + q * total_step + c + u * width, sum[r][q][u], n);
  if constexpr (with_bias)
#pragma GCC unroll 2
    for (int u = 0; u < units; ++u) Unit::unpack(bias + c + u * width, gradients[u], n);
  return ahead;
}

/// The sums of a row tap [column tap][channels] over the positions `all` of a row.
template <class T>
void depthwise_columns(const DirectShape& s, const ColumnPhase& phase, const T* from, int64_t new_columns,
                       const T* gradient, Range all, float* total) {
  const int64_t channels = s.groups, from_step = phase.advance * s.x.stride[3], dy_step = s.y.stride[3];
  if (all.size() <= 0) return;
  for (int64_t q = 0; q < s.column_taps; q += 3) {
    const int64_t taps = std::min<int64_t>(3, s.column_taps - q);
    Range inside[3];
    for (int64_t i = 0; i < taps; ++i) inside[i] = s.inside(phase, phase.taps[static_cast<size_t>(q + i)]);
    const auto sums = [&]<int vectors>(std::integral_constant<int, vectors>, int64_t c, auto n) {
      const T* starts[3];
      for (int64_t i = 0; i < taps; ++i)
        starts[i] = from + phase.taps[static_cast<size_t>(q + i)].column * s.x.stride[3] + c;
      float* to = total + q * channels + c;
      if (taps == 3)
        depthwise_sums<3, vectors>(starts, from_step, new_columns, s.x.stride[3], gradient + c, dy_step, inside, all,
                                   to, channels, n);
      else if (taps == 2)
        depthwise_sums<2, vectors>(starts, from_step, new_columns, s.x.stride[3], gradient + c, dy_step, inside, all,
                                   to, channels, n);
      else
        depthwise_sums<1, vectors>(starts, from_step, new_columns, s.x.stride[3], gradient + c, dy_step, inside, all,
                                   to, channels, n);
    };
    // A whole run of cache lines per position: single vectors would walk along the row a page at a time.
    const int64_t wide = channels / (4 * Vec::lanes) * (4 * Vec::lanes);
    for (int64_t c = 0; c < wide; c += 4 * Vec::lanes)
      sums(std::integral_constant<int, 4>{}, c, std::integral_constant<int64_t, 0>{});
    for_vectors(wide, channels, [&](int64_t c, auto n) { sums(std::integral_constant<int, 1>{}, c, n); });
  }
}

/// The input row that output row `row` reads and no earlier one does, and its gradients; the first ones where there are
/// none.
template <class T>
DepthwiseAhead<T> depthwise_new_rows(const DirectShape& s, const T* x, const T* dy, int64_t row) {
  DepthwiseAhead<T> ahead{x, dy};
  if (row >= s.rows()) return ahead;
  ahead.dy += DirectShape::row_offset(s.y, row);
  for (int64_t t = 0; t < s.row_taps(); ++t)
    if (const int64_t source = s.source_row(row, t); source >= 0 && s.meets_new_rows(t)) {
      ahead.x += DirectShape::row_offset(s.x, source);
      break;
    }
  return ahead;
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

/// Adds the positions `band` of a row to total: [row tap][column tap][channels], then the bias.
template <class T>
void depthwise_edge(const DirectShape& s, const KernelArgs& args, int64_t row, Range band, float* total) {
  if (band.size() <= 0) return;
  const ColumnPhase& phase = s.phases[0];
  const int64_t channels = s.groups;
  const T* gradient = args.in[1].data<T>() + DirectShape::row_offset(s.y, row);
  // The bias comes first: it asks for the gradients in the order of memory.
  depthwise_bias(channels, gradient, s.y.stride[3], band, total + s.row_taps() * s.column_taps * channels);
  for (int64_t t = 0; t < s.row_taps(); ++t)
    if (const int64_t source = s.source_row(row, t); source >= 0)
      depthwise_columns(s, phase, args.in[0].data<T>() + DirectShape::row_offset(s.x, source),
                        s.meets_new_rows(t) ? phase.advance : 0, gradient, band, total + t * s.column_taps * channels);
}

/// The same by chains, for positions `band` that are inside the image for all column taps.
template <class T>
void depthwise_chains(const DirectShape& s, const KernelArgs& args, int64_t row, Range band, float* total) {
  if (band.size() <= 0) return;
  const ColumnPhase& phase = s.phases[0];
  const int64_t channels = s.groups, x_step = s.x.stride[3], dy_step = s.y.stride[3], apart = shared_columns(s, phase);
  const T* x = args.in[0].data<T>() + (band.begin + phase.taps[0].column) * x_step;
  const T *first_dy = args.in[1].data<T>() + band.begin * dy_step, *dy = first_dy + DirectShape::row_offset(s.y, row);
  float* bias = total + s.row_taps() * s.column_taps * channels;
  DepthwiseAhead<T> ahead = depthwise_new_rows(s, x, first_dy, row + 1);
  bool bias_is_due = true;  // the first chain sums it, too
  const auto chain = [&]<int rows>(std::integral_constant<int, rows>, const DepthwiseRow<T>* taps) {
    for_depthwise<T, rows == 1 ? 2 : 1>(
        channels, [&]<class Unit, int units>(Unit, std::integral_constant<int, units>, int64_t c, auto n) {
          for (int64_t i = 0; i < std::min(apart, band.size()); ++i) {
            DepthwiseRow<T> from_here[rows];
            for (int r = 0; r < rows; ++r) from_here[r] = {taps[r].x + i * x_step, taps[r].total};
            const auto run = [&]<bool with_bias>(std::bool_constant<with_bias>) {
              ahead = depthwise_chain<Unit, rows, units, with_bias>(from_here, apart * x_step, dy + i * dy_step,
                                                                    apart * dy_step, ceil_div(band.size() - i, apart),
                                                                    ahead, c, channels, bias, n);
            };
            if (bias_is_due)
              run(std::true_type{});
            else
              run(std::false_type{});
          }
        });
    bias_is_due = false;
  };
  DepthwiseRow<T> taps[chained_rows<T>];
  int count = 0;
  for (int64_t t = 0; t < s.row_taps(); ++t) {
    const int64_t source = s.source_row(row, t);
    if (source < 0) continue;
    taps[count++] = {x + DirectShape::row_offset(s.x, source), total + t * s.column_taps * channels};
    if (count < chained_rows<T>) continue;
    chain(std::integral_constant<int, chained_rows<T>>{}, taps);
    count = 0;
  }
  if constexpr (chained_rows<T> == 3)
    if (count == 2) chain(std::integral_constant<int, 2>{}, taps);
  if (count == 1) chain(std::integral_constant<int, 1>{}, taps);
  if (bias_is_due) depthwise_bias(channels, dy, dy_step, {0, band.size()}, bias);
}

/// Sums of a part of the rows; with chains `most` positions at a time.
template <class T>
void depthwise_part(const DirectShape& s, const KernelArgs& args, int64_t most, Range rows, float* total) {
  const ColumnPhase& phase = s.phases[0];
  const int64_t apart = shared_columns(s, phase);
  const bool chained = apart > 0 && s.interior(phase).size() >= 3 * apart;
  const Range chains = chained ? s.interior(phase) : Range{0, 0};
  std::fill(total, total + (s.row_taps() * s.column_taps + 1) * s.groups, 0.0f);
  for_even_blocks(phase.count, chained ? most : phase.count, [&](int64_t first, int64_t size) {
    const Range inside{std::max(first, chains.begin), std::min(first + size, chains.end)};
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      depthwise_chains<T>(s, args, row, inside, total);
      depthwise_edge<T>(s, args, row, {first, std::min(first + size, inside.begin)}, total);
      depthwise_edge<T>(s, args, row, {std::max(first, inside.end), first + size}, total);
    }
  });
}

/// Channels of a part that one thread sums.
struct DepthwiseSlice {
  Range channels;
  DirectShape shape;  ///< of these alone
};

struct DepthwiseWeightsPlan {
  explicit DepthwiseWeightsPlan(const Problem& p)
      : shape(p),
        parts(std::clamp<int64_t>(shape.rows() / 4, 1, depthwise_parts)),
        sums_each(shape.row_taps() * shape.column_taps + 1),
        positions(std::max(column_band_bytes / ((shape.row_taps() + 3) * shape.groups * size_of(p.in[0].dtype)),
                           12 * shared_columns(shape, shape.phases[0]))) {
    const int64_t count = slice_count(p.threads);
    for (int64_t i = 0; i < count; ++i) {
      slices.push_back({split_range(shape.groups, static_cast<int>(i), static_cast<int>(count), slice_grain), shape});
      slices.back().shape.groups = slices.back().channels.size();
    }
  }
  DirectShape shape;
  int64_t parts;      ///< of the rows
  int64_t sums_each;  ///< of a channel: those of the taps, and the bias
  /// That pass through the second-level cache together: the rows of all taps, the gradients and the next row's share.
  /// The order of a sum depends on it: whatever the slices, that of all channels.
  int64_t positions;
  std::vector<DepthwiseSlice> slices;

  int64_t part_floats() const { return sums_each * shape.groups; }
  int64_t units() const { return parts * int64_t(slices.size()); }
  const DepthwiseSlice& slice(int64_t unit) const { return slices[size_t(unit) % slices.size()]; }
  int64_t part(int64_t unit) const { return unit / int64_t(slices.size()); }
  /// [part][slice][sum][channel]
  float* sums(std::byte* workspace, int64_t part, const DepthwiseSlice& slice) const {
    return reinterpret_cast<float*>(workspace) + part * part_floats() + slice.channels.begin * sums_each;
  }

 private:
  /// How many threads share a part, so that the slowest has the least to do: that changes no sum.
  int64_t slice_count(int threads) const {
    constexpr int64_t beginning = 32;  // a row takes as long as so many channels of it
    const int64_t lines = ceil_div(shape.groups, slice_grain);
    return cheapest(lines, [&](int64_t count) {
      return ceil_div(parts * count, threads) * (ceil_div(lines, count) * slice_grain + beginning);
    });
  }
};

template <class T>
void depthwise_unit(const DepthwiseWeightsPlan& d, const KernelArgs& args, int64_t unit) {
  const DepthwiseSlice& slice = d.slice(unit);
  const auto from = [&](size_t i) { return Tensor(args.in[i].desc(), args.in[i].data<T>() + slice.channels.begin); };
  const std::array in{from(0), from(1)};
  KernelArgs some = args;
  some.in = in;
  const int64_t part = d.part(unit);
  const Range rows = split_range(d.shape.rows(), static_cast<int>(part), static_cast<int>(d.parts));
  depthwise_part<T>(slice.shape, some, d.positions, rows, d.sums(args.workspace, part, slice));
}

/// The sums of all parts, in order, into the gradients of some channels.
void depthwise_finish(const DepthwiseWeightsPlan& d, const KernelArgs& args, Range all) {
  const DirectShape& s = d.shape;
  const int64_t per_channel = s.row_taps() * s.kernel[2];
  float *dw = args.out[0].data<float>(), *db = args.out[1].data<float>();
  // Taps that only meet padding.
  if (s.column_taps < s.kernel[2]) std::fill(dw + all.begin * per_channel, dw + all.end * per_channel, 0.0f);
  for (const DepthwiseSlice& slice : d.slices) {
    const int64_t begin = std::max(all.begin, slice.channels.begin), end = std::min(all.end, slice.channels.end);
    const float* first = d.sums(args.workspace, 0, slice) - slice.channels.begin;
    for_vectors(begin, end, [&](int64_t c, auto n) {
      const float* from = first + c;
      const auto next_sum = [&] {
        Vec total = Vec::all(0.0f);
        for (int64_t part = 0; part < d.parts; ++part) total = total + get(from + part * d.part_floats(), n);
        from += slice.channels.size();
        return total;
      };
      alignas(64) float of_tap[Vec::lanes];
      for (int64_t t = 0; t < s.row_taps(); ++t)
        for (int64_t q = 0; q < s.column_taps; ++q) {
          store(of_tap, next_sum());
          float* to = dw + c * per_channel + t * s.kernel[2] + s.phases[0].taps[static_cast<size_t>(q)].weight;
          for (int64_t i = 0; i < std::min<int64_t>(Vec::lanes, end - c); ++i) to[i * per_channel] = of_tap[i];
        }
      put(db + c, next_sum(), n);
    });
  }
}

std::unique_ptr<Prepared> prepare_depthwise_weights(const Problem& p) {
  const DepthwiseWeightsPlan plan(p);
  return prepared(
      [type = p.in[0].dtype, threads = p.threads, d = plan](const KernelArgs& args) {
        parallel_ranges(d.units(), threads, 1, [&](Range r) {
          for (int64_t unit = r.begin; unit < r.end; ++unit)
            by_storage(type, [&](auto zero) { depthwise_unit<decltype(zero)>(d, args, unit); });
        });
        parallel_ranges(d.shape.groups, threads, Vec::lanes, [&](Range r) { depthwise_finish(d, args, r); });
      },
      plan.parts * plan.part_floats() * 4);
}
