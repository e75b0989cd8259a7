// Weights in the order in which the register blocks of a direct convolution (direct_plan.inl) read them.

/// Where a block of outputs is packed: its first lane, lanes with and without fillings.
template <class Word>
struct PackedBlock {
  int64_t first, valid, width;
  Word* at;
};

/// The words of one or two channels (`pair` apart) of a weight for lanes [first, last) of a block, whose outputs are
/// `step` apart; a missing second channel is zero, lanes without an output are left alone.
template <class Engine, class T, class Step>
void pack_words(const T* from, int64_t pair, bool both, Step step, int64_t first, int64_t last,
                const PackedBlock<typename Engine::Word>& block, typename Engine::Word* to) {
  if (!Engine::weaves) last = std::min(last, block.valid);
  for (int64_t f = first; f < last; ++f) {
    const int64_t output = Engine::output_of(f, block.width);
    if (Engine::weaves && output >= block.valid) continue;
    to[f] = Engine::word(from[output * step], Engine::pair > 1 && both ? from[output * step + pair] : T{});
  }
}

/// The words of a block for weights whose channels lie side by side: blocks of words are turned in registers, and those
/// `ahead` asked for meanwhile, pieces of rows being nothing that a prefetcher recognises.
template <class Engine, class T>
void pack_turned(const T* from, int64_t per_k, int64_t channels, int64_t ahead,
                 const PackedBlock<typename Engine::Word>& block, typename Engine::Word* to) {
  constexpr int64_t run = Vec::lanes * Engine::pair;
  for (int64_t q = 0; q < block.width; q += Vec::lanes) {
    const auto row = [&](int64_t i) { return from + Engine::output_of(q + i, block.width) * per_k; };
    const bool whole = Engine::output_of(q + Vec::lanes - 1, block.width) < block.valid;
    for (int64_t c = 0; c < channels; c += run) {
      if (whole && channels - c >= run) {
        for (int64_t i = 0; i < Vec::lanes; ++i) __builtin_prefetch(row(i) + c + ahead);
        Vec words[Vec::lanes];
#pragma GCC unroll 16
        for (int64_t i = 0; i < Vec::lanes; ++i) words[i] = Engine::words(row(i) + c);
        turn(words);
#pragma GCC unroll 16
        for (int64_t i = 0; i < Vec::lanes; ++i)
          store(reinterpret_cast<float*>(to + (c / Engine::pair + i) * block.width + q), words[i]);
        continue;
      }
      for (int64_t e = c; e < std::min(c + run, channels); e += Engine::pair)
        pack_words<Engine>(from + e, 1, e + 1 < channels, per_k, q, q + Vec::lanes, block,
                           to + e / Engine::pair * block.width);
    }
  }
}

/// The words of backward_data, whose results are the weight's C, for some blocks side by side: pieces of rows of a
/// cache line and more, since rows lie pages apart.
template <class Engine, class T>
void pack_side_by_side(const T* from, int64_t per_k, int64_t channels, int64_t offset,
                       std::span<const PackedBlock<typename Engine::Word>> blocks) {
  for (int64_t c = 0; c < channels; c += Engine::pair)
    for (const auto& block : blocks) {
      const T* row = from + c * per_k + block.first;
      auto* word = block.at + (offset + c / Engine::pair) * block.width;
      int64_t done = 0;  // lanes
      if constexpr (Engine::pair > 1)
        if (c + 1 < channels) {
          if constexpr (Engine::weaves)
            for (; done + 2 * Vec::lanes <= block.valid; done += 2 * Vec::lanes) {
              for (int64_t ahead : {16, 17}) prefetch(row + ahead * per_k + done, 64);
              Engine::store_woven_pairs(row + done, row + per_k + done, word + done);
            }
          for (; done + Vec::lanes <= block.valid && (!Engine::weaves || done + Vec::lanes == block.width);
               done += Vec::lanes) {
            for (int64_t ahead : {16, 17}) __builtin_prefetch(row + ahead * per_k + done);
            Engine::store_pairs(row + done, row + per_k + done, word + done);
          }
        }
      pack_words<Engine>(row, per_k, c + 1 < channels, std::integral_constant<int64_t, 1>{}, done, block.width, block,
                         word);
    }
}

/// Packs K, KD, KH, KW, C/groups into the order in which DirectUnit reads them. A piece is a row tap of a chunk for one
/// block of outputs or four, or a share of its channels where there are few pieces for the threads.
template <class T, class Engine>
void direct_pack(const DirectPlan& d, const Tensor& weight, typename Engine::Word* to, int threads) {
  using Block = PackedBlock<typename Engine::Word>;
  const DirectShape& s = d.shape;
  const T* from = weight.data<T>();
  const Shape& w = weight.shape();
  const int64_t blocks = ceil_div(d.padded_out, d.block), per_tap = w.c(), per_k = s.row_taps() * s.kernel[2] * per_tap;
  const int64_t together = s.forward ? 1 : 4, runs = ceil_div(blocks, together);
  constexpr int64_t grain = Vec::lanes * Engine::pair;
  const int64_t larger = s.groups * runs * d.chunks * s.row_taps(),
                shares = std::clamp<int64_t>(ceil_div(4 * threads, larger), 1, ceil_div(d.chunk, grain));
  parallel_ranges(larger * shares, threads, 1, [&](Range range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t t = i / shares % s.row_taps(), chunk = i / (shares * s.row_taps()) % d.chunks,
                    run = i / (shares * s.row_taps() * d.chunks) % runs,
                    group = i / (shares * s.row_taps() * d.chunks * runs);
      const int64_t chunk_channels = std::min(d.chunk, s.in - chunk * d.chunk), words = d.words_of(chunk_channels);
      const Range share = split_range(chunk_channels, static_cast<int>(i % shares), static_cast<int>(shares), grain);
      if (share.size() == 0) continue;
      const int64_t c_first = chunk * d.chunk + share.begin, word = share.begin / Engine::pair;
      std::array<Block, 4> list;
      size_t count = 0;
      for (int64_t k = run * together * d.block; k < std::min((run + 1) * together * d.block, d.padded_out);
           k += d.block) {
        const int64_t width = std::min(d.block, d.padded_out - k);
        list[count++] = {k, std::min(width, s.out - k), width, to + d.block_words(group, k, width, chunk)};
      }
      int64_t offset = t * d.tap_words(words);
      for (const ColumnPhase& phase : s.phases) {
        const int64_t behind = offset + d.phase_words(phase, words);
        for (size_t tap = 0; tap < phase.taps.size(); ++tap) {
          const int64_t step = phase.contiguous ? words : d.padded_run(words),
                        first = offset + static_cast<int64_t>(tap) * step, here = first + word,
                        next = tap + 1 < phase.taps.size() ? first + step : behind,
                        end = share.end < chunk_channels ? here + share.size() / Engine::pair : next;
          // Lanes past the last channel and the filling of runs.
          for (const Block& block : std::span(list).first(count))
            if (block.valid < block.width || d.run_multiple > 1)
              std::memset(block.at + here * block.width, 0, static_cast<size_t>((end - here) * block.width * 4));
          const T* taps = from + (t * s.kernel[2] + phase.taps[tap].weight) * per_tap;
          if (s.forward) {  // the sum runs over the weight's C, results are its K
            const Block& block = list[0];
            pack_turned<Engine>(taps + (group * s.out + block.first) * per_k + c_first, per_k, share.size(), per_tap,
                                block, block.at + here * block.width);
          } else {
            pack_side_by_side<Engine>(taps + (group * s.in + c_first) * per_k, per_k, share.size(), here,
                                      std::span<const Block>(list).first(count));
          }
        }
        offset = behind;
      }
    }
  });
}

/// Asks for the weights in the order of a plan.
template <class Engine>
PackRequest direct_pack_request(const Problem& p, const DirectPlan& d) {
  // The order depends on the pass, the blocking and the kept taps.
  std::string form = "direct" + std::to_string(d.block);
  form += Engine::pair > 1 ? " pairs" : "";
  form += Engine::weaves ? " woven" : "";
  form += d.run_multiple > 1 ? " tiles" : "";
  form += d.shape.forward ? " forward " : " backward ";
  form += to_text(without_addend(p).op);
  form.append(" ").append(std::to_string(d.chunk)).append(d.shape.kept_taps());
  return {weight_input(p), form, d.shape.groups * d.group_words() * 4,
          [plan = d, threads = p.threads](const Tensor& weight, std::byte* packed) {
            Engine::by_type(weight.dtype(), [&](auto zero) {
              direct_pack<decltype(zero), Engine>(plan, weight, reinterpret_cast<typename Engine::Word*>(packed),
                                                  threads);
            });
          }};
}
