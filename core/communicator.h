// What ranks can say to each other. core declares it so that tapes can average and executors can drive messages on;
// dist/ implements it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/dtype.h"

namespace convoy {

/// One all-reduce: the element-wise sum over all ranks times `scale`, in place, the same bits on every rank.
struct AllReduce {
  std::span<std::byte> data;  ///< f32 or f64 elements; may be touched by nobody until the wait
  DType type = DType::f32;
  DType wire = DType::f32;  ///< f32 data may travel as bf16 or f16; sums stay f32
  double scale = 1;
  std::string name;  ///< for traces, and messages about ranks that do not answer
};

/// Memory of this rank that the others of its node see at a distance: the window of rank r begins (r - self) * stride
/// bytes further.
struct SharedWindow {
  std::byte* begin = nullptr;
  int64_t bytes = 0, stride = 0;
  bool holds(const std::byte* data) const { return data >= begin && data < begin + bytes; }
};

/// Where the time of the messages went, since the communicator was made.
struct CommunicationTimes {
  double in_flight = 0;  ///< seconds between start and finish of all-reduces, summed
  double exposed = 0;    ///< seconds that the caller spent in start, wait and progress
  double met = 0;        ///< of these in barriers, waiting for others
  int64_t reductions = 0;
  int64_t bytes = 0;  ///< of the values that were averaged, as they travel
};

/// Collective calls must be made by every rank in the same order. Where another rank is gone or silent for too long,
/// this one ends: with Error(lost_rank), or as a process with the same exit code (MPI).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts an all-reduce under a number of the caller's choice, 0 or more, which must not be in use. Throws
  /// Error(usage) where more are under way than messages can be told apart (Collectives: 4096).
  virtual void start(int64_t id, const AllReduce& what) = 0;
  /// Returns when the all-reduce of this number is finished, at once where none is under way.
  virtual void wait(int64_t id) = 0;
  /// Moves what is under way on as far as it goes without waiting.
  virtual void progress() = 0;

  /// Drives messages on until `holds`, which other ranks make true; `name` is for messages about ranks that do not.
  virtual void wait_until(const std::function<bool()>& holds, const std::string& name) = 0;

  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  /// `part` of every rank, in rank order; all parts have the size of `whole` / size().
  virtual void all_gather(std::span<const std::byte> part, std::span<std::byte> whole) = 0;
  virtual void barrier() = 0;
  virtual CommunicationTimes times() const = 0;

  /// Blocking sums of small things.
  void all_reduce_sum(std::span<float> data) { sum(std::as_writable_bytes(data), DType::f32); }
  void all_reduce_sum(std::span<double> data) { sum(std::as_writable_bytes(data), DType::f64); }

 private:
  void sum(std::span<std::byte> data, DType type) {
    if (size() == 1) return;
    start(blocking_id, {data, type, type, 1, "a blocking sum"});
    wait(blocking_id);
  }
  static constexpr int64_t blocking_id = -1;
};

}  // namespace convoy
