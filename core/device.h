// Memory and the work queue of an accelerator, as an executor needs them. kernels/device holds what implements it; on
// the CPU there is none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

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

/// One accelerator with one queue for compute. Everything is queued in order and returns at once, unless said
/// otherwise. Errors are Error(runtime).
class Device {
 public:
  virtual ~Device() = default;
  /// "NVIDIA H100 80GB HBM3, compute capability 9.0, 79.2 GiB"
  virtual std::string description() const = 0;
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
