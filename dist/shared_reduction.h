// All-reduce through memory that the ranks of a node share: every rank writes what others need into its own area, adds
// its part of everybody's in rank order, and publishes the sum. Works in pieces that fit the caches. An area holds
// several of them in turn: ranks that wait keep close to each other, for the caches; a rank that comes by between two
// computations does all that the area has room for, since it does not come by often.
// Data that lies in a window, memory that all of them map, is not copied into areas: everybody reads it where it is.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/communicator.h"
#include "dist/schedule.h"

namespace convoy {

class SharedReduction {
 public:
  enum class Part : uint8_t { all_reduce, reduce_scatter, all_gather };

  /// `areas` of the ranks that take part, in rank order, each of `bytes` bytes, zero before their first use.
  SharedReduction(std::vector<std::byte*> areas, int64_t bytes, int self);

  /// Bytes of an area in which a slot holds some of every rank's part: pieces are multiples of 16 elements, of 8 bytes
  /// at most.
  static int64_t least_bytes(int ranks) { return 4096 + slots * 16 * 8 * int64_t{ranks}; }
  void set_window(const SharedWindow& window) { window_ = window; }
  /// Element ranges are those of `part_of(range, rank, ranks)`. One at a time.
  void start(Part part, std::byte* data, DType type, Piece range, double scale, int threads);
  /// Goes on as far as others allow; true when finished. Writes at most `ahead` pieces that it has not collected yet,
  /// or as many as there is room for.
  bool advance(int64_t ahead = INT64_MAX);
  /// Places among the ranks that take part of those that have not done their share of the piece that is waited for.
  std::vector<int> missing() const;

 private:
  struct Flags;
  static constexpr int64_t slots = 16;  ///< pieces that an area holds
  Flags& flags(size_t rank) const;
  std::byte* slot(size_t rank, int64_t piece) const;
  /// A rank's data, in the window that was set when the reduction began: a run that fails takes its away under those
  /// that a thread drives on.
  std::byte* data_of(size_t rank) const {
    return data_ + (static_cast<int64_t>(rank) - static_cast<int64_t>(self_)) * stride_;
  }
  Piece chunk(size_t rank, int64_t piece) const;
  int64_t pieces() const;
  /// Whether every rank is done with its part of `piece`.
  bool all_did(std::atomic<int64_t> Flags::*what, int64_t piece) const;
  bool next_write(int64_t ahead);
  bool next_sum();
  bool next_collection();
  void write(int64_t piece);
  template <class T>
  void add_up(int64_t piece);
  void collect(int64_t piece);

  std::vector<std::byte*> areas_;
  int64_t slot_bytes_;
  size_t self_;
  SharedWindow window_;
  bool in_window_ = false;
  int64_t stride_ = 0;  ///< bytes from a rank's data to the next one's, in a window
  Part part_ = Part::all_reduce;
  std::byte* data_ = nullptr;
  DType type_ = DType::f32;
  Piece range_;
  double scale_ = 1;
  int threads_ = 1;
  int64_t sequence_ = 0;                 ///< pieces of all reductions before this one
  std::array<int64_t, slots> filled_{};  ///< what `collected` must reach before a slot of this rank is free
  int64_t written_ = 0, added_ = 0, collected_ = 0;
};

}  // namespace convoy
