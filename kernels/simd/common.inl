// Pieces shared by the vector kernels of every instruction set. Included inside the namespace of one of them.

/// Sanitizers instrument every unrolled access: their builds stay short with smaller blocks, which run the same loops.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// Calls f(i, n) for the whole vectors of [begin, end), n a compile-time 0, then once for the n that are left.
template <class F>
inline void for_vectors(int64_t begin, int64_t end, F&& f) {
  int64_t i = begin;
  for (; i + Vec::lanes <= end; i += Vec::lanes) f(i, std::integral_constant<int64_t, 0>{});
  if (i < end) f(i, end - i);
}
/// Calls f(begin, size) for blocks of nearly equal size, `most` at most: no tail of a single one.
template <class F>
inline void for_even_blocks(int64_t total, int64_t most, F&& f) {
  const int64_t blocks = ceil_div(total, most);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = total * i / blocks, end = total * (i + 1) / blocks;
    f(begin, end - begin);
  }
}
/// The first of [1, most] with the least time(count).
template <class Time>
inline int64_t cheapest(int64_t most, Time&& time) {
  int64_t best = 1;
  for (int64_t count = 2; count <= most; ++count)
    if (time(count) < time(best)) best = count;
  return best;
}
/// Into how many parts to cut each of `whole` tasks so that they make about `wanted`, whatever the number of threads:
/// of the two nearest numbers the one that leaves less idle on 16, 32 and 64.
inline int64_t even_parts(int64_t whole, int64_t wanted) {
  const int64_t fewer = std::max<int64_t>(1, wanted / whole), more = ceil_div(wanted, whole);
  const auto time = [&](int64_t parts) {
    const int64_t tasks = whole * parts;
    double sum = 0;
    for (int64_t threads : {16, 32, 64}) sum += double(ceil_div(tasks, threads) * threads) / double(tasks);
    return sum;
  };
  return time(more) < time(fewer) ? more : fewer;
}
/// `chunk`, or a smaller multiple of `grain` where that saves a tenth of time(chunk).
template <class Time>
inline int64_t smaller_chunk(int64_t chunk, int64_t grain, Time&& time) {
  int64_t best = chunk;
  for (int64_t fewer = (chunk - 1) / grain * grain; fewer > 0; fewer -= grain)
    if (10 * time(fewer) < 9 * time(best)) best = fewer;
  return best;
}
/// Whole-vector and tail forms under one name: the tail count is a compile-time 0 for whole vectors.
template <class T>
inline Vec get(const T* p, std::integral_constant<int64_t, 0>) {
  return load(p);
}
template <class T>
inline Vec get(const T* p, int64_t n) {
  return load(p, n);
}
template <class T>
inline void put(T* p, Vec a, std::integral_constant<int64_t, 0>) {
  store(p, a);
}
template <class T>
inline void put(T* p, Vec a, int64_t n) {
  store(p, a, n);
}

inline Ints get_bytes(const uint8_t* p, std::integral_constant<int64_t, 0>) { return load_bytes(p); }
inline Ints get_bytes(const uint8_t* p, int64_t n) { return load_bytes(p, n); }
inline void put_bytes(uint8_t* p, Ints a, std::integral_constant<int64_t, 0>) { store_bytes(p, a); }
inline void put_bytes(uint8_t* p, Ints a, int64_t n) { store_bytes(p, a, n); }

/// The gradient ahead of leaky_relu, from the one behind it and its output, whose sign is the input's.
inline Vec leaky_gradient(Vec g, Vec y, Vec slope) {
  return g * select(greater(y, Vec::all(0.0f)), Vec::all(1.0f), slope);
}

/// Asks for the cache lines of `bytes` from p, which may lie anywhere.
inline void prefetch(const void* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const std::byte*>(p) + i);
}

/// Whether whole cache lines of a large output can be written past the caches; `run` channels at a time.
inline bool streams_lines(const TensorDesc& desc, const Tensor& y, int64_t run) {
  const int64_t size = size_of(y.dtype()), line = 64 / size;
  const bool lines = run % line == 0 && std::all_of(desc.stride.begin(), desc.stride.end(),
                                                    [line](int64_t step) { return step % line == 0; });
  return lines && desc.shape.elements() * size >= streamed_output_bytes &&
         reinterpret_cast<uintptr_t>(y.bytes()) % 64 == 0;
}
/// The same where a vector is a line.
inline bool streams_output(const TensorDesc& desc, const Tensor& y, int64_t run) {
  return Vec::lanes * size_of(y.dtype()) == 64 && streams_lines(desc, y, run);
}

/// Whole vectors past the caches where the output streams; fence() afterwards. Who writes the vectors of a line one
/// after the other asks streams_lines, everybody else streams_output.
template <class T, class N>
inline void put_output(T* p, Vec a, N n, bool streams) {
  if constexpr (!std::is_same_v<N, int64_t>)
    if (streams) return store_line(p, a);
  put(p, a, n);
}

inline bool narrow_float(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::f16; }

/// dispatch over the three storage types these kernels know.
template <class F>
inline void by_storage(DType t, F&& f) {
  if (t == DType::f32)
    f(float{});
  else if (t == DType::bf16)
    f(bf16{});
  else
    f(f16{});
}

inline Support needs_narrow_float(const Problem& p) {
  return narrow_float(p.in[0].dtype) ? Support::yes()
                                     : Support::no("handles f32, bf16 and f16, found " + p.in[0].str());
}

inline Support needs_dense(const Problem& p) {
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& desc : *list)
      if (!desc.dense()) return Support::no("needs dense tensors, found " + desc.str());
  return Support::yes();
}

template <class F>
std::unique_ptr<Prepared> prepared(F&& run, int64_t workspace = 0) {
  return std::make_unique<PreparedFunction>(std::forward<F>(run), workspace);
}
