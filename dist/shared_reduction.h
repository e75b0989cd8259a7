// All-reduce through memory that the ranks of a node share: every rank writes what others need into its own area, adds
// its part of everybody's in rank order, and publishes the sum. Works in pieces that fit the caches; three pieces of an
// area take turns, so that a rank may run one piece ahead of the slowest reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "dist/schedule.h"

namespace convoy {

class SharedReduction {
 public:
  enum class Part : uint8_t { all_reduce, reduce_scatter, all_gather };

  /// `areas` of the ranks that take part, in rank order, each of `bytes` bytes, zero before their first use.
  SharedReduction(std::vector<std::byte*> areas, int64_t bytes, int self);

  /// Element ranges are those of `part_of(range, rank, ranks)`. One at a time.
  void start(Part part, std::byte* data, DType type, Piece range, double scale, int threads);
  /// Goes on as far as others allow; true when finished.
  bool advance();
  /// Places among the ranks that take part of those that have not done their share of the piece that is waited for.
  std::vector<int> missing() const;

 private:
  struct Flags;
  Flags& flags(size_t rank) const;
  std::byte* slot(size_t rank, int64_t piece) const;
  Piece chunk(size_t rank, int64_t piece) const;
  int64_t pieces() const;
  bool all_wrote(int64_t piece) const;
  bool all_added(int64_t piece) const;
  void write(int64_t piece);
  template <class T>
  void add_up(int64_t piece);
  void collect(int64_t piece);

  std::vector<std::byte*> areas_;
  int64_t slot_bytes_;
  size_t self_;
  Part part_ = Part::all_reduce;
  std::byte* data_ = nullptr;
  DType type_ = DType::f32;
  Piece range_;
  double scale_ = 1;
  int threads_ = 1;
  int64_t sequence_ = 0;  ///< pieces of all reductions before this one
  int64_t written_ = 0, added_ = 0, collected_ = 0;
};

}  // namespace convoy
