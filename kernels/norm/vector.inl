// Passes over all pixels with numbers per channel: sums and affine maps at memory speed. Sums run over 64 fixed chunks
// of pixels whatever the thread count, run by run of a chunk: inside a run in f32, between runs in double. Runs are
// short, so that no sum stops growing, and moments err little where a run's first pixel, which they are taken about,
// lies far out; chunks are long, since memory is drawn from by streams.

Support supports_pixels(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& desc : *list)
      if (desc.pixel_pitch() < 0) return Support::no("needs evenly spaced pixels, found " + desc.str());
  return Support::yes();
}

constexpr int64_t pixel_chunks = 64, chunks_at_once = 4, pixels_at_once = 4;
constexpr int64_t run_pixels = 1024;
static_assert(run_pixels % pixels_at_once == 0);
constexpr int64_t pixels_ahead = 4096;  // bytes
/// Of a sum of so many sources, where a core draws most from memory by one stream: sums of one source in 16 bits are
/// bound by instructions, too.
constexpr int64_t pixels_in_stream(int64_t element, size_t count) {
  return element == 2 && count == 1 ? 4 : 2;
}

/// Pixels that a pass reads or writes.
struct PixelSource {
  template <class T>
  PixelSource(const T* first, int64_t pitch, int64_t channels)
      : data(reinterpret_cast<const std::byte*>(first)),
        pitch_bytes(pitch * int64_t{sizeof(T)}),
        element(sizeof(T)),
        whole(pitch == channels) {}
  const std::byte* data;
  int64_t pitch_bytes, element;
  bool whole;  ///< nothing between pixels

  /// Asks the second-level cache for the share of the channels at c in `pixels` from `row`, in the order of memory if
  /// it can.
  void ask(int64_t row, int64_t c, int64_t pixels = pixels_at_once) const {
    const std::byte* from = data + row * pitch_bytes + (whole ? pixels : 1) * c * element;
    const int64_t step = whole ? 64 : pitch_bytes;
#pragma GCC unroll 4
    for (int64_t i = 0; i < pixels; ++i) __builtin_prefetch(from + i * step, 0, 2);
  }
  /// Pixels ahead of a pass that are asked for: some thousand bytes, a multiple of pixels_at_once.
  int64_t ahead(int64_t channels) const {
    return (1 + pixels_ahead / (channels * element) / pixels_at_once) * pixels_at_once;
  }
};

/// How a sum over so many pixels is cut: `runs` of each chunk, the last ones of which may be empty.
struct PixelRuns {
  explicit PixelRuns(int64_t rows_)
      : rows(rows_), runs(std::max<int64_t>(1, ceil_div(rows, pixel_chunks * run_pixels))) {}
  int64_t rows, runs;
  Range chunk(int64_t index) const {
    return split_range(rows, static_cast<int>(index), static_cast<int>(pixel_chunks));
  }
  int64_t count() const { return pixel_chunks * runs; }
  /// The pixels of run `index` of all.
  Range run(int64_t index) const {
    const Range all = chunk(index / runs);
    const int64_t begin = std::min(all.begin + index % runs * run_pixels, all.end);
    return {begin, std::min(begin + run_pixels, all.end)};
  }
};

/// Chunks that a thread takes in turn: more streams draw more on most CPUs, if the slowest thread has no more chunks
/// for it.
inline int64_t chunks_in_turn(int threads) {
  if (cpu_features().one_stream) return 1;
  const auto most = [&](int64_t count) { return ceil_div(pixel_chunks / count, threads) * count; };
  int64_t best = chunks_at_once;
  for (int64_t count = best / 2; count >= 1; count /= 2)
    if (most(count) < most(best)) best = count;
  return best;
}

/// sum_pixels for one run of `vectors` whole vectors of channels whose sums stay in registers: those of so few
/// channels are loaded again before a store has got to the cache, which a Zen 5 has taken six times the time for.
template <int vectors, size_t count, class F>
void sum_narrow_pixels(Range rows, float* first, const std::array<PixelSource, count>& sources, int64_t ahead,
                       int64_t pixels, const F& each) {
  constexpr int64_t channels = vectors * Vec::lanes;
  constexpr std::integral_constant<int64_t, 0> whole;
  const int64_t line = 64 / sources[0].element;
  std::array<Vec, size_t{vectors}> a, b;
  a.fill(Vec::all(0.0f)), b.fill(Vec::all(0.0f));
  for (int64_t row = rows.begin; row < rows.end; row += pixels) {
    for (int64_t c = 0; c < channels; c += line)
      for (const PixelSource& source : sources) source.ask(row + ahead, c, pixels);
    for (int64_t r = row; r < std::min(row + pixels, rows.end); ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) each(rows.begin, r, v * Vec::lanes, whole, a[size_t(v)], b[size_t(v)]);
  }
  for (int v = 0; v < vectors; ++v) {
    put(first + v * Vec::lanes, a[size_t(v)], whole);
    put(first + channels + v * Vec::lanes, b[size_t(v)], whole);
  }
}

/// Two sums per channel and run into `partial`: f(first, row, c, n, sums0, sums1) adds the vector of channels at c of
/// pixel `row`; `first` is the first one of its run. A cache line of a few pixels at a time, of several chunks in turn:
/// most cores draw up to 1.6 times as much from memory by many streams as by one, if they come back to each within a
/// page; Zen 5's half as much. Later pixels of every source are asked for: their lines are too many short runs for a
/// prefetcher. Every thread has its own copy of f: what f captured by reference would be read again behind every store.
template <size_t count, class F>
void sum_pixels(const Shape& s, int threads, float* partial, const std::array<PixelSource, count>& sources, F f) {
  const int64_t channels = s.c(), line = 64 / sources[0].element, ahead = sources[0].ahead(channels),
                in_turn = chunks_in_turn(threads),
                pixels = cpu_features().one_stream ? pixels_in_stream(sources[0].element, count) : pixels_at_once;
  parallel_ranges(pixel_chunks / in_turn, threads, 1, [=, cut = PixelRuns(s.rows())](Range groups) {
    const F each = f;
    if constexpr (Vec::lanes == 16) {  // Zen 5's
      const auto narrow = [&](auto vectors) {
        for (int64_t k = groups.begin * cut.runs; k < groups.end * cut.runs; ++k)
          sum_narrow_pixels<vectors>(cut.run(k), partial + k * 2 * channels, sources, ahead, pixels, each);
      };
      if (in_turn == 1 && channels == 16) return narrow(std::integral_constant<int, 1>{});
      if (in_turn == 1 && channels == 32) return narrow(std::integral_constant<int, 2>{});
      if (in_turn == 1 && channels == 48) return narrow(std::integral_constant<int, 3>{});
      if (in_turn == 1 && channels == 64) return narrow(std::integral_constant<int, 4>{});
    }
    for (int64_t first_chunk = groups.begin * in_turn; first_chunk < groups.end * in_turn; first_chunk += in_turn) {
      std::fill(partial + first_chunk * cut.runs * 2 * channels,
                partial + (first_chunk + in_turn) * cut.runs * 2 * channels, 0.0f);
      std::array<Range, chunks_at_once> rows;
      int64_t longest = 0;
      for (int64_t i = 0; i < in_turn; ++i) {
        rows[size_t(i)] = cut.chunk(first_chunk + i);
        longest = std::max(longest, rows[size_t(i)].size());
      }
      for (int64_t done = 0; done < longest; done += pixels)
        for (int64_t begin = 0; begin < channels; begin += line)
          for (int64_t i = 0; i < in_turn; ++i) {
            const int64_t row = rows[size_t(i)].begin + done, end = std::min(row + pixels, rows[size_t(i)].end),
                          run = done / run_pixels, first_of_run = rows[size_t(i)].begin + run * run_pixels;
            for (const PixelSource& source : sources) source.ask(row + ahead, begin, pixels);
            float *first = partial + ((first_chunk + i) * cut.runs + run) * 2 * channels, *second = first + channels;
            for_vectors(begin, std::min(begin + line, channels), [&](int64_t c, auto n) {
              Vec a = get(first + c, n), b = get(second + c, n);
              for (int64_t r = row; r < end; ++r) each(first_of_run, r, c, n, a, b);
              put(first + c, a, n);
              put(second + c, b, n);
            });
          }
    }
  });
}

/// f(row, c, n) writes the vector of channels at c; those of a line one after the other. Asks ahead in `places` and
/// copies f like sum_pixels; more streams gain nothing where pixels are written, too.
template <class F>
void map_pixels(const Shape& s, int threads, bool streams, std::span<const PixelSource> places, F f) {
  const int64_t channels = s.c(), line = 64 / places[0].element, ahead = places[0].ahead(channels);
  parallel_ranges(s.rows(), threads, std::max<int64_t>(1, grain / channels), [=](Range rows) {
    const F each = f;
    for (int64_t row = rows.begin; row < rows.end; row += pixels_at_once)
      for (int64_t begin = 0; begin < channels; begin += line) {
        for (const PixelSource& place : places) place.ask(row + ahead, begin);
        for (int64_t r = row; r < std::min(row + pixels_at_once, rows.end); ++r)
          for_vectors(begin, std::min(begin + line, channels), [&](int64_t c, auto n) { each(r, c, n); });
      }
    if (streams) fence();
  });
}

/// Bytes of the two sums of each run and channel.
inline int64_t run_sum_bytes(const Shape& s) {
  return PixelRuns(s.rows()).count() * 2 * s.c() * int64_t{sizeof(float)};
}
/// f(c, totals) for every channel of a range: its first `sums` sums, those of all runs.
template <size_t sums, class F>
void for_totals(const Shape& s, const float* partial, Range range, F&& f) {
  constexpr int64_t together = 16;  // channels: one by one, every sum would wait for the one before
  const int64_t channels = s.c(), runs = PixelRuns(s.rows()).count();
  const auto some = [&](int64_t first, auto count) {
    std::array<std::array<double, together>, sums> totals{};
    for (int64_t k = 0; k < runs; ++k)
      for (size_t which = 0; which < sums; ++which)
        for (int64_t i = 0; i < count; ++i)
          totals[which][size_t(i)] += double(partial[(2 * k + int64_t(which)) * channels + first + i]);
    for (int64_t i = 0; i < count; ++i) {
      std::array<double, sums> of_channel;
      for (size_t which = 0; which < sums; ++which) of_channel[which] = totals[which][size_t(i)];
      f(first + i, of_channel);
    }
  };
  int64_t c = range.begin;
  for (; c + together <= range.end; c += together) some(c, std::integral_constant<int64_t, together>{});
  if (c < range.end) some(c, range.end - c);
}

/// f(Range) over the channels: what is left to do with the sums of all runs takes a single thread longer than those
/// of a small image take all.
template <class F>
void for_channels(int64_t channels, int threads, F&& f) {
  constexpr int64_t fewest = 16;
  parallel_ranges(channels, threads, fewest, f);
}

/// Sums of all channels of dense or evenly spaced pixels into `partial`, for for_totals.
template <class T>
void sum_channels(const Shape& s, int64_t pitch, int threads, const T* x, float* partial) {
  sum_pixels(s, threads, partial, std::array{PixelSource(x, pitch, s.c())},
             [=](int64_t, int64_t row, int64_t c, auto n, Vec& sum, Vec&) { sum = sum + get(x + row * pitch + c, n); });
}

/// y[channel] = `factor` times the sum of all its runs.
template <class T>
void finish_sums(const Shape& s, int threads, const float* partial, T* y, float factor) {
  for_channels(s.c(), threads, [=](Range range) {
    for_totals<1>(s, partial, range, [=](int64_t c, const auto& totals) { y[c] = T(float(totals[0]) * factor); });
  });
}

std::unique_ptr<Prepared> prepare_channel_sum(const Problem& p) {
  return prepared(
      [p](const KernelArgs& args) {
        float* partial = reinterpret_cast<float*>(args.workspace);
        by_storage(p.in[0].dtype, [&](auto zero) {
          sum_channels(p.in[0].shape, p.in[0].pixel_pitch(), p.threads, args.in[0].data<decltype(zero)>(), partial);
        });
        finish_sums(p.in[0].shape, p.threads, partial, args.out[0].data<float>(), 1);
      },
      run_sum_bytes(p.in[0].shape));
}

/// y[channel of an image] = `factor` times the sum over the image's pixels; for results of one pixel an image.
std::unique_ptr<Prepared> prepare_image_sums(const Problem& p, float factor) {
  return prepared(
      [p, factor](const KernelArgs& args) {
        const Shape& x = p.in[0].shape;
        const Shape image{1, x.d(), x.h(), x.w(), x.c()};
        const int64_t pitch = p.in[0].pixel_pitch();
        float* partial = reinterpret_cast<float*>(args.workspace);
        by_storage(p.in[0].dtype, [&](auto zero) {
          using T = decltype(zero);
          for (int64_t n = 0; n < x.n(); ++n) {
            sum_channels(image, pitch, p.threads, args.in[0].data<T>() + n * image.rows() * pitch, partial);
            finish_sums(image, p.threads, partial, args.out[0].data<T>() + n * p.out[0].pixel_pitch(), factor);
          }
        });
      },
      run_sum_bytes(p.in[0].shape));
}

std::unique_ptr<Prepared> prepare_channel_dot(const Problem& p) {
  return prepared(
      [p](const KernelArgs& args) {
        const int64_t channels = p.in[0].shape.c(), pa = p.in[0].pixel_pitch(), pb = p.in[1].pixel_pitch();
        float* partial = reinterpret_cast<float*>(args.workspace);
        by_storage(p.in[0].dtype, [&](auto zero) {
          const auto *a = args.in[0].data<decltype(zero)>(), *b = args.in[1].data<decltype(zero)>();
          sum_pixels(p.in[0].shape, p.threads, partial,
                     std::array{PixelSource(a, pa, channels), PixelSource(b, pb, channels)},
                     [=](int64_t, int64_t row, int64_t c, auto n, Vec& sum, Vec&) {
                       sum = fma(get(a + row * pa + c, n), get(b + row * pb + c, n), sum);
                     });
        });
        finish_sums(p.in[0].shape, p.threads, partial, args.out[0].data<float>(), 1);
      },
      run_sum_bytes(p.in[0].shape));
}

/// Sums about the first pixel of each run, so that squares do not cancel.
std::unique_ptr<Prepared> prepare_moments(const Problem& p) {
  return prepared(
      [p](const KernelArgs& args) {
        const int64_t channels = p.in[0].shape.c(), rows = p.in[0].shape.rows(), pitch = p.in[0].pixel_pitch();
        const PixelRuns cut(rows);
        float* partial = reinterpret_cast<float*>(args.workspace);
        double* moments = args.out[0].data<double>();
        std::fill(moments, moments + 2 * channels, 0.0);
        by_storage(p.in[0].dtype, [&](auto zero) {
          const auto* x = args.in[0].data<decltype(zero)>();
          sum_pixels(p.in[0].shape, p.threads, partial, std::array{PixelSource(x, pitch, channels)},
                     [=](int64_t first, int64_t row, int64_t c, auto n, Vec& sum, Vec& squares) {
                       const Vec d = get(x + row * pitch + c, n) - get(x + first * pitch + c, n);
                       sum = sum + d;
                       squares = fma(d, d, squares);
                     });
          for_channels(channels, p.threads, [=](Range range) {
            for (int64_t k = 0; k < cut.count(); ++k) {
              const Range run = cut.run(k);
              const double count = double(run.size());
              if (count == 0) continue;
              for (int64_t c = range.begin; c < range.end; ++c) {
                const double m = double(float(x[run.begin * pitch + c])), sum = double(partial[k * 2 * channels + c]),
                             squares = double(partial[k * 2 * channels + channels + c]);
                moments[c] += sum + count * m;
                moments[channels + c] += squares + 2 * m * sum + count * m * m;
              }
            }
          });
        });
        for (int64_t c = 0; c < 2 * channels; ++c) moments[c] /= double(rows);
      },
      run_sum_bytes(p.in[0].shape));
}

/// In place, part of a line would leave before the rest of it is read.
template <class T>
inline bool parts_may_stream(const T* from, const T* to) {
  return Vec::lanes * sizeof(T) == 64 || from != to;
}

/// y = x*scale[c] (+ shift[c]), clamped at zero if asked. A NaN stays one.
template <class T>
void affine_pixels(const Problem& p, const KernelArgs& args, const float* scale, const float* shift, bool relu) {
  const int64_t channels = p.in[0].shape.c(), px = p.in[0].pixel_pitch(), py = p.out[0].pixel_pitch();
  const T* x = args.in[0].data<T>();
  T* y = args.out[0].data<T>();
  const Vec none = Vec::all(0.0f);
  const bool streams = streams_lines(p.out[0], args.out[0], channels) && parts_may_stream(x, y);
  // An output that is kept comes from memory, unlike gradients, whose memory is used again and again.
  const std::array places{PixelSource(x, px, channels), PixelSource(y, py, channels)};
  map_pixels(p.in[0].shape, p.threads, streams, std::span(places).first(streams ? 1 : 2),
             [=](int64_t row, int64_t c, auto n) {
               const Vec value = fma(get(x + row * px + c, n), get(scale + c, n), shift ? get(shift + c, n) : none);
               put_output(y + row * py + c, relu ? max(none, value) : value, n, streams);
             });
}

std::unique_ptr<Prepared> prepare_channel_scale(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const float* shift = p.in.size() > 2 ? args.in[2].data<float>() : nullptr;
    by_storage(p.in[0].dtype,
               [&](auto zero) { affine_pixels<decltype(zero)>(p, args, args.in[1].data<float>(), shift, false); });
  });
}

/// Per channel: y = x*scale + shift; the clamp is decided by the same arithmetic in every pass.
struct ChannelNorm {
  double mean, inverse;
  float scale, shift;
};
inline ChannelNorm channel_norm(const Problem& p, const KernelArgs& args, size_t first, int64_t c) {
  const int64_t channels = p.in[first].shape.c();
  const bool running = p.op.kind == OpKind::batch_norm && p.in.size() == 5;
  double mean, variance;
  if (running) {
    mean = double(args.in[3].data<float>()[c]), variance = double(args.in[4].data<float>()[c]);
  } else {
    const double* moments = args.in[first + 3].data<double>();
    mean = moments[c], variance = moments[channels + c] - mean * mean;
  }
  const double inverse = 1 / std::sqrt((variance > 0 ? variance : 0 * variance) + p.op.as<BatchNormAttrs>().epsilon);
  const double scale = double(args.in[first + 1].data<float>()[c]) * inverse;
  return {mean, inverse, float(scale), float(double(args.in[first + 2].data<float>()[c]) - mean * scale)};
}

std::unique_ptr<Prepared> prepare_batch_norm(const Problem& p) {
  return prepared(
      [p](const KernelArgs& args) {
        const int64_t channels = p.in[0].shape.c();
        float *scale = reinterpret_cast<float*>(args.workspace), *shift = scale + channels;
        for (int64_t c = 0; c < channels; ++c) {
          const ChannelNorm norm = channel_norm(p, args, 0, c);
          scale[c] = norm.scale, shift[c] = norm.shift;
        }
        by_storage(p.in[0].dtype, [&](auto zero) {
          affine_pixels<decltype(zero)>(p, args, scale, shift, p.op.as<BatchNormAttrs>().relu != 0);
        });
      },
      2 * p.in[0].shape.c() * 4);
}

std::unique_ptr<Prepared> prepare_batch_norm_sums(const Problem& p) {
  return prepared(
      [p](const KernelArgs& args) {
        const int64_t channels = p.in[0].shape.c(), rows = p.in[0].shape.rows(), pg = p.in[0].pixel_pitch(),
                      px = p.in[1].pixel_pitch();
        float *scale = reinterpret_cast<float*>(args.workspace), *shift = scale + channels, *mean = shift + channels,
              *partial = mean + channels;
        for (int64_t c = 0; c < channels; ++c) {
          const ChannelNorm norm = channel_norm(p, args, 1, c);
          scale[c] = norm.scale, shift[c] = norm.shift, mean[c] = float(norm.mean);
        }
        const bool relu = p.op.as<BatchNormAttrs>().relu != 0;
        const Vec none = Vec::all(0.0f);
        by_storage(p.in[0].dtype, [&](auto zero) {
          const auto *dy = args.in[0].data<decltype(zero)>(), *x = args.in[1].data<decltype(zero)>();
          sum_pixels(p.in[0].shape, p.threads, partial,
                     std::array{PixelSource(dy, pg, channels), PixelSource(x, px, channels)},
                     [=](int64_t, int64_t row, int64_t c, auto n, Vec& sum, Vec& dot) {
                       const Vec value = get(x + row * px + c, n);
                       Vec g = get(dy + row * pg + c, n);
                       if (relu) g = select(greater(fma(value, get(scale + c, n), get(shift + c, n)), none), g, none);
                       sum = sum + g;
                       dot = fma(g, value - get(mean + c, n), dot);
                     });
        });
        double* means = args.out[0].data<double>();
        for_channels(channels, p.threads, [&](Range range) {
          for_totals<2>(p.in[0].shape, partial, range, [&](int64_t c, const auto& totals) {
            const ChannelNorm norm = channel_norm(p, args, 1, c);
            // The pixels were shifted by the mean as f32 rounds it.
            const double sum = totals[0], dot = (totals[1] + (double(mean[c]) - norm.mean) * sum) * norm.inverse;
            means[c] = sum / double(rows), means[channels + c] = dot / double(rows);
          });
        });
      },
      3 * p.in[0].shape.c() * int64_t{sizeof(float)} + run_sum_bytes(p.in[0].shape));
}

/// dx = scale*(dy - mean(dy) - xhat*mean(dy*xhat)) = scale*dy + slope*(x - mean) - offset.
std::unique_ptr<Prepared> prepare_batch_norm_backward_data(const Problem& p) {
  return prepared(
      [p](const KernelArgs& args) {
        const int64_t channels = p.in[0].shape.c(), pg = p.in[0].pixel_pitch(), px = p.in[1].pixel_pitch(),
                      po = p.out[0].pixel_pitch();
        float *scale = reinterpret_cast<float*>(args.workspace), *shift = scale + channels, *slope = shift + channels,
              *offset = slope + channels;
        const double* means = args.in[5].data<double>();
        for (int64_t c = 0; c < channels; ++c) {
          const ChannelNorm norm = channel_norm(p, args, 1, c);
          const double factor = double(norm.scale), tilt = -factor * norm.inverse * means[channels + c];
          scale[c] = norm.scale, shift[c] = norm.shift, slope[c] = float(tilt),
          offset[c] = float(-factor * means[c] - tilt * norm.mean);
        }
        const bool relu = p.op.as<BatchNormAttrs>().relu != 0;
        const Vec none = Vec::all(0.0f);
        by_storage(p.in[0].dtype, [&](auto zero) {
          using T = decltype(zero);
          const T *dy = args.in[0].data<T>(), *x = args.in[1].data<T>();
          T* dx = args.out[0].data<T>();
          const bool streams = streams_lines(p.out[0], args.out[0], channels) && parts_may_stream(dy, dx);
          map_pixels(p.in[0].shape, p.threads, streams,
                     std::array{PixelSource(dy, pg, channels), PixelSource(x, px, channels)},
                     [=](int64_t row, int64_t c, auto n) {
                       const Vec value = get(x + row * px + c, n), factor = get(scale + c, n);
                       Vec g = get(dy + row * pg + c, n);
                       if (relu) g = select(greater(fma(value, factor, get(shift + c, n)), none), g, none);
                       put_output(dx + row * po + c, fma(factor, g, fma(get(slope + c, n), value, get(offset + c, n))),
                                  n, streams);
                     });
        });
      },
      4 * p.in[0].shape.c() * 4);
}
