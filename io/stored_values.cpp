#include "io/stored_values.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "io/decompressor.h"
#include "io/file.h"

namespace convoy {
namespace {

/// The values that a piece and the box share: runs that are neighbours on both sides.
class Overlap {
 public:
  Overlap(std::span<const int64_t> piece_first, std::span<const int64_t> piece, std::span<const int64_t> start,
          std::span<const int64_t> count)
      : piece_(piece), count_(count) {
    for (size_t i = 0; i < piece.size(); ++i) {
      const int64_t from = std::max(piece_first[i], start[i]),
                    to = std::min(piece_first[i] + piece[i], start[i] + count[i]);
      in_piece_.push_back(from - piece_first[i]), in_box_.push_back(from - start[i]), extent_.push_back(to - from);
    }
    // Dimensions behind `run_` are covered on both sides.
    run_ = piece.size() - 1;
    while (run_ > 0 && extent_[run_] == piece[run_] && extent_[run_] == count[run_]) --run_;
  }
  /// Calls f(element of the piece, element of the box, elements) for every run.
  template <class F>
  void for_runs(F&& f) const {
    int64_t length = 1;
    for (size_t i = run_; i < extent_.size(); ++i) length *= extent_[i];
    if (std::any_of(extent_.begin(), extent_.end(), [](int64_t e) { return e <= 0; })) return;
    std::vector<int64_t> at(run_, 0);
    while (true) {
      f(element(at, in_piece_, piece_), element(at, in_box_, count_), length);
      size_t axis = run_;
      while (axis-- > 0 && ++at[axis] == extent_[axis]) at[axis] = 0;
      if (axis == SIZE_MAX) return;
    }
  }

 private:
  static int64_t element(const std::vector<int64_t>& at, const std::vector<int64_t>& first,
                         std::span<const int64_t> extents) {
    int64_t index = 0;
    for (size_t i = 0; i < extents.size(); ++i) index = index * extents[i] + first[i] + (i < at.size() ? at[i] : 0);
    return index;
  }
  std::span<const int64_t> piece_, count_;
  std::vector<int64_t> in_piece_, in_box_, extent_;
  size_t run_ = 0;
};

void read_bytes(int file, const std::string& what, int64_t offset, std::span<std::byte> out) {
  if (read_at(file, offset, out, what) < out.size())
    fail_data(what + ": cannot read " + std::to_string(out.size()) + " bytes at " + std::to_string(offset) +
              ": the file is truncated");
}

/// Reads plain runs that come in the order of the file. Small ones with small gaps between them share a call: what the
/// gaps hold costs less than a call for each run.
class RunReader {
 public:
  RunReader(int file, const std::string& what, std::span<std::byte> out) : file_(file), what_(what), out_(out) {}
  /// A run of `bytes` at `offset` of the file and byte `to` of the output: is read by the next read() at the latest.
  void add(int64_t offset, size_t to, size_t bytes) {
    const int64_t end = offset + static_cast<int64_t>(bytes);
    if (!runs_.empty() && (offset - end_ > most_gap || end - runs_[0].offset > most_span || runs_.size() == most_runs))
      read();
    runs_.push_back({offset, to, bytes}), end_ = end;
  }
  void read() {
    if (runs_.empty()) return;
    const int64_t first = runs_[0].offset;
    if (runs_.size() == 1) {
      read_bytes(file_, what_, first, out_.subspan(runs_[0].to, runs_[0].bytes));
    } else {
      span_.resize(std::max(span_.size(), static_cast<size_t>(end_ - first)));
      read_bytes(file_, what_, first, std::span(span_).first(static_cast<size_t>(end_ - first)));
      for (const Run& run : runs_) std::copy_n(span_.data() + (run.offset - first), run.bytes, out_.data() + run.to);
    }
    runs_.clear();
  }

 private:
  struct Run {
    int64_t offset;
    size_t to, bytes;
  };
  // What a thread holds stays small, however large the box is.
  static constexpr int64_t most_gap = 64 << 10, most_span = 4 << 20;
  static constexpr size_t most_runs = 1 << 16;
  int file_;
  const std::string& what_;
  std::span<std::byte> out_;
  std::vector<Run> runs_;
  int64_t end_ = 0;  ///< of the last run
  std::vector<std::byte> span_;
};

void inflate(const Decompressor& decompressor, const std::string& what, std::span<const std::byte> from,
             std::span<std::byte> to) {
  size_t found = 0;
  if (libdeflate_zlib_decompress(decompressor.get(), from.data(), from.size(), to.data(), to.size(), &found) !=
          LIBDEFLATE_SUCCESS ||
      found != to.size())
    fail_data(what + ": a chunk does not inflate to its " + std::to_string(to.size()) + " bytes: truncated or damaged");
}

/// Shuffled values are planes of first bytes, of second bytes and so on.
template <size_t bytes>
void gather_planes(const std::byte* from, std::byte* to, int64_t values) {
  for (int64_t i = 0; i < values; ++i)
    for (size_t b = 0; b < bytes; ++b)
      to[static_cast<size_t>(i) * bytes + b] = from[b * static_cast<size_t>(values) + static_cast<size_t>(i)];
}
void unshuffle(std::span<const std::byte> from, std::span<std::byte> to, int64_t element) {
  const auto values = static_cast<int64_t>(from.size()) / element;
  if (element == 2) return gather_planes<2>(from.data(), to.data(), values);
  if (element == 4) return gather_planes<4>(from.data(), to.data(), values);
  if (element == 8) return gather_planes<8>(from.data(), to.data(), values);
  std::copy(from.begin(), from.end(), to.begin());  // single bytes
}

int64_t product(std::span<const int64_t> extents) {
  int64_t all = 1;
  for (int64_t e : extents) all *= e;
  return all;
}

}  // namespace

void read_stored(int file, const std::string& what, const StoredValues& stored, std::span<const int64_t> start,
                 std::span<const int64_t> count, std::span<std::byte> out) {
  const auto element = static_cast<size_t>(stored.element);
  const size_t whole = static_cast<size_t>(product(stored.piece)) * element;
  const bool inflates =
      std::any_of(stored.pieces.begin(), stored.pieces.end(), [](const auto& p) { return p.deflated; });
  const Decompressor decompressor =
      inflates ? make_decompressor() : Decompressor(nullptr, libdeflate_free_decompressor);
  RunReader plain(file, what, out);
  std::vector<std::byte> packed, values, planes;
  for (const StoredValues::Piece& piece : stored.pieces) {
    const Overlap overlap(piece.first, stored.piece, start, count);
    if (!piece.deflated && !piece.shuffled) {
      overlap.for_runs([&](int64_t from, int64_t to, int64_t length) {
        plain.add(piece.offset + from * stored.element, static_cast<size_t>(to) * element,
                  static_cast<size_t>(length) * element);
      });
      plain.read();
      continue;
    }
    packed.resize(static_cast<size_t>(piece.bytes));
    read_bytes(file, what, piece.offset, packed);
    if (piece.deflated) {
      values.resize(whole);
      inflate(decompressor, what, packed, values);
    } else {
      values.swap(packed);
    }
    if (piece.shuffled) {
      planes.resize(whole);
      unshuffle(values, planes, stored.element);
      values.swap(planes);
    }
    overlap.for_runs([&](int64_t from, int64_t to, int64_t length) {
      std::copy_n(values.data() + static_cast<size_t>(from) * element, static_cast<size_t>(length) * element,
                  out.data() + static_cast<size_t>(to) * element);
    });
  }
}

}  // namespace convoy
