// Pooling, channels last: a vector of channels at a time, windows walked in order, so every input row is read and every
// output row written exactly once. Bound by memory: bytes of x + y + arg-max. Backward gathers: each input position
// looks up the windows that cover it (one for non-overlapping pools), so nothing is zeroed first and threads never
// collide.

/// Outputs whose window covers input i along one axis: first..last, and the tap index of `first`.
struct Cover {
  int64_t first, last, tap;
};
inline Cover covering(const PoolAttrs& a, int axis, int64_t i, int64_t outputs) {
  const int64_t shifted = i + a.pad_low[axis], k = a.kernel[axis], s = a.stride[axis];
  const int64_t first = shifted < k ? 0 : (shifted - k) / s + 1, last = std::min(shifted / s, outputs - 1);
  return {first, last, shifted - first * s};
}

inline const PoolAttrs& pool_attrs(const Problem& p) {
  if (const auto* fused = std::get_if<ActivationPoolAttrs>(&p.op.attrs)) return fused->pool;
  return p.op.as<PoolAttrs>();
}

Support supports_pool(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  if (const auto* fused = std::get_if<ActivationPoolAttrs>(&p.op.attrs);
      fused && fused->activation.function != Activation::leaky_relu)
    return Support::no("fuses leaky_relu only");
  return needs_dense(p);
}

/// Part of a window that lies inside the image along one axis.
inline Range inside(const PoolAttrs& a, int axis, int64_t o, int64_t extent) {
  const int64_t start = o * a.stride[axis] - a.pad_low[axis];
  return {std::max<int64_t>(0, -start), std::min(a.kernel[axis], extent - start)};
}

template <class T, bool activated>
void max_pool_row(const Problem& p, const PoolAttrs& a, const T* x, T* y, uint8_t* arg, Vec slope, int64_t n,
                  int64_t od, int64_t oh) {
  const TensorDesc& xd = p.in[0];
  const Shape &xs = xd.shape, &ys = p.out[0].shape;
  const Range rd = inside(a, 0, od, xs.d()), rh = inside(a, 1, oh, xs.h());
  const Vec none = Vec::all(0.0f);
  for (int64_t ow = 0; ow < ys.w(); ++ow) {
    const Range rw = inside(a, 2, ow, xs.w());
    const int64_t to = p.out[0].offset(n, od, oh, ow);
    const T* corner = x + xd.offset(n, od * a.stride[0] - a.pad_low[0], oh * a.stride[1] - a.pad_low[1],
                                    ow * a.stride[2] - a.pad_low[2]);
    for_vectors(0, ys.c(), [&](int64_t c, auto count) {
      Vec best = none;
      Ints winner = Ints::all(0);
      bool first = true;
      for (int64_t kd = rd.begin; kd < rd.end; ++kd)
        for (int64_t kh = rh.begin; kh < rh.end; ++kh)
          for (int64_t kw = rw.begin; kw < rw.end; ++kw) {
            Vec value = get(corner + kd * xd.stride[1] + kh * xd.stride[2] + kw * xd.stride[3] + c, count);
            if constexpr (activated) value = select(greater(value, none), value, rounded(T{}, slope * value));
            const Ints code = Ints::all(int((kd * a.kernel[1] + kh) * a.kernel[2] + kw));
            if (first) {
              best = value, winner = code, first = false;
              continue;
            }
            const Mask wins = passes(value, best);
            best = select(wins, value, best);
            winner = select(wins, code, winner);
          }
      put(y + to + c, best, count);
      put_bytes(arg + to + c, winner, count);
    });
  }
}

template <bool activated>
std::unique_ptr<Prepared> prepare_max_pool(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const PoolAttrs& a = pool_attrs(p);
    Vec slope = Vec::all(0.0f);
    if constexpr (activated) slope = Vec::all(float(p.op.as<ActivationPoolAttrs>().activation.slope));
    const Shape& ys = p.out[0].shape;
    by_storage(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* x = args.in[0].data<T>();
      T* y = args.out[0].data<T>();
      uint8_t* arg = args.out[1].data<uint8_t>();
      parallel_ranges(ys.n() * ys.d() * ys.h(), p.threads, 1, [&](Range r) {
        for (int64_t i = r.begin; i < r.end; ++i)
          max_pool_row<T, activated>(p, a, x, y, arg, slope, i / (ys.d() * ys.h()), i / ys.h() % ys.d(), i % ys.h());
      });
    });
  });
}

template <class T, bool activated>
void max_pool_backward_row(const Problem& p, const PoolAttrs& a, const KernelArgs& args, Vec slope, int64_t n,
                           int64_t d, int64_t h) {
  const T *dy = args.in[0].data<T>(), *y = activated ? args.in[1].data<T>() : nullptr;
  const uint8_t* arg = args.in[activated ? 2 : 1].data<uint8_t>();
  T* dx = args.out[0].data<T>();
  const TensorDesc& yd = p.in[0];
  const Shape &ys = yd.shape, &xs = p.out[0].shape;
  const Cover cd = covering(a, 0, d, ys.d()), ch = covering(a, 1, h, ys.h());
  const Vec none = Vec::all(0.0f);
  for (int64_t w = 0; w < xs.w(); ++w) {
    const Cover cw = covering(a, 2, w, ys.w());
    T* to = dx + p.out[0].offset(n, d, h, w);
    for_vectors(0, xs.c(), [&](int64_t c, auto count) {
      Vec total = none;
      for (int64_t od = cd.first; od <= cd.last; ++od)
        for (int64_t oh = ch.first; oh <= ch.last; ++oh)
          for (int64_t ow = cw.first; ow <= cw.last; ++ow) {
            const int64_t from = yd.offset(n, od, oh, ow) + c;
            const int64_t kd = cd.tap - (od - cd.first) * a.stride[0], kh = ch.tap - (oh - ch.first) * a.stride[1],
                          kw = cw.tap - (ow - cw.first) * a.stride[2];
            const Ints code = Ints::all(int((kd * a.kernel[1] + kh) * a.kernel[2] + kw));
            const Ints winner = get_bytes(arg + from, count);
            Vec g = get(dy + from, count);
            if constexpr (activated) g = rounded(T{}, leaky_gradient(g, get(y + from, count), slope));
            total = total + select(equal(winner, code), g, none);
          }
      put(to + c, total, count);
    });
  }
}

/// 2x2x2 windows without overlap (CosmoFlow's): walk the pooled map, write the eight positions of each cell.
template <class T, bool activated>
void max_pool_backward_cells(const Problem& p, const KernelArgs& args, Vec slope, int64_t n, int64_t od, int64_t oh) {
  const TensorDesc &yd = p.in[0], &xd = p.out[0];
  const Vec none = Vec::all(0.0f);
  for (int64_t ow = 0; ow < yd.shape.w(); ++ow) {
    const int64_t from = yd.offset(n, od, oh, ow);
    const T *dy = args.in[0].data<T>() + from, *y = activated ? args.in[1].data<T>() + from : nullptr;
    const uint8_t* arg = args.in[activated ? 2 : 1].data<uint8_t>() + from;
    T* dx = args.out[0].data<T>() + xd.offset(n, 2 * od, 2 * oh, 2 * ow);
    for_vectors(0, yd.shape.c(), [&](int64_t c, auto count) {
      const Ints winner = get_bytes(arg + c, count);
      Vec g = get(dy + c, count);
      if constexpr (activated) g = leaky_gradient(g, get(y + c, count), slope);
      for (int k = 0; k < 8; ++k)
        put(dx + (k >> 2) * xd.stride[1] + (k >> 1 & 1) * xd.stride[2] + (k & 1) * xd.stride[3] + c,
            select(equal(winner, Ints::all(k)), g, none), count);
    });
  }
}

inline bool is_cells(const PoolAttrs& a, const Shape& x) {
  const Int3 two{2, 2, 2}, zero{0, 0, 0};
  return a.kernel == two && a.stride == two && a.pad_low == zero && a.pad_high == zero && x.d() % 2 == 0 &&
         x.h() % 2 == 0 && x.w() % 2 == 0;
}

template <bool activated>
std::unique_ptr<Prepared> prepare_max_pool_backward(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const PoolAttrs& a = pool_attrs(p);
    Vec slope = Vec::all(0.0f);
    if constexpr (activated) slope = Vec::all(float(p.op.as<ActivationPoolAttrs>().activation.slope));
    const bool cells = is_cells(a, p.out[0].shape);
    const Shape& s = cells ? p.in[0].shape : p.out[0].shape;
    by_storage(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      parallel_ranges(s.n() * s.d() * s.h(), p.threads, 1, [&](Range r) {
        for (int64_t i = r.begin; i < r.end; ++i) {
          const int64_t n = i / (s.d() * s.h()), d = i / s.h() % s.d(), h = i % s.h();
          if (cells)
            max_pool_backward_cells<T, activated>(p, args, slope, n, d, h);
          else
            max_pool_backward_row<T, activated>(p, a, args, slope, n, d, h);
        }
      });
    });
  });
}

inline float window_share(const PoolAttrs& a, const Shape& x, int64_t od, int64_t oh, int64_t ow) {
  if (a.count_padding) return 1.0f / float(a.kernel[0] * a.kernel[1] * a.kernel[2]);
  return 1.0f / float(inside(a, 0, od, x.d()).size() * inside(a, 1, oh, x.h()).size() * inside(a, 2, ow, x.w()).size());
}

/// Whether one window covers each image.
inline bool is_global(const PoolAttrs& a, const Shape& x) {
  const Int3 zero{0, 0, 0};
  return a.kernel == Int3{x.d(), x.h(), x.w()} && a.pad_low == zero && a.pad_high == zero;
}

std::unique_ptr<Prepared> prepare_avg_pool(const Problem& p) {
  if (is_global(pool_attrs(p), p.in[0].shape))
    return prepare_image_sums(p, window_share(pool_attrs(p), p.in[0].shape, 0, 0, 0));
  return prepared([p](const KernelArgs& args) {
    const PoolAttrs& a = pool_attrs(p);
    const TensorDesc &xd = p.in[0], &yd = p.out[0];
    const Shape &xs = xd.shape, &ys = yd.shape;
    by_storage(xd.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* x = args.in[0].data<T>();
      T* y = args.out[0].data<T>();
      parallel_ranges(ys.rows(), p.threads, 1, [&](Range r) {
        for (int64_t i = r.begin; i < r.end; ++i) {
          const int64_t ow = i % ys.w(), oh = i / ys.w() % ys.h(), od = i / (ys.w() * ys.h()) % ys.d(),
                        n = i / (ys.w() * ys.h() * ys.d());
          const Range rd = inside(a, 0, od, xs.d()), rh = inside(a, 1, oh, xs.h()), rw = inside(a, 2, ow, xs.w());
          const Vec share = Vec::all(window_share(a, xs, od, oh, ow));
          const T* corner = x + xd.offset(n, od * a.stride[0] - a.pad_low[0], oh * a.stride[1] - a.pad_low[1],
                                          ow * a.stride[2] - a.pad_low[2]);
          for_vectors(0, ys.c(), [&](int64_t c, auto count) {
            Vec total = Vec::all(0.0f);
            for (int64_t kd = rd.begin; kd < rd.end; ++kd)
              for (int64_t kh = rh.begin; kh < rh.end; ++kh)
                for (int64_t kw = rw.begin; kw < rw.end; ++kw)
                  total = total + get(corner + kd * xd.stride[1] + kh * xd.stride[2] + kw * xd.stride[3] + c, count);
            put(y + i * ys.c() + c, total * share, count);
          });
        }
      });
    });
  });
}

/// 1 / positions of every window along one axis; a window's share is their product.
inline std::vector<float> axis_shares(const PoolAttrs& a, int axis, int64_t windows, int64_t extent) {
  std::vector<float> shares;
  for (int64_t o = 0; o < windows; ++o)
    shares.push_back(1.0f / float(a.count_padding ? a.kernel[axis] : inside(a, axis, o, extent).size()));
  return shares;
}

std::unique_ptr<Prepared> prepare_avg_pool_backward(const Problem& p) {
  const PoolAttrs& attrs = pool_attrs(p);
  const Shape &from = p.in[0].shape, &to = p.out[0].shape;
  std::array<std::vector<float>, 3> shares;
  for (int i = 0; i < 3; ++i) shares[size_t(i)] = axis_shares(attrs, i, from[i + 1], to[i + 1]);
  std::vector<Cover> columns;
  for (int64_t w = 0; w < to.w(); ++w) columns.push_back(covering(attrs, 2, w, from.w()));
  return prepared([p, shares, columns](const KernelArgs& args) {
    const PoolAttrs& a = pool_attrs(p);
    const TensorDesc& yd = p.in[0];
    const Shape &xs = p.out[0].shape, &ys = yd.shape;
    by_storage(yd.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* dy = args.in[0].data<T>();
      T* dx = args.out[0].data<T>();
      parallel_ranges(xs.n() * xs.d() * xs.h(), p.threads, 1, [&](Range r) {
        struct WindowRow {
          const T* dy;
          float share;
        };
        std::vector<WindowRow> above;  // rows of windows that cover a row
        for (int64_t i = r.begin; i < r.end; ++i) {
          const int64_t h = i % xs.h(), d = i / xs.h() % xs.d(), n = i / (xs.h() * xs.d());
          const Cover cd = covering(a, 0, d, ys.d()), ch = covering(a, 1, h, ys.h());
          above.clear();
          for (int64_t od = cd.first; od <= cd.last; ++od)
            for (int64_t oh = ch.first; oh <= ch.last; ++oh)
              above.push_back({dy + yd.offset(n, od, oh, 0), shares[0][size_t(od)] * shares[1][size_t(oh)]});
          T* row = dx + i * xs.w() * xs.c();
          for (const Cover& cw : columns) {
            for_vectors(0, xs.c(), [&](int64_t c, auto count) {
              Vec total = Vec::all(0.0f);
              for (const WindowRow& from : above)
                for (int64_t ow = cw.first; ow <= cw.last; ++ow)
                  total = fma(get(from.dy + ow * yd.stride[3] + c, count), Vec::all(from.share * shares[2][size_t(ow)]),
                              total);
              put(row + c, total, count);
            });
            row += xs.c();
          }
        }
      });
    });
  });
}
