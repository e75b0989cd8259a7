// Streams samples in training order: prefetch threads decode ahead of the consumer into a bounded ring; order,
// shuffling and augmentation are pure functions of (seed, epoch, position), so that a run can be resumed in mid-epoch.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace convoy {

/// What a loader streams: samples by number, each a block of bytes for the network's input and one for its target.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t size() const = 0;
  virtual int64_t input_bytes() const = 0;
  virtual int64_t target_bytes() const = 0;
  /// Fills both blocks; the same bytes for the same (sample, epoch). Several threads call it at a time.
  virtual void load(int64_t sample, int64_t epoch, std::byte* input, std::byte* target) const = 0;
};

/// The samples that a node keeps, which its ranks deal out among themselves.
struct LoaderShare {
  std::vector<int64_t> samples;  ///< by number in the source
  int rank = 0, ranks = 1;       ///< of the node
  int node = 0;         ///< each has orders of its own, or neighbours in the source would always meet in a step
  int64_t longest = 0;  ///< samples of the largest share: in an epoch smaller ones are met again from the start
};

struct LoaderOptions {
  bool shuffle = true;
  uint64_t seed = 0;
  int threads = 1;    ///< prefetch threads
  int64_t queue = 4;  ///< samples decoded ahead at most
  /// Several ranks share the stream: the shuffled order is dealt out in blocks of `block` samples, rank by rank.
  int rank = 0, ranks = 1;
  int64_t block = 1;
  std::shared_ptr<const LoaderShare> share{};  ///< what this rank sees of the source, instead of everything
  int64_t count = -1;  ///< of a rank's samples, those that will be asked for, beyond which none is decoded; -1: any
  /// The same for so many samples in all, dealt out one by one.
  LoaderOptions one_by_one(int64_t samples, bool shuffled) const {
    LoaderOptions o = *this;
    o.shuffle = shuffled, o.block = 1, o.share = nullptr, o.count = (samples - rank + ranks - 1) / ranks;
    return o;
  }
};

/// Permutation of [0, count) for one epoch (Fisher-Yates driven by Philox), another one for every node.
std::vector<int64_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch, int node = 0);

class Loader {
 public:
  /// Starts prefetching at `position` of `epoch`, counted in this rank's own samples.
  Loader(std::shared_ptr<const SampleSource> source, LoaderOptions options, int64_t epoch, int64_t position);
  ~Loader();

  /// Copies the next sample; rethrows what its reader threw. Wraps into the next epoch. Throws std::logic_error beyond
  /// `count`.
  void next(std::byte* input, std::byte* target);
  /// Seconds that next() has waited for data, in all.
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Slot {
    int64_t sequence = -1;  ///< which sample of the stream is ready here
    std::vector<std::byte> input, target;
    std::exception_ptr error;
  };
  int64_t sample_at(int64_t sequence) const;
  /// Samples that are dealt out, and to whom.
  int64_t size() const { return options_.share ? std::ssize(options_.share->samples) : source_->size(); }
  int rank() const { return options_.share ? options_.share->rank : options_.rank; }
  int ranks() const { return options_.share ? options_.share->ranks : options_.ranks; }
  /// Samples per epoch of one rank; the last round of blocks may reach over the end of the stream, which it meets again
  /// at its beginning.
  int64_t own_size() const;
  void work();
  void end_workers();

  std::shared_ptr<const SampleSource> source_;
  LoaderOptions options_;
  int64_t start_;
  std::vector<Slot> slots_;
  mutable std::mutex mutex_;
  std::condition_variable ready_, space_;
  int64_t consumed_ = 0, claimed_ = 0;
  bool stop_ = false;
  mutable std::mutex order_mutex_;
  mutable int64_t order_epoch_[2] = {-1, -1};
  mutable std::vector<int64_t> order_[2];
  std::vector<std::thread> workers_;
  double wait_seconds_ = 0;
};

}  // namespace convoy
