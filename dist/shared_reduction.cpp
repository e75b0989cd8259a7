#include "dist/shared_reduction.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "core/round_up.h"
#include "dist/add_up.h"

namespace convoy {
namespace {

constexpr int64_t flag_bytes = 256;

}  // namespace

/// How many pieces a rank is done with, since the area was made. Each on its own cache line.
struct SharedReduction::Flags {
  alignas(64) std::atomic<int64_t> written;
  alignas(64) std::atomic<int64_t> added;
  alignas(64) std::atomic<int64_t> collected;
  alignas(64) std::array<std::atomic<uint8_t>, slots> places;  ///< slots of the last pieces
};

SharedReduction::SharedReduction(std::vector<std::byte*> areas, int64_t bytes, int self)
    : areas_(std::move(areas)), slot_bytes_((bytes - flag_bytes) / slots / 64 * 64), self_(static_cast<size_t>(self)) {
  static_assert(sizeof(Flags) == flag_bytes && std::atomic<int64_t>::is_always_lock_free);
}

SharedReduction::Flags& SharedReduction::flags(size_t rank) const {
  return *std::launder(reinterpret_cast<Flags*>(areas_[rank]));
}

/// Where a piece that was written lies.
std::byte* SharedReduction::slot(size_t rank, int64_t piece) const {
  const uint8_t place = flags(rank).places[static_cast<size_t>((sequence_ + piece) % slots)];
  return areas_[rank] + flag_bytes + place * slot_bytes_;
}

/// What of a piece belongs to a rank: the same stretch of every rank's part.
Piece SharedReduction::chunk(size_t rank, int64_t piece) const {
  const auto ranks = static_cast<int>(areas_.size());
  const Piece part = part_of(range_, static_cast<int>(rank), ranks);
  const int64_t length = slot_bytes_ / size_of(type_) / ranks / 16 * 16;
  const int64_t begin = std::min(part.count, piece * length);
  return {part.begin + begin, std::min(length, part.count - begin)};
}

int64_t SharedReduction::pieces() const {
  const auto ranks = static_cast<int>(areas_.size());
  const int64_t length = slot_bytes_ / size_of(type_) / ranks / 16 * 16, longest = part_of(range_, 0, ranks).count;
  return ceil_div(longest, length);
}

void SharedReduction::start(Part part, std::byte* data, DType type, Piece range, double scale, int threads) {
  part_ = part, data_ = data, type_ = type, range_ = range, scale_ = scale, threads_ = threads;
  in_window_ = window_.holds(data), stride_ = window_.stride;
  written_ = added_ = collected_ = 0;
}

bool SharedReduction::all_did(std::atomic<int64_t> Flags::*what, int64_t piece) const {
  for (size_t r = 0; r < areas_.size(); ++r)
    if ((flags(r).*what).load(std::memory_order_acquire) <= sequence_ + piece) return false;
  return true;
}

/// Layout of a slot: the chunks of all ranks one behind the other.
void SharedReduction::write(int64_t piece) {
  const int64_t size = size_of(type_);
  std::byte* to = slot(self_, piece);
  for (size_t r = 0; r < areas_.size(); ++r) {
    const Piece c = chunk(r, piece);
    const bool wanted = part_ == Part::all_gather ? r == self_ : r != self_;
    if (wanted) std::memcpy(to, data_ + c.begin * size, static_cast<size_t>(c.count * size));
    to += c.count * size;
  }
  flags(self_).written.store(sequence_ + piece + 1, std::memory_order_release);
}

template <class T>
void SharedReduction::add_up(int64_t piece) {
  const Piece mine = chunk(self_, piece);
  int64_t before = 0;
  for (size_t r = 0; r < self_; ++r) before += chunk(r, piece).count;
  const auto share_of = [&](size_t r) {
    return in_window_ ? reinterpret_cast<T*>(data_of(r)) + mine.begin : reinterpret_cast<T*>(slot(r, piece)) + before;
  };
  T* own = reinterpret_cast<T*>(data_) + mine.begin;
  std::vector<const T*> sources;
  for (size_t r = 0; r < areas_.size(); ++r) sources.push_back(r == self_ ? own : share_of(r));
  convoy::add_up<T>(sources, static_cast<T>(scale_), mine.count, threads_, own,
                    part_ == Part::all_reduce && !in_window_ ? share_of(self_) : nullptr);
}

void SharedReduction::collect(int64_t piece) {
  const int64_t size = size_of(type_);
  int64_t before = 0;
  for (size_t r = 0; r < areas_.size(); ++r) {
    const Piece c = chunk(r, piece);
    const std::byte* from = in_window_ ? data_of(r) + c.begin * size : slot(r, piece) + before * size;
    if (r != self_) std::memcpy(data_ + c.begin * size, from, static_cast<size_t>(c.count * size));
    before += c.count;
  }
}

std::vector<int> SharedReduction::missing() const {
  const bool full = written_ == collected_ && !in_window_,
             wants_sums = part_ == Part::all_reduce && added_ > collected_;
  const bool waits_for_readers = in_window_ && collected_ == pieces();
  const auto what = full || waits_for_readers ? &Flags::collected : wants_sums ? &Flags::added : &Flags::written;
  const int64_t piece = full ? written_ - slots : waits_for_readers ? collected_ - 1 : collected_;
  std::vector<int> places;
  for (size_t r = 0; r < areas_.size(); ++r)
    if ((flags(r).*what).load(std::memory_order_acquire) <= sequence_ + piece) places.push_back(static_cast<int>(r));
  return places;
}

bool SharedReduction::next_write(int64_t ahead) {
  if (in_window_ && written_ < pieces()) {  // all of it is there
    flags(self_).written.store(sequence_ + (written_ = pieces()), std::memory_order_release);
    return true;
  }
  if (written_ == pieces() || written_ - collected_ >= ahead) return false;
  int64_t collected = INT64_MAX;
  for (size_t r = 0; r < areas_.size(); ++r)
    collected = std::min(collected, flags(r).collected.load(std::memory_order_acquire));
  // The first slot whose piece, perhaps of an earlier reduction, everybody has collected: few slots stay in the caches.
  const auto free = std::find_if(filled_.begin(), filled_.end(), [&](int64_t end) { return end <= collected; });
  if (free == filled_.end()) return false;
  *free = sequence_ + written_ + 1;
  flags(self_).places[static_cast<size_t>((sequence_ + written_) % slots)] =
      static_cast<uint8_t>(free - filled_.begin());
  write(written_++);
  return true;
}

bool SharedReduction::next_sum() {
  if (added_ == pieces() || !all_did(&Flags::written, added_)) return false;
  if (part_ != Part::all_gather) type_ == DType::f64 ? add_up<double>(added_) : add_up<float>(added_);
  flags(self_).added.store(sequence_ + ++added_, std::memory_order_release);
  return true;
}

bool SharedReduction::next_collection() {
  if (collected_ == added_ || (part_ == Part::all_reduce && !all_did(&Flags::added, collected_))) return false;
  if (part_ != Part::reduce_scatter) collect(collected_);
  flags(self_).collected.store(sequence_ + ++collected_, std::memory_order_release);
  return true;
}

bool SharedReduction::advance(int64_t ahead) {
  const int64_t count = pieces();
  // What is furthest along goes first, while it is in the caches.
  while (collected_ < count && (next_collection() || next_sum() || next_write(ahead))) {
  }
  if (collected_ < count) return false;
  // Nobody may touch a window while others read it.
  if (in_window_ && count > 0 && !all_did(&Flags::collected, count - 1)) return false;
  sequence_ += count;
  return true;
}

}  // namespace convoy
