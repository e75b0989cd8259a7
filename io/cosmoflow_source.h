// CosmoFlow samples for a loader: read, checked against the expected shape, cached, turned.
#pragma once

#include <map>
#include <mutex>

#include "io/dataset.h"
#include "io/loader.h"

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

struct CosmoflowReading {
  ReadOptions read;
  SampleShape expected;        ///< every sample must have this shape
  int64_t take_channel = -1;   ///< keep this channel alone (the SC18 network reads z = 0); expected.channels is then 1
  int64_t take_targets = 0;    ///< expect so many targets; 0: any number
  bool fewer_targets = false;  ///< samples may have more, of which the first ones are kept
  float target_scale = 1;      ///< multiplies the targets (z-scoring of labels flat in [-1,1]: sqrt(3))
  bool refuse_empty = false;   ///< volumes without particles, which cannot be divided by their mean
  bool permute_targets =
      false;  ///< give each sample the targets of another one, fixed by the seed (control experiments)
  Augment augment = Augment::none;
  uint64_t seed = 0;
  std::shared_ptr<SampleCache> cache;  ///< keeps decoded samples in memory after their first use; null = none
};

/// Applies symmetry `index` (0..47) of the cube to voxels in z, y, x, channel order: axis permutation index/8, flips by
/// the bits of index%8.
void apply_cube_symmetry(const SampleShape& shape, int index, const std::byte* from, std::byte* to);

/// Input: voxels as in the file; target: f32 numbers.
class CosmoflowSource final : public SampleSource {
 public:
  CosmoflowSource(std::vector<SampleRef> samples, CosmoflowReading reading);
  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  int64_t input_bytes() const override { return reading_.expected.bytes(); }
  int64_t target_bytes() const override { return reading_.expected.targets * int64_t(sizeof(float)); }
  void load(int64_t sample, int64_t epoch, std::byte* input, std::byte* target) const override;

 private:
  Sample read(int64_t sample) const;
  std::shared_ptr<const Sample> cached(int64_t sample) const;
  std::vector<SampleRef> samples_;
  CosmoflowReading reading_;
  std::vector<int64_t> permuted_;
};

}  // namespace convoy
