// Weight and bias gradients of depthwise convolutions, channels last. Included after depthwise.inl.
//
// Per part of the rows, sums of three column taps and up to two lines of channels stay in registers along a row, with
// the last three inputs, so that each is loaded once; meanwhile the next row's inputs and gradients are asked for in
// the order of memory. Other taps, strides and rows too long for the second-level cache: sums of up to three taps and
// four vectors, every input loaded for each.
// Limit: memory. Parts depend on the problem alone: the same bits for any number of threads.

constexpr int64_t depthwise_parts = 64;
// How far ahead inputs are asked for, in bytes.
constexpr int64_t bias_ahead = 8192;  // sums of a bias: of whole positions
constexpr int64_t sums_ahead = 4096;  // sums of weights: of the channels at hand
// Of the rows that pass through the second-level cache together; with more, chains were measured to take up to a
// quarter longer.
constexpr int64_t chained_bytes = 3 << 19;

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
  DepthwiseAhead operator+(int64_t elements) const { return {x + elements, dy + elements}; }
};

/// total[3][units] += x * dy for positions whose three taps follow each other as they do, along a row inside the image:
/// every input is loaded once for three positions. With `bias`, that one += dy. Asks for a third of the next row's
/// share.
template <class Unit, int units, bool with_bias, class T, class N>
inline void depthwise_chain(const T* x, int64_t x_step, const T* dy, int64_t dy_step, int64_t count,
                            DepthwiseAhead<T> ahead, float* total, int64_t total_step, float* bias, N n) {
  using Sum = typename Unit::Sum;
  constexpr int64_t width = depthwise_width<T>;
  Sum sum[3][units], value[3][units], gradients[units];
#pragma GCC unroll 2
  for (int u = 0; u < units; ++u) {
#pragma GCC unroll 3
    for (int q = 0; q < 3; ++q) sum[q][u] = Unit::bias(total + q * total_step + u * width, n);
    if constexpr (with_bias) gradients[u] = Unit::bias(bias + u * width, n);
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
      if constexpr (with_bias) gradients[u] = Unit::plus(gradient, gradients[u]);
    }
    x += x_step, dy += dy_step;
  };
  constexpr std::integral_constant<int, 0> first;
  constexpr std::integral_constant<int, 1> second;
  int64_t j = 0;
  for (; j + 3 <= count; j += 3, ahead = ahead + units * width) {
#pragma GCC unroll 2
    for (int u = 0; u < units; ++u)
      __builtin_prefetch(ahead.x + u * width, 0, 2), __builtin_prefetch(ahead.dy + u * width, 0, 2);
    position(first), position(second), position(std::integral_constant<int, 2>{});
  }
  if (j < count) {
    position(first);
    if (j + 1 < count) position(second);
  }
#pragma GCC unroll 2
  for (int u = 0; u < units; ++u) {
#pragma GCC unroll 3
    for (int q = 0; q < 3; ++q) Unit::unpack(total + q * total_step + u * width, sum[q][u], n);
    if constexpr (with_bias) Unit::unpack(bias + u * width, gradients[u], n);
  }
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
  if (row >= s.rows()) return {x, dy};
  dy += DirectShape::row_offset(s.y, row);
  for (int64_t t = 0; t < s.row_taps(); ++t)
    if (const int64_t source = s.source_row(row, t); source >= 0 && s.meets_new_rows(t))
      return {x + DirectShape::row_offset(s.x, source), dy};
  return {x, dy};
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
      const auto columns = [&](Range some) {
        depthwise_columns(s, phase, from, s.meets_new_rows(t) ? phase.advance : 0, gradient, some, to);
      };
      if (!chained) {
        columns(all);
        continue;
      }
      columns({0, interior.begin});
      columns({interior.end, phase.count});
      for_depthwise<T, 2>(
          channels, [&]<class Unit, int units>(Unit, std::integral_constant<int, units>, int64_t c, auto n) {
            for (int64_t i = 0; i < apart; ++i) {
              const int64_t first = interior.begin + i, count = ceil_div(interior.end - first, apart);
              const auto chain = [&]<bool sums_bias>(std::bool_constant<sums_bias>) {
                depthwise_chain<Unit, units, sums_bias>(from + (first + phase.taps[0].column) * x_step + c,
                                                        apart * x_step, gradient + first * dy_step + c, apart * dy_step,
                                                        count, ahead, to + c, channels, bias + c, n);
              };
              if (with_bias)
                chain(std::true_type{});
              else
                chain(std::false_type{});
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
  const int64_t parts = std::clamp<int64_t>(s.rows() / 4, 1, depthwise_parts),
                floats = (s.row_taps() * s.column_taps + 1) * s.groups;
  return prepared(
      [p, s, parts, floats](const KernelArgs& args) {
        auto* sums = reinterpret_cast<float*>(args.workspace);
        parallel_ranges(parts, p.threads, 1, [&](Range r) {
          for (int64_t part = r.begin; part < r.end; ++part)
            by_storage(p.in[0].dtype, [&](auto zero) {
              depthwise_part<decltype(zero)>(s, args,
                                             split_range(s.rows(), static_cast<int>(part), static_cast<int>(parts)),
                                             sums + part * floats);
            });
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
            for (int64_t c = 0; c < s.groups; ++c)
              dw[c * per_channel + t * s.kernel[2] + s.phases[0].taps[static_cast<size_t>(q)].weight] = sums[c];
        std::copy(sums, sums + s.groups, args.out[1].data<float>());
      },
      parts * floats * 4);
}
