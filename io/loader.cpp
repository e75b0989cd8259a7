#include "io/loader.h"

#include <chrono>
#include <cstring>
#include <numeric>

#include "core/philox.h"

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

std::vector<int64_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  const PhiloxStream random(seed, hash_name("shuffle") + static_cast<uint64_t>(epoch));
  for (int64_t i = count - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)],
              order[random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(i) + 1)]);
  return order;
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

Loader::Loader(std::vector<SampleRef> samples, LoaderOptions options, int64_t epoch, int64_t position)
    : samples_(std::move(samples)),
      options_(std::move(options)),
      start_(epoch * size() + position),
      slots_(static_cast<size_t>(options_.queue)) {
  if (options_.permute_targets) permuted_ = epoch_order(size(), options_.seed, -1);
  for (int i = 0; i < options_.threads; ++i) workers_.emplace_back([this] { work(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  space_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int64_t Loader::sample_at(int64_t sequence) const {
  const int64_t global = start_ + sequence, epoch = global / size(), position = global % size();
  if (!options_.shuffle) return position;
  const std::lock_guard lock(order_mutex_);
  const auto slot = static_cast<size_t>(epoch & 1);  // the ring never spans more than two epochs at a time per slot
  if (order_epoch_[slot] != epoch) order_[slot] = epoch_order(size(), options_.seed, epoch), order_epoch_[slot] = epoch;
  return order_[slot][static_cast<size_t>(position)];
}

const SampleRef& Loader::upcoming() const {
  return samples_[static_cast<size_t>(sample_at(consumed_))];
}

Sample Loader::load(int64_t index) {
  const SampleRef& ref = samples_[static_cast<size_t>(index)];
  Sample sample = read_sample(ref, options_.read);
  if (options_.take_targets > 0) {
    if (static_cast<int64_t>(sample.target.size()) < options_.take_targets)
      fail_data(ref.path + ": expected at least " + std::to_string(options_.take_targets) + " targets, found " +
                std::to_string(sample.target.size()));
    sample.target.resize(static_cast<size_t>(options_.take_targets));
    sample.shape.targets = options_.take_targets;
  }
  if (options_.take_channel >= 0) {
    if (options_.take_channel >= sample.shape.channels)
      fail_data(ref.path + ": expected a channel " + std::to_string(options_.take_channel) + ", found " +
                std::to_string(sample.shape.channels) + " channels");
    const auto width = static_cast<size_t>(size_of(sample.shape.dtype)),
               step = width * static_cast<size_t>(sample.shape.channels);
    const size_t voxels = sample.voxels.size() / step;
    for (size_t v = 0; v < voxels; ++v)
      std::memmove(&sample.voxels[v * width],
                   &sample.voxels[v * step + static_cast<size_t>(options_.take_channel) * width], width);
    sample.voxels.resize(voxels * width);
    sample.shape.channels = 1;
  }
  if (!(sample.shape == options_.expected))
    fail_data(ref.path + ": expected " + options_.expected.str() + ", found " + sample.shape.str());
  return sample;
}

std::shared_ptr<const Sample> Loader::cached(int64_t index) {
  const SampleRef& ref = samples_[static_cast<size_t>(index)];
  if (options_.cache)
    if (auto known = options_.cache->find(ref)) return known;
  auto sample = std::make_shared<const Sample>(load(index));
  if (options_.cache) options_.cache->insert(ref, sample);
  return sample;
}

void Loader::fill(Slot& slot, int64_t sequence) {
  const int64_t index = sample_at(sequence);
  const std::shared_ptr<const Sample> sample = cached(index);
  slot.target = options_.permute_targets ? cached(permuted_[static_cast<size_t>(index)])->target : sample->target;
  for (float& t : slot.target) t *= options_.target_scale;
  slot.voxels.resize(sample->voxels.size());
  if (options_.augment == Augment::cube) {
    const auto epoch = static_cast<uint64_t>((start_ + sequence) / size());
    const PhiloxStream random(options_.seed, hash_name("cube") + epoch);
    apply_cube_symmetry(sample->shape, static_cast<int>(random.below(static_cast<uint64_t>(index), 48)),
                        sample->voxels.data(), slot.voxels.data());
  } else {
    std::memcpy(slot.voxels.data(), sample->voxels.data(), sample->voxels.size());
  }
}

void Loader::work() {
  while (true) {
    int64_t sequence;
    {
      std::unique_lock lock(mutex_);
      space_.wait(lock, [&] { return stop_ || claimed_ < consumed_ + options_.queue; });
      if (stop_) return;
      sequence = claimed_++;
    }
    Slot& slot = slots_[static_cast<size_t>(sequence % options_.queue)];
    slot.error = nullptr;
    try {
      fill(slot, sequence);
    } catch (...) {
      slot.error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      slot.sequence = sequence;
    }
    ready_.notify_all();
  }
}

void Loader::next(std::byte* voxels, float* target) {
  Slot& slot = slots_[static_cast<size_t>(consumed_ % options_.queue)];
  {
    std::unique_lock lock(mutex_);
    const auto before = std::chrono::steady_clock::now();
    ready_.wait(lock, [&] { return slot.sequence == consumed_; });
    wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  }
  if (slot.error) std::rethrow_exception(slot.error);
  std::memcpy(voxels, slot.voxels.data(), slot.voxels.size());
  std::memcpy(target, slot.target.data(), slot.target.size() * sizeof(float));
  {
    const std::lock_guard lock(mutex_);
    ++consumed_;
  }
  space_.notify_all();
}

}  // namespace convoy
