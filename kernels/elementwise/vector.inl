// Element-wise ops at memory speed: load, a few operations in f32, store; tails by masked or padded access. Work is cut
// into static ranges; sums go through partial sums over fixed chunks, so that the thread count never changes a bit.

constexpr int64_t grain = 1024;              // elements per thread at least
constexpr int64_t sum_chunk = Sweep::grain;  // elements per partial sum

Support supports_dense_float(const Problem& p) {
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  return needs_dense(p);
}

/// Rows of channels, so that strided slices work: one long row where everything is dense.
struct Rows {
  int64_t rows, length;
  explicit Rows(const Problem& p) : rows(1), length(p.out[0].shape.elements()) {
    for (const auto* list : {&p.in, &p.out})
      for (const TensorDesc& desc : *list)
        if (desc.shape == p.out[0].shape && !desc.dense()) rows = p.out[0].shape.rows(), length = p.out[0].shape.c();
  }
};

inline int64_t row_offset(const TensorDesc& d, int64_t row) {
  const int64_t w = row % d.shape.w(), rest = row / d.shape.w();
  const int64_t h = rest % d.shape.h(), rest2 = rest / d.shape.h();
  return d.offset(rest2 / d.shape.d(), rest2 % d.shape.d(), h, w);
}

/// Runs f(offsets per operand, begin, end) over all elements in parallel; operand k is in[0..], then out[0], which may
/// go past the caches.
template <class F>
void for_elements(const Problem& p, const TensorDesc& a, const TensorDesc& b, const TensorDesc& y, bool streams,
                  F&& f) {
  const Rows rows(p);
  if (rows.rows == 1) {
    parallel_ranges(rows.length, p.threads, grain, [&](Range r) {
      f(0, 0, 0, r.begin, r.end);
      if (streams) fence();
    });
    return;
  }
  parallel_ranges(rows.rows, p.threads, std::max<int64_t>(1, grain / rows.length), [&](Range r) {
    // An offset takes divisions that cost more than a short row: one per line of the image.
    for (int64_t row = r.begin; row < r.end;) {
      const int64_t end = std::min(r.end, (row / y.shape.w() + 1) * y.shape.w());
      int64_t at_a = row_offset(a, row), at_b = row_offset(b, row), at_y = row_offset(y, row);
      for (; row < end; ++row, at_a += a.stride[3], at_b += b.stride[3], at_y += y.stride[3])
        f(at_a, at_b, at_y, 0, rows.length);
    }
    if (streams) fence();
  });
}

/// Whether a large output goes past the caches: not one that takes an operand's place, whose lines are there already.
inline bool map_streams(const Problem& p, const KernelArgs& args) {
  const Tensor& y = args.out[0];
  const bool in_place =
      std::any_of(args.in.begin(), args.in.end(), [&](const Tensor& x) { return x.bytes() == y.bytes(); });
  return !in_place && streams_lines(p.out[0], y, Rows(p).length);
}

template <class TI, class TO, class F>
void map1(const Problem& p, const KernelArgs& args, F&& f) {
  const TI* x = args.in[0].data<TI>();
  TO* y = args.out[0].data<TO>();
  const bool streams = map_streams(p, args);
  for_elements(p, p.in[0], p.in[0], p.out[0], streams,
               [&](int64_t ox, int64_t, int64_t oy, int64_t begin, int64_t end) {
                 for_vectors(begin, end, [f, from = x + ox, to = y + oy, streams](int64_t i, auto n) {
                   put_output(to + i, f(get(from + i, n)), n, streams);
                 });
               });
}

template <class T, class F>
void map2(const Problem& p, const KernelArgs& args, F&& f) {
  const T *a = args.in[0].data<T>(), *b = args.in[1].data<T>();
  T* y = args.out[0].data<T>();
  const bool strided = Rows(p).rows > 1, streams = map_streams(p, args);
  for_elements(
      p, p.in[0], p.in[1], p.out[0], streams, [&](int64_t oa, int64_t ob, int64_t oy, int64_t begin, int64_t end) {
        if (strided) {  // pieces of rows are nothing that a prefetcher recognises
          prefetch(a + oa + 16 * p.in[0].stride[3], (end - begin) * int64_t{sizeof(T)});
          prefetch(b + ob + 16 * p.in[1].stride[3], (end - begin) * int64_t{sizeof(T)});
        }
        for_vectors(begin, end, [f, from_a = a + oa, from_b = b + ob, to = y + oy, streams](int64_t i, auto n) {
          put_output(to + i, f(get(from_a + i, n), get(from_b + i, n)), n, streams);
        });
      });
}

/// tanh to about 2 units in the last place: the odd polynomial of Moshier's Cephes library below 0.625, else
/// 1 - 2/(exp(2|x|)+1) with the sign restored.
inline Vec tanh(Vec x) {
  const Vec magnitude = min(abs(x), Vec::all(10.0f)), z = x * x;
  Vec small = fma(z, Vec::all(-5.70498872745e-3f), Vec::all(2.06390887954e-2f));
  small = fma(small, z, Vec::all(-5.37397155531e-2f));
  small = fma(small, z, Vec::all(1.33314422036e-1f));
  small = fma(small, z, Vec::all(-3.33332819422e-1f));
  small = fma(small * z, x, x);
  Vec large = Vec::all(1.0f) - Vec::all(2.0f) / (exp_bounded(magnitude + magnitude) + Vec::all(1.0f));
  large = select(greater(Vec::all(0.0f), x), Vec::all(0.0f) - large, large);
  const Vec result = select(greater(Vec::all(0.625f), abs(x)), small, large);
  return select(is_nan(x), x, result);
}

std::unique_ptr<Prepared> prepare_activation(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const auto& a = p.op.as<ActivationAttrs>();
    by_storage(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const Vec slope = Vec::all(float(a.slope)), scale = Vec::all(float(a.scale)), none = Vec::all(0.0f);
      if (a.function == Activation::tanh)
        map1<T, T>(p, args, [=](Vec x) { return scale * tanh(x); });
      else
        map1<T, T>(p, args, [=](Vec x) { return scale * select(greater(x, none), x, slope * x); });
    });
  });
}

std::unique_ptr<Prepared> prepare_activation_backward(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const auto& a = p.op.as<ActivationAttrs>();
    by_storage(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const Vec slope = Vec::all(float(a.slope)), scale = Vec::all(float(a.scale));
      const Vec inverse = Vec::all(float(1 / a.scale));
      if (a.function == Activation::tanh)
        map2<T>(p, args, [=](Vec g, Vec y) { return g * (scale - y * y * inverse); });
      else
        map2<T>(p, args, [=](Vec g, Vec y) { return scale * leaky_gradient(g, y, slope); });
    });
  });
}

Support supports_elementwise(const Problem& p) {
  return needs_narrow_float(p);
}

std::unique_ptr<Prepared> prepare_cast(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    by_storage(p.out[0].dtype, [&](auto to) {
      using TO = decltype(to);
      if (p.in[0].dtype == DType::i16)
        map1<int16_t, TO>(p, args, [](Vec x) { return x; });
      else
        by_storage(p.in[0].dtype, [&](auto from) { map1<decltype(from), TO>(p, args, [](Vec x) { return x; }); });
    });
  });
}

Support supports_cast(const Problem& p) {
  if (!narrow_float(p.out[0].dtype) || !(narrow_float(p.in[0].dtype) || p.in[0].dtype == DType::i16))
    return Support::no("casts between i16, f32, bf16 and f16, asked " + p.in[0].str() + " to " + p.out[0].str());
  return Support::yes();
}

Support supports_counts(const Problem& p) {
  if (p.in[0].dtype != DType::i16 || !narrow_float(p.out[0].dtype))
    return Support::no("reads i16 and writes f32, bf16 or f16, found " + p.in[0].str() + " and " + p.out[0].str());
  return needs_dense(p);
}

/// Counts have 65536 values: the logarithms are a table, hot entries (small counts) stay in L1.
std::unique_ptr<Prepared> prepare_log1p(const Problem& p) {
  auto table = std::make_shared<std::vector<float>>(65536);
  for (int i = 0; i < 65536; ++i) (*table)[size_t(i)] = float(std::log1p(double(int16_t(uint16_t(i)))));
  return prepared([p, table](const KernelArgs& args) {
    const int16_t* x = args.in[0].data<int16_t>();
    by_storage(p.out[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      T* y = args.out[0].data<T>();
      parallel_ranges(p.out[0].shape.elements(), p.threads, grain, [&](Range r) {
        int64_t i = r.begin;
        for (; i + Vec::lanes <= r.end; i += Vec::lanes) store(y + i, look_up(table->data(), x + i));
        if (i < r.end) store(y + i, look_up(table->data(), x + i, r.end - i), r.end - i);
      });
    });
  });
}

std::unique_ptr<Prepared> prepare_divide_by_mean(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const int16_t* x = args.in[0].data<int16_t>();
    const int64_t samples = p.in[0].shape.n(), elements = p.in[0].shape.elements() / samples;
    for (int64_t n = 0; n < samples; ++n) {
      std::vector<int64_t> part(size_t(p.threads));
      parallel_threads(p.threads, [&](int t) {
        const Range r = split_range(elements, t, p.threads);
        int64_t total = 0;  // integers: the order of summation does not matter
        for (int64_t i = r.begin; i < r.end; ++i) total += x[n * elements + i];
        part[size_t(t)] = total;
      });
      int64_t total = 0;
      for (int64_t t : part) total += t;
      const Vec factor = Vec::all(float(double(elements) / double(total)));
      by_storage(p.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        T* y = args.out[0].data<T>() + n * elements;
        const int16_t* from = x + n * elements;
        parallel_ranges(elements, p.threads, grain, [&](Range r) {
          for_vectors(r.begin, r.end, [&](int64_t i, auto k) { put(y + i, get(from + i, k) * factor, k); });
        });
      });
    }
  });
}

std::unique_ptr<Prepared> prepare_add(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    by_storage(p.in[0].dtype, [&](auto zero) { map2<decltype(zero)>(p, args, [](Vec a, Vec b) { return a + b; }); });
  });
}

std::unique_ptr<Prepared> prepare_scale(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const Vec factor = Vec::all(float(p.op.as<ScaleAttrs>().alpha));
    by_storage(p.in[0].dtype,
               [&](auto zero) { map1<decltype(zero), decltype(zero)>(p, args, [=](Vec x) { return factor * x; }); });
  });
}

std::unique_ptr<Prepared> prepare_add_scaled(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const Vec factor = Vec::all(float(p.op.as<ScaleAttrs>().alpha * args.in[2].data<double>()[int(ScaleField::scale)]));
    by_storage(p.in[0].dtype,
               [&](auto zero) { map2<decltype(zero)>(p, args, [=](Vec a, Vec b) { return fma(factor, b, a); }); });
  });
}

/// Sum of f(i, n) over [0, count) through fixed chunks; `partial` holds one double per chunk.
template <class F>
double chunked_sum(int64_t count, int threads, std::byte* workspace, F&& f) {
  double* partial = reinterpret_cast<double*>(workspace);
  const int64_t chunks = ceil_div(count, sum_chunk);
  parallel_ranges(chunks, threads, 1, [&](Range r) {
    for (int64_t k = r.begin; k < r.end; ++k) {
      Vec total = Vec::all(0.0f);
      for_vectors(k * sum_chunk, std::min(count, (k + 1) * sum_chunk),
                  [&](int64_t i, auto n) { total = total + f(i, n); });
      partial[k] = double(sum(total));
    }
  });
  double result = 0;
  for (int64_t k = 0; k < chunks; ++k) result += partial[k];
  return result;
}
inline int64_t partial_bytes(int64_t count) {
  return ceil_div(count, sum_chunk) * int64_t(sizeof(double));
}

std::unique_ptr<Prepared> prepare_sum_squares(const Problem& p) {
  return prepared(
      [p](const KernelArgs& args) {
        by_storage(p.in[0].dtype, [&](auto zero) {
          const auto* x = args.in[0].data<decltype(zero)>();
          const double total = chunked_sum(p.in[0].shape.elements(), p.threads, args.workspace, [&](int64_t i, auto n) {
            const Vec v = get(x + i, n);
            return v * v;
          });
          args.out[0].data<float>()[0] = float(p.op.as<ScaleAttrs>().alpha * total);
        });
      },
      partial_bytes(p.in[0].shape.elements()));
}

Support supports_loss(const Problem& p) {
  return p.in[0].dtype == DType::f32 ? needs_dense(p) : Support::no("is computed in f32, found " + p.in[0].str());
}

std::unique_ptr<Prepared> prepare_loss(const Problem& p) {
  return prepared(
      [p](const KernelArgs& args) {
        const float *a = args.in[0].data<float>(), *b = args.in[1].data<float>();
        const bool squared = p.op.as<LossAttrs>().loss == Loss::mse;
        const int64_t count = p.in[0].shape.elements();
        const double total = chunked_sum(count, p.threads, args.workspace, [&](int64_t i, auto n) {
          const Vec e = get(a + i, n) - get(b + i, n);
          return squared ? e * e : abs(e);
        });
        args.out[0].data<float>()[0] = float(total / double(count));
      },
      partial_bytes(p.in[0].shape.elements()));
}

std::unique_ptr<Prepared> prepare_loss_backward(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const float scale = float(args.in[2].data<double>()[int(ScaleField::scale)] / double(p.in[0].shape.elements()));
    const Vec one = Vec::all(scale), two = Vec::all(2 * scale), none = Vec::all(0.0f), minus = Vec::all(-scale);
    const bool squared = p.op.as<LossAttrs>().loss == Loss::mse;
    Problem pair = p;
    pair.in.resize(2);
    map2<float>(pair, args, [=](Vec a, Vec b) {
      const Vec e = a - b;
      return squared ? two * e : select(greater(e, none), one, select(greater(none, e), minus, e));
    });
  });
}

inline std::vector<int64_t> elements_of(std::span<const TensorDesc> list) {
  std::vector<int64_t> elements;
  for (const TensorDesc& desc : list) elements.push_back(desc.shape.elements());
  return elements;
}

Support supports_all_finite(const Problem& p) {
  for (const TensorDesc& desc : p.in)
    if (!narrow_float(desc.dtype)) return Support::no("reads f32, bf16 and f16, found " + desc.str());
  return needs_dense(p);
}

std::unique_ptr<Prepared> prepare_all_finite(const Problem& p) {
  return prepared([p, elements = elements_of(p.in)](const KernelArgs& args) {
    std::atomic<bool> finite{true};
    parallel_parts(elements, p.threads, sum_chunk, [&](size_t k, Range r) {
      by_storage(p.in[k].dtype, [&](auto zero) {
        const auto* x = args.in[k].data<decltype(zero)>();
        bool bad = false;
        for_vectors(r.begin, r.end, [&](int64_t i, auto n) { bad |= any_not_finite(get(x + i, n)); });
        if (bad) finite.store(false, std::memory_order_relaxed);
      });
    });
    args.out[0].data<float>()[0] = finite.load() ? 1.0f : 0.0f;
  });
}
