#include "io/cosmoflow_source.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/philox.h"
#include "io/loader.h"

namespace convoy {
namespace {

/// The per-voxel copy for one element size, so that the inner loop is a plain load and store.
template <class Voxel>
void transform(int64_t size, const std::array<int, 3>& axes, const std::array<bool, 3>& flip, const std::byte* from,
               std::byte* to) {
  const int64_t stride_of[3] = {size * size, size, 1};
  std::array<int64_t, 3> stride{};
  int64_t origin = 0;
  for (size_t i = 0; i < 3; ++i) {
    stride[i] = stride_of[axes[i]];
    if (flip[i]) origin += (size - 1) * stride[i], stride[i] = -stride[i];
  }
  const auto* source = reinterpret_cast<const Voxel*>(from);
  auto* target = reinterpret_cast<Voxel*>(to);
  for (int64_t z = 0; z < size; ++z)
    for (int64_t y = 0; y < size; ++y) {
      const Voxel* row = source + origin + z * stride[0] + y * stride[1];
      for (int64_t x = 0; x < size; ++x) *target++ = row[x * stride[2]];
    }
}

struct Two {
  uint16_t a;
};
struct Four {
  uint32_t a;
};
struct Eight {
  uint64_t a;
};
struct Sixteen {
  uint64_t a, b;
};

}  // namespace

std::shared_ptr<const Sample> SampleCache::find(const SampleRef& ref) const {
  const std::lock_guard lock(mutex_);
  const auto found = samples_.find({ref.path, ref.index});
  return found == samples_.end() ? nullptr : found->second;
}

void SampleCache::insert(const SampleRef& ref, std::shared_ptr<const Sample> sample) {
  const std::lock_guard lock(mutex_);
  samples_[{ref.path, ref.index}] = std::move(sample);
}

void apply_cube_symmetry(const SampleShape& shape, int index, const std::byte* from, std::byte* to) {
  constexpr std::array<std::array<int, 3>, 6> permutations{
      {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}};
  const std::array<int, 3>& axes = permutations[static_cast<size_t>(index / 8)];
  const std::array<bool, 3> flip{bool(index & 4), bool(index & 2), bool(index & 1)};
  switch (shape.channels * size_of(shape.dtype)) {
    case 2:
      return transform<Two>(shape.size, axes, flip, from, to);
    case 4:
      return transform<Four>(shape.size, axes, flip, from, to);
    case 8:
      return transform<Eight>(shape.size, axes, flip, from, to);
    case 16:
      return transform<Sixteen>(shape.size, axes, flip, from, to);
    default:
      fail_usage("augmentation: " + shape.str() + ": voxels of 1, 2 or 4 channels are supported");
  }
}

CosmoflowSource::CosmoflowSource(std::vector<SampleRef> samples, CosmoflowReading reading)
    : samples_(std::move(samples)), reading_(std::move(reading)) {
  if (reading_.permute_targets) permuted_ = epoch_order(size(), reading_.seed, -1);
}

Sample CosmoflowSource::read(int64_t index) const {
  const SampleRef& ref = samples_[static_cast<size_t>(index)];
  Sample sample = read_sample(ref, reading_.read);
  if (reading_.take_targets > 0) {
    const auto found = static_cast<int64_t>(sample.target.size());
    if (found < reading_.take_targets || (found > reading_.take_targets && !reading_.fewer_targets))
      fail_data(ref.path + ": expected " + (reading_.fewer_targets ? "at least " : "") +
                std::to_string(reading_.take_targets) + " targets, found " + std::to_string(found));
    sample.target.resize(static_cast<size_t>(reading_.take_targets));
    sample.shape.targets = reading_.take_targets;
  }
  if (reading_.take_channel >= 0) {
    if (reading_.take_channel >= sample.shape.channels)
      fail_data(ref.path + ": expected a channel " + std::to_string(reading_.take_channel) + ", found " +
                std::to_string(sample.shape.channels) + " channels");
    const auto width = static_cast<size_t>(size_of(sample.shape.dtype)),
               step = width * static_cast<size_t>(sample.shape.channels);
    const size_t voxels = sample.voxels.size() / step;
    for (size_t v = 0; v < voxels; ++v)
      std::memmove(&sample.voxels[v * width],
                   &sample.voxels[v * step + static_cast<size_t>(reading_.take_channel) * width], width);
    sample.voxels.resize(voxels * width);
    sample.shape.channels = 1;
  }
  if (!(sample.shape == reading_.expected))
    fail_data(ref.path + ": expected " + reading_.expected.str() + ", found " + sample.shape.str());
  if (reading_.refuse_empty &&
      std::all_of(sample.voxels.begin(), sample.voxels.end(), [](std::byte b) { return b == std::byte{0}; }))
    fail_data(ref.path + ": expected particles, found none: a volume without any cannot be divided by its mean");
  return sample;
}

std::shared_ptr<const Sample> CosmoflowSource::cached(int64_t index) const {
  const SampleRef& ref = samples_[static_cast<size_t>(index)];
  if (reading_.cache)
    if (auto known = reading_.cache->find(ref)) return known;
  auto sample = std::make_shared<const Sample>(read(index));
  if (reading_.cache) reading_.cache->insert(ref, sample);
  return sample;
}

void CosmoflowSource::load(int64_t index, int64_t epoch, std::byte* input, std::byte* target) const {
  const std::shared_ptr<const Sample> sample = cached(index);
  const std::shared_ptr<const Sample> labelled =
      reading_.permute_targets ? cached(permuted_[static_cast<size_t>(index)]) : sample;
  const std::vector<float>& from = labelled->target;
  auto* to = reinterpret_cast<float*>(target);
  for (size_t i = 0; i < from.size(); ++i) to[i] = from[i] * reading_.target_scale;
  if (reading_.augment == Augment::cube) {
    const PhiloxStream random(reading_.seed, hash_name("cube") + static_cast<uint64_t>(epoch));
    apply_cube_symmetry(sample->shape, static_cast<int>(random.below(static_cast<uint64_t>(index), 48)),
                        sample->voxels.data(), input);
  } else {
    std::memcpy(input, sample->voxels.data(), sample->voxels.size());
  }
}

}  // namespace convoy
