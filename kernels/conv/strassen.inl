// 1x1 convolutions, forward and backward_data, with one level of Strassen's product (Strassen 1969; sums formed while
// operands are copied and results added as in Huang et al., "Strassen's Algorithm Reloaded", SC16): seven products of
// halves in place of eight. f32, bf16 and f16 storage, f32 sums.
//
// Positions are split in pairs of tiles (1, 2), input channels in halves A*1, A*2, output channels in halves C*1, C*2:
//
//   M0 = (A11 + A22) (B11 + B22)   to C11 and C22        M4 = (A11 + A12) B22           to -C11 and C12
//   M1 = (A21 + A22) B11           to C21 and -C22       M5 = (A21 - A11) (B11 + B12)   to C22
//   M2 = A11 (B12 - B22)           to C12 and C22        M6 = (A12 - A22) (B21 + B22)   to C11
//   M3 = A22 (B21 - B11)           to C11 and C21
//
// Loops: a unit is a pair of tiles and a range of each half of the output channels. Per chunk of input channels and
// product
//   1. the left factor is formed from the positions' rows and turned into panels [channel][positions of a register
//      block], which one pointer walks (rows side by side took 13 loads per 12 multiply-adds, panels take 8);
//   2. per block of output channels, the register block runs over the panels with packed weights, which stay in the
//      first-level cache, and adds its result to one or two quarters of the unit's sums, asking meanwhile for rows that
//      the next product's factor is formed from;
//   3. the last product of a quarter applies bias and activation and writes rows, past the caches where they are large.
// Sums of weights are formed once per update by a Pack node, 7/4 of the weights' size.
// Pairs of tiles and chunks depend on the problem alone: the same bits for any number of threads.
// Limit: 8/7 of the FMA rate in dense-count GFLOP/s. Of 728 -> 728 channels forming factors takes 4 %, adding and
// writing results 4 %, packing 2 %. Tried without gain: asking for the next block's weights, chunks of 192 and 256,
// tiles of 96.
//
// Error: a result gathers products of other positions and channels than its own, whose terms cancel but for rounding.
// With a = max|x| over the two positions and w = max|weight|, |error| <= 6 C (C/2 + 8) eps a w, three times the bound
// of a direct sum. It is not bounded by the element's own sum|x||w|: a position that is smaller than its partner by a
// factor keeps as many digits less. Exact on small integers.
//
// Refuses other kernels, padding, groups, strided weights, and a stride in backward_data.

constexpr int64_t strassen_tile = 48;            // positions of one of the two tiles: where a unit takes all outputs
constexpr int64_t strassen_long_tile = 72;       // and otherwise, to read weights less often
constexpr int64_t strassen_sums = 4 * 48 * 384;  // values of a unit's four quarters of sums
constexpr int64_t strassen_chunk = 384;          // input channels of either half
constexpr int strassen_products = 7;

/// Quarters are numbered 11, 12, 21, 22 from 0; -1 is none. A factor is a quarter plus sign times another, a result is
/// added with a sign to one or two quarters of the output.
struct StrassenProduct {
  int left, left_other;
  float left_sign;
  int right, right_other;
  float right_sign;
  int to, to_other;
  float to_sign, other_sign;
};
constexpr StrassenProduct strassen_table[strassen_products] = {
    {0, 3, 1, 0, 3, 1, 0, 3, 1, 1},   {2, 3, 1, 0, -1, 0, 2, 3, 1, -1}, {0, -1, 0, 1, 3, -1, 1, 3, 1, 1},
    {3, -1, 0, 2, 0, -1, 0, 2, 1, 1}, {0, 1, 1, 3, -1, 0, 1, 0, 1, -1}, {2, 0, -1, 0, 1, 1, 3, -1, 1, 0},
    {1, 3, -1, 2, 3, 1, 0, -1, 1, 0},
};

/// The product that completes each quarter of the output.
constexpr std::array<int, 4> strassen_last = [] {
  std::array<int, 4> last{};
  for (int q = 0; q < strassen_products; ++q)
    for (int quarter : {strassen_table[q].to, strassen_table[q].to_other})
      if (quarter >= 0) last[size_t(quarter)] = q;
  return last;
}();

struct StrassenPlan {
  explicit StrassenPlan(const Problem& p) : shape(p), positions(shape.rows() * shape.positions) {
    in_half = ceil_div(shape.in, 2);
    out_half = round_up(ceil_div(shape.out, 2), 16);
    blocks = ceil_div(out_half, block_width);
    chunks = ceil_div(in_half, strassen_chunk);
    chunk = round_up(ceil_div(in_half, chunks), 16);
    chunks = ceil_div(in_half, chunk);
    const int64_t longest = 4 * strassen_tile * out_half <= strassen_sums ? strassen_tile : strassen_long_tile;
    pairs = ceil_div(positions, 2 * longest);
    tile = round_up(ceil_div(ceil_div(positions, pairs), 2), block_rows);
    pairs = ceil_div(positions, 2 * tile);
    // Every unit reads its rows again: as few as the cache and the threads allow. The same sums for any number.
    parts = ceil_div(out_half, strassen_sums / (4 * longest));
    while (pairs * parts < 8 * p.threads && pairs * parts % p.threads && parts < blocks) ++parts;
  }
  DirectShape shape;
  int64_t positions, in_half, out_half;
  int64_t blocks;         ///< of output channels in a half
  int64_t chunk, chunks;  ///< of input channels of a half
  int64_t pairs, tile;    ///< of tiles, and positions of a tile at most
  int64_t parts;          ///< of the blocks

  Range block_width_of(int64_t block) const {
    return {block * block_width, std::min((block + 1) * block_width, out_half)};
  }
  int64_t channels(int64_t chunk_index) const { return std::min(chunk, in_half - chunk_index * chunk); }
  /// First float of a block. Packed order: chunk, product, block, input channel, lane.
  int64_t weight_at(int64_t chunk_index, int product, int64_t block) const {
    return chunk_index * chunk * strassen_products * out_half +
           channels(chunk_index) * (product * out_half + block * block_width);
  }
  int64_t packed_floats() const { return strassen_products * in_half * out_half; }
  int64_t part_blocks() const { return ceil_div(blocks, parts); }
  // The thread's memory, in floats.
  /// Panels [block_rows positions][channel][position], and what a whole vector writes past the last.
  int64_t left_floats() const { return tile * chunk + Vec::lanes; }
  int64_t quarter_floats() const { return part_blocks() * tile * block_width; }
  int64_t thread_bytes() const {
    return round_up((left_floats() + 4 * quarter_floats()) * 4, 64) + round_up(4 * tile * 8, 64);
  }
};

/// Element offsets of a unit's positions in x and y, tile after tile; -1 past the last position.
inline void strassen_rows(const StrassenPlan& d, int64_t first, int64_t last, int64_t* x, int64_t* y) {
  const DirectShape& s = d.shape;
  for (int64_t i = 0; i < 2 * d.tile; ++i) {
    const int64_t position = first + i;
    x[i] = y[i] = -1;
    if (position >= last) continue;
    const int64_t row = position / s.positions, column = position % s.positions;
    x[i] = DirectShape::row_offset(s.x, s.source_row(row, 0)) + column * s.phases[0].advance * s.x.stride[3];
    y[i] = DirectShape::row_offset(s.y, row) + column * s.y.stride[3];
  }
}

/// Pieces of input rows of `n` channels, from `at` on.
struct StrassenPiece {
  int64_t at, n;
};
/// Up to lanes channels from c on of a row of a left factor; zeros past the pieces' ends.
template <class T>
inline Vec strassen_sum(const T* x, StrassenPiece a, StrassenPiece b, Vec sign, int64_t c) {
  const auto part = [&](StrassenPiece from) {
    const int64_t left = from.n - c;
    return left >= Vec::lanes ? load(x + from.at + c) : left > 0 ? load(x + from.at + c, left) : Vec::all(0.0f);
  };
  return b.n == 0 ? part(a) : fma(part(b), sign, part(a));
}

/// Where the sums of one register block are added: total (+)= sign * sum. Behind the last product of a quarter bias and
/// activation follow, and `valid` channels of every row that exists go to the output in place of `total`.
template <class T>
struct StrassenTarget {
  float* total;
  Vec sign, slope;
  T* y;  ///< channels of position 0 of the output where sums are complete, or null
  const int64_t* rows;
  const float* bias;
  int64_t valid;
  bool first, streams;
};

template <class T, int vectors>
[[gnu::always_inline]] inline void strassen_add(const Vec (&sum)[block_rows][vectors],
                                                const StrassenTarget<T>& target) {
  const Vec sign = target.sign;
  if (!target.y) {
#pragma GCC unroll 12
    for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 4
      for (int q = 0; q < vectors; ++q) {
        float* to = target.total + (r * vectors + q) * Vec::lanes;
        store(to, target.first ? sign * sum[r][q] : fma(sum[r][q], sign, load(to)));
      }
    return;
  }
#pragma GCC unroll 4
  for (int q = 0; q < vectors; ++q) {
    const int64_t left = target.valid - q * Vec::lanes;
    const auto write = [&](auto n) {
      const Vec bias = target.bias ? get(target.bias + q * Vec::lanes, n) : Vec::all(0.0f);
#pragma GCC unroll 12
      for (int r = 0; r < block_rows; ++r) {
        const Vec value = fma(sum[r][q], sign, load(target.total + (r * vectors + q) * Vec::lanes)) + bias;
        if (target.rows[r] >= 0)
          put_output(target.y + target.rows[r] + q * Vec::lanes, leaky<T>(value, target.slope), n, target.streams);
      }
    };
    if (left >= Vec::lanes)
      write(std::integral_constant<int64_t, 0>{});
    else if (left > 0)
      write(left);
  }
}

/// A panel times a block of packed weights.
template <class T, int vectors>
void strassen_block(const float* a, const float* b, int64_t channels, const StrassenTarget<T>* targets, int64_t count) {
  Vec total[block_rows][vectors];
#pragma GCC unroll 12
  for (int r = 0; r < block_rows; ++r)
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) total[r][q] = Vec::all(0.0f);
  for (int64_t c = 0; c < channels; ++c, a += block_rows, b += vectors * Vec::lanes) {
    Vec weight[vectors];
#pragma GCC unroll 4
    for (int q = 0; q < vectors; ++q) weight[q] = load(b + q * Vec::lanes);
#pragma GCC unroll 12
    for (int r = 0; r < block_rows; ++r) {
      const Vec value = Vec::all(a[r]);
#pragma GCC unroll 4
      for (int q = 0; q < vectors; ++q) total[r][q] = fma(value, weight[q], total[r][q]);
    }
  }
  strassen_add<T, vectors>(total, targets[0]);
  if (count > 1) strassen_add<T, vectors>(total, targets[1]);
}
template <class T, int most = block_vectors>
void run_strassen_block(int64_t vectors, const float* a, const float* b, int64_t channels,
                        const StrassenTarget<T>* targets, int64_t count) {
  if (vectors == most) return strassen_block<T, most>(a, b, channels, targets, count);
  if constexpr (most > 1) run_strassen_block<T, most - 1>(vectors, a, b, channels, targets, count);
}

template <class T>
class StrassenRun {
 public:
  StrassenRun(const Problem& p, const StrassenPlan& d, const KernelArgs& args)
      : d_(d),
        x_(args.in[0].data<T>()),
        y_(args.out[0].data<T>()),
        weights_(reinterpret_cast<const float*>(args.packed[0])),
        bias_(args.in.size() > 2 ? args.in[2].data<float>() : nullptr),
        slope_(Vec::all(d.shape.activates ? static_cast<float>(p.op.as<ConvAttrs>().slope) : 1.0f)),
        streams_(block_width * sizeof(T) % 64 == 0 && streams_lines(d.shape.y, args.out[0], d.shape.out)) {}
  bool streams() const { return streams_; }

  void unit(int64_t index, std::byte* memory) const {
    // Pairs of tiles after each other, so that a part's weights stay in the third-level cache.
    const int64_t pair = index % d_.pairs;
    const Range blocks = split_range(d_.blocks, static_cast<int>(index / d_.pairs), static_cast<int>(d_.parts));
    const Range positions = split_range(d_.positions, static_cast<int>(pair), static_cast<int>(d_.pairs));
    auto* left = reinterpret_cast<float*>(memory);
    float* sums = left + d_.left_floats();
    auto* rows = reinterpret_cast<int64_t*>(memory + round_up((d_.left_floats() + 4 * d_.quarter_floats()) * 4, 64));
    strassen_rows(d_, positions.begin, positions.end, rows, rows + 2 * d_.tile);
    bool written[4] = {};
    for (int64_t step = 0; step < d_.chunks * strassen_products; ++step) {
      const Step now(step);
      form(now, rows, left);
      multiply(now, Step(step + 1), blocks, left, rows, written, sums);
      written[now.product().to] = true;
      if (now.product().to_other >= 0) written[now.product().to_other] = true;
    }
  }

 private:
  struct Step {
    explicit Step(int64_t step) : chunk(step / strassen_products), index(static_cast<int>(step % strassen_products)) {}
    int64_t chunk;
    int index;
    const StrassenProduct& product() const { return strassen_table[index]; }
  };
  /// The channels of a quarter's row that the chunk holds; none where there is no row, or past the last chunk.
  StrassenPiece piece(int quarter, int64_t chunk, const int64_t* rows, int64_t i) const {
    if (quarter < 0) return {0, 0};
    const int64_t row = rows[(quarter / 2) * d_.tile + i];
    if (row < 0) return {0, 0};
    const int64_t first = quarter % 2 * d_.in_half + chunk * d_.chunk,
                  end = std::min(quarter % 2 ? d_.shape.in : d_.in_half, first + d_.channels(chunk));
    return {row + first, std::max<int64_t>(0, end - first)};
  }
  void form(const Step& step, const int64_t* rows, float* left) const {
    const StrassenProduct& product = step.product();
    const int64_t chunk = step.chunk, channels = d_.channels(chunk);
    const Vec sign = Vec::all(product.left_sign);
    for (int64_t first = 0; first < d_.tile; first += block_rows, left += channels * block_rows) {
      StrassenPiece a[block_rows], b[block_rows];
      for (int r = 0; r < block_rows; ++r)
        a[r] = piece(product.left, chunk, rows, first + r), b[r] = piece(product.left_other, chunk, rows, first + r);
      int64_t whole = channels;  // of all pieces
      for (int r = 0; r < block_rows; ++r) whole = std::min({whole, a[r].n, product.left_other < 0 ? whole : b[r].n});
      const auto turned = [&](int64_t c, auto sum) {
        Vec square[Vec::lanes];
#pragma GCC unroll 16
        for (int r = 0; r < Vec::lanes; ++r) square[r] = r < block_rows ? sum(a[r], b[r]) : Vec::all(0.0f);
        turn(square);
        // What a vector writes past a channel's positions, the next writes again.
        for (int64_t i = 0; i < std::min<int64_t>(Vec::lanes, channels - c); ++i)
          store(left + (c + i) * block_rows, square[i]);
      };
      int64_t c = 0;
      if (product.left_other < 0)
        for (; c + Vec::lanes <= whole; c += Vec::lanes)
          turned(c, [&](StrassenPiece p, StrassenPiece) { return load(x_ + p.at + c); });
      else
        for (; c + Vec::lanes <= whole; c += Vec::lanes)
          turned(c, [&](StrassenPiece p, StrassenPiece other) {
            return fma(load(x_ + other.at + c), sign, load(x_ + p.at + c));
          });
      for (; c < channels; c += Vec::lanes)
        turned(c, [&](StrassenPiece p, StrassenPiece other) { return strassen_sum(x_, p, other, sign, c); });
    }
  }
  /// Also asks for what the next step's left factor is formed from.
  void multiply(const Step& step, const Step& next, Range blocks, const float* left, const int64_t* rows,
                const bool (&written)[4], float* sums) const {
    const StrassenProduct& product = step.product();
    const int64_t channels = d_.channels(step.chunk), panels = d_.tile / block_rows;
    const int64_t pieces = next.product().left_other < 0 ? d_.tile : 2 * d_.tile;
    const int quarters[2] = {product.to, product.to_other};
    const float signs[2] = {product.to_sign, product.other_sign};
    const int64_t targets = product.to_other < 0 ? 1 : 2;
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const Range width = d_.block_width_of(block);
      const float* weights = weights_ + d_.weight_at(step.chunk, step.index, block);
      for (int64_t panel = 0; panel < panels; ++panel) {
        StrassenTarget<T> target[2];  // a value per field: the compiler clears whole structures slowly
        for (int64_t t = 0; t < targets; ++t) {
          const int quarter = quarters[t];
          target[t].total = sums + quarter * d_.quarter_floats() + (block - blocks.begin) * d_.tile * block_width +
                            panel * block_rows * width.size();
          target[t].sign = Vec::all(signs[t]), target[t].first = !written[quarter], target[t].y = nullptr;
          if (step.chunk + 1 == d_.chunks && strassen_last[size_t(quarter)] == step.index)
            complete(quarter, width, panel, rows, target[t]);
        }
        const Range asked = split_range(pieces, static_cast<int>((block - blocks.begin) * panels + panel),
                                        static_cast<int>(blocks.size() * panels));
        for (int64_t i = asked.begin; i < asked.end; ++i) {
          const StrassenPiece from =
              piece(i < d_.tile ? next.product().left : next.product().left_other, next.chunk, rows, i % d_.tile);
          for (int64_t c = 0; c < from.n; c += 64 / int64_t{sizeof(T)}) __builtin_prefetch(x_ + from.at + c, 0, 2);
        }
        run_strassen_block(width.size() / Vec::lanes, left + panel * block_rows * channels, weights, channels, target,
                           targets);
      }
    }
  }
  /// Sends a target to the output, whose lines it asks for.
  void complete(int quarter, Range width, int64_t panel, const int64_t* rows, StrassenTarget<T>& target) const {
    const int64_t k = quarter % 2 * d_.out_half + width.begin;
    target.valid = std::clamp<int64_t>(d_.shape.out - k, 0, width.size());
    target.y = y_ + k, target.rows = rows + (2 + quarter / 2) * d_.tile + panel * block_rows;
    target.bias = bias_ ? bias_ + k : nullptr, target.slope = slope_, target.streams = streams_;
    if (streams_) return;
    for (int r = 0; r < block_rows; ++r)
      for (int64_t c = 0; c < target.valid && target.rows[r] >= 0; c += 64 / int64_t{sizeof(T)})
        __builtin_prefetch(target.y + target.rows[r] + c, 1);
  }

  const StrassenPlan& d_;
  const T* x_;
  T* y_;
  const float *weights_, *bias_;
  Vec slope_;
  bool streams_;
};

/// A square of the weight (K x C), a vector of outputs per channel, of which `channels` and `outputs` exist; zeros for
/// others. `outputs_last`: outputs lie side by side and channels `pitch` apart; otherwise the other way round.
template <class T>
inline void strassen_square(const T* from, bool outputs_last, int64_t pitch, int64_t channels, int64_t outputs,
                            Vec (&square)[Vec::lanes]) {
  const int64_t rows = outputs_last ? channels : outputs, columns = outputs_last ? outputs : channels;
  if (rows >= Vec::lanes && columns >= Vec::lanes) {
#pragma GCC unroll 16
    for (int i = 0; i < Vec::lanes; ++i) square[i] = load(from + i * pitch);
  } else {
    for (int i = 0; i < Vec::lanes; ++i)
      square[i] =
          i < rows && columns > 0 ? load(from + i * pitch, std::min<int64_t>(columns, Vec::lanes)) : Vec::all(0.0f);
  }
  if (!outputs_last) turn(square);
}

/// Sums of quarters of the weights in the order of the plan.
template <class T>
void strassen_pack(const StrassenPlan& d, const Tensor& weight, float* to, int threads) {
  const DirectShape& s = d.shape;
  const T* from = weight.data<T>();
  const int64_t in_step = s.forward ? 1 : s.out, out_step = s.forward ? s.in : 1;
  parallel_ranges(d.chunks * d.blocks, threads, 1, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t chunk = i / d.blocks, block = i % d.blocks, channels = d.channels(chunk);
      const Range width = d.block_width_of(block);
      for (int64_t c = 0; c < channels; c += Vec::lanes)
        for (int64_t k = 0; k < width.size(); k += Vec::lanes) {
          Vec quarter[4][Vec::lanes];
          for (int at = 0; at < 4; ++at) {
            const int64_t in = at / 2 * d.in_half + chunk * d.chunk + c, in_end = at / 2 ? s.in : d.in_half,
                          out = at % 2 * d.out_half + width.begin + k;
            strassen_square(from + in * in_step + out * out_step, !s.forward, s.forward ? out_step : in_step,
                            in_end - in, s.out - out, quarter[at]);
          }
          for (int q = 0; q < strassen_products; ++q) {
            const StrassenProduct& product = strassen_table[q];
            const Vec sign = Vec::all(product.right_sign);
            float* square = to + d.weight_at(chunk, q, block) + c * width.size() + k;
            for (int64_t e = 0; e < std::min<int64_t>(Vec::lanes, channels - c); ++e)
              store(square + e * width.size(),
                    product.right_other < 0 ? quarter[product.right][e]
                                            : fma(sign, quarter[product.right_other][e], quarter[product.right][e]));
          }
        }
    }
  });
}

class PreparedStrassen final : public Prepared {
 public:
  explicit PreparedStrassen(const Problem& p) : problem_(p), plan_(p) {}
  int64_t workspace_bytes() const override { return problem_.threads * plan_.thread_bytes(); }
  std::string detail() const override {
    return std::to_string(plan_.pairs) + " pairs of " + std::to_string(plan_.tile) + " positions, " +
           std::to_string(plan_.chunks) + " chunks";
  }
  std::vector<PackRequest> packed_weights() const override {
    return {{1, std::string("strassen") + (plan_.shape.forward ? " forward" : " backward"), plan_.packed_floats() * 4,
             [plan = plan_, threads = problem_.threads](const Tensor& weight, std::byte* packed) {
               by_storage(weight.dtype(), [&](auto zero) {
                 strassen_pack<decltype(zero)>(plan, weight, reinterpret_cast<float*>(packed), threads);
               });
             }}};
  }
  void run(const KernelArgs& args) const override {
    by_storage(problem_.in[0].dtype, [&](auto zero) {
      const StrassenRun<decltype(zero)> run(problem_, plan_, args);
      parallel_threads(problem_.threads, [&](int thread) {
        const Range mine = split_range(plan_.pairs * plan_.parts, thread, problem_.threads);
        for (int64_t unit = mine.begin; unit < mine.end; ++unit)
          run.unit(unit, args.workspace + thread * plan_.thread_bytes());
        if (run.streams()) fence();
      });
    });
  }

 private:
  Problem problem_;
  StrassenPlan plan_;
};

Support supports_strassen(const Problem& p) {
  if (!narrow_float(p.in[0].dtype)) return Support::no("handles f32, bf16 and f16, found " + p.in[0].str());
  if (!p.in[1].dense()) return Support::no("needs dense weights, found " + p.in[1].str());
  const auto& a = p.op.as<ConvAttrs>();
  const Shape& w = p.in[1].shape;
  if (w.d() * w.h() * w.w() != 1 || a.pad_low != Int3{} || a.pad_high != Int3{})
    return Support::no("needs a 1x1 kernel without padding");
  if (a.groups != 1) return Support::no("needs one group");
  if (p.op.kind == OpKind::conv_backward_data && a.stride != Int3{1, 1, 1})
    return Support::no("takes a stride in forward passes only");
  return Support::yes();
}

std::unique_ptr<Prepared> prepare_strassen(const Problem& p) {
  return std::make_unique<PreparedStrassen>(p);
}
