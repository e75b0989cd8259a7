// Memory and the work queue of an accelerator, as an executor needs them. kernels/device holds what implements it; on
// the CPU there is none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/tensor.h"

namespace convoy {

/// Queued work that can be queued again as a whole (a CUDA graph). It reads and writes the memory that the work was
/// given when it was recorded, which must live as long as replays run.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Queues it once more and returns at once.
  virtual void replay() = 0;
};

/// A point of the queue that the host asks for.
class Fence {
 public:
  virtual ~Fence() = default;
  /// Whether what set it last is done.
  virtual bool passed() = 0;
};

/// f32 values of the device's memory that are to become the sum over all ranks times `scale`, on every rank.
struct PeerSum {
  std::byte* values;
  int64_t elements;  ///< a multiple of four
  double scale;
};

/// Sums over ranks of one node whose devices read each other's memory: beside the queue, added in rank order. All ranks
/// offer, queue and await the same sums in the same order.
class PeerSums {
 public:
  virtual ~PeerSums() = default;
  /// This rank's values are those that the queue has made by here. Nothing may touch them until await.
  virtual void offer(size_t sum) = 0;
  /// Queues the sum, when all ranks have offered theirs.
  virtual void queue(size_t sum) = 0;
  /// What is queued from here on sees the sum, and may write over it.
  virtual void await(size_t sum) = 0;
  /// Collective, behind the last sum: nobody reads another's memory any more, so that it may be freed. Where it was not
  /// called (a rank failed) this rank's memory stays until its process ends.
  virtual void leave() = 0;
};

/// One accelerator with one queue for compute. Everything is queued in order and returns at once, unless said
/// otherwise. Errors are Error(runtime).
class Device {
 public:
  virtual ~Device() = default;
  /// "NVIDIA H100 80GB HBM3, compute capability 9.0, 81079 MiB"
  virtual std::string description() const = 0;
  /// The same for all processes of a node that have opened this one.
  virtual std::string identity() const = 0;
  /// 256-byte aligned memory of the device. Out of memory: an error that names the bytes asked for and those free.
  virtual std::shared_ptr<Buffer> allocate(int64_t bytes) = 0;
  /// Memory of the host that copies read and write while the host goes on.
  virtual std::shared_ptr<Buffer> allocate_host(int64_t bytes) = 0;
  /// Copies `bytes` bytes from the host to the device, and back. Both ends must stay as they are, and what is
  /// downloaded unread, until synchronize().
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  /// Uploads beside the queue, into memory that the queue reads next: they wait for staging_free(), the queue waits for
  /// them behind await_staged(), and the host in wait_until_staged(), ahead of writing `from` again.
  virtual void stage(void* to, const void* from, int64_t bytes) = 0;
  virtual void await_staged() = 0;
  virtual void staging_free() = 0;
  virtual void wait_until_staged() = 0;
  virtual std::unique_ptr<Fence> fence() = 0;
  /// Downloads beside the queue, behind all that was queued so far, and sets the fence: until it has passed, `from`
  /// must stay as it is and `to` unread.
  virtual void fetch(void* to, const void* from, int64_t bytes, Fence& arrived) = 0;
  /// Collective over `node`, whose members all see `flags` (zeroed, at least peer_flag_bytes). The sums lie in `arena`,
  /// as many and as long on all ranks, at places of each rank's own. Null on all of them where one cannot read
  /// another's memory.
  virtual std::unique_ptr<PeerSums> peer_sums(Communicator& node, std::shared_ptr<Buffer> arena,
                                              std::vector<PeerSum> sums, std::shared_ptr<Buffer> flags) = 0;
  static int64_t peer_flag_bytes(int ranks, size_t sums) { return 3 * 8 * int64_t{ranks} * static_cast<int64_t>(sums); }
  /// `bytes` bytes from one place of the device to another.
  virtual void copy(void* to, const void* from, int64_t bytes) = 0;
  /// Waits for all that was queued; reports its errors.
  virtual void synchronize() = 0;
  /// What `work` queues is not run but kept. `work` runs once, at once, and may not wait for the queue.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
  /// Marks this point of the queue; marks count from 0 behind clear_marks().
  virtual void mark() = 0;
  /// Seconds between marks i and i + 1, which the queue has passed.
  virtual double seconds_after(size_t mark) = 0;
  virtual void clear_marks() = 0;
};

}  // namespace convoy
