// Streams samples in training order: prefetch threads decode ahead of the consumer into a bounded ring; order,
// shuffling and augmentation are pure functions of (seed, epoch, position), so that a run can be resumed in mid-epoch.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "io/dataset.h"

namespace convoy {

enum class Augment : uint8_t { none, cube };  ///< cube: one of the 48 symmetries per sample and epoch

/// Decoded samples by file and index, shared by the loaders of a run.
class SampleCache {
 public:
  std::shared_ptr<const Sample> find(const SampleRef& ref) const;
  void insert(const SampleRef& ref, std::shared_ptr<const Sample> sample);

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int64_t>, std::shared_ptr<const Sample>> samples_;
};

struct LoaderOptions {
  ReadOptions read;
  SampleShape expected;       ///< every sample must have this shape
  int64_t take_channel = -1;  ///< keep this channel alone (the SC18 network reads z = 0); expected.channels is then 1
  int64_t take_targets = 0;   ///< keep the first so many targets; 0 = all
  float target_scale = 1;     ///< multiplies the targets (z-scoring of labels flat in [-1,1]: sqrt(3))
  bool shuffle = true;
  bool permute_targets =
      false;  ///< give each sample the targets of another one, fixed by the seed (control experiments)
  Augment augment = Augment::none;
  uint64_t seed = 0;
  int threads = 1;                     ///< prefetch threads
  int64_t queue = 4;                   ///< samples decoded ahead at most
  std::shared_ptr<SampleCache> cache;  ///< keeps decoded samples in memory after their first use; null = none
};

/// Permutation of [0, count) for one epoch (Fisher-Yates driven by Philox).
std::vector<int64_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch);

/// Applies symmetry `index` (0..47) of the cube to voxels in z, y, x, channel order: axis permutation index/8, flips by
/// the bits of index%8.
void apply_cube_symmetry(const SampleShape& shape, int index, const std::byte* from, std::byte* to);

class Loader {
 public:
  /// Starts prefetching at `position` of `epoch`.
  Loader(std::vector<SampleRef> samples, LoaderOptions options, int64_t epoch, int64_t position);
  ~Loader();

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }
  /// Copies the next sample's voxels and targets; rethrows what its reader threw. Wraps into the next epoch.
  void next(std::byte* voxels, float* target);
  /// Which sample the next call returns.
  const SampleRef& upcoming() const;
  /// Seconds that next() has waited for data, in all.
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Slot {
    int64_t sequence = -1;  ///< which sample of the stream is ready here
    std::vector<std::byte> voxels;
    std::vector<float> target;
    std::exception_ptr error;
  };
  int64_t sample_at(int64_t sequence) const;
  void work();
  void fill(Slot& slot, int64_t sequence);
  Sample load(int64_t sample);
  std::shared_ptr<const Sample> cached(int64_t sample);

  std::vector<SampleRef> samples_;
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
  std::vector<int64_t> permuted_;
  std::vector<std::thread> workers_;
  double wait_seconds_ = 0;
};

}  // namespace convoy
