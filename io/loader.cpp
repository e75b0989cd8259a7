#include "io/loader.h"

#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "core/philox.h"
#include "core/round_up.h"

namespace convoy {

std::vector<int64_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch, int node) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  const PhiloxStream random(seed,
                            hash_name("shuffle") + static_cast<uint64_t>(epoch) + (static_cast<uint64_t>(node) << 32));
  for (int64_t i = count - 1; i > 0; --i)
    std::swap(order[static_cast<size_t>(i)],
              order[random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(i) + 1)]);
  return order;
}

Loader::Loader(std::shared_ptr<const SampleSource> source, LoaderOptions options, int64_t epoch, int64_t position)
    : source_(std::move(source)),
      options_(options),
      start_(epoch * own_size() + position),
      slots_(static_cast<size_t>(options_.queue)) {
  try {
    for (int i = 0; i < options_.threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (...) {  // those that started would end the process
    end_workers();
    throw;
  }
}

Loader::~Loader() {
  end_workers();
}

void Loader::end_workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  space_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

int64_t Loader::own_size() const {
  const int64_t longest = options_.share ? options_.share->longest : size();
  return ranks() == 1 ? longest : ceil_div(longest, options_.block * ranks()) * options_.block;
}

int64_t Loader::sample_at(int64_t sequence) const {
  const int64_t own = start_ + sequence, epoch = own / own_size(), place = own % own_size();
  const int64_t block = place / options_.block * ranks() + rank();
  const int64_t position = (block * options_.block + place % options_.block) % size();
  const auto sample = [&](int64_t at) {
    return options_.share ? options_.share->samples[static_cast<size_t>(at)] : at;
  };
  if (!options_.shuffle) return sample(position);
  const std::lock_guard lock(order_mutex_);
  const auto slot = static_cast<size_t>(epoch & 1);  // the ring never spans more than two epochs at a time per slot
  if (order_epoch_[slot] != epoch) {
    order_[slot] = epoch_order(size(), options_.seed, epoch, options_.share ? options_.share->node : 0);
    order_epoch_[slot] = epoch;
  }
  return sample(order_[slot][static_cast<size_t>(position)]);
}

void Loader::work() {
  while (true) {
    int64_t sequence;
    {
      std::unique_lock lock(mutex_);
      const bool endless = options_.count < 0;
      space_.wait(lock, [&] {
        return stop_ || (claimed_ < consumed_ + options_.queue && (endless || claimed_ < options_.count));
      });
      if (stop_) return;
      sequence = claimed_++;
    }
    Slot& slot = slots_[static_cast<size_t>(sequence % options_.queue)];
    slot.error = nullptr;
    try {
      slot.input.resize(static_cast<size_t>(source_->input_bytes()));
      slot.target.resize(static_cast<size_t>(source_->target_bytes()));
      source_->load(sample_at(sequence), (start_ + sequence) / own_size(), slot.input.data(), slot.target.data());
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

void Loader::next(std::byte* input, std::byte* target) {
  if (options_.count >= 0 && consumed_ >= options_.count) throw std::logic_error("loader: asked for more than count");
  Slot& slot = slots_[static_cast<size_t>(consumed_ % options_.queue)];
  {
    std::unique_lock lock(mutex_);
    const auto before = std::chrono::steady_clock::now();
    ready_.wait(lock, [&] { return slot.sequence == consumed_; });
    wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  }
  if (slot.error) std::rethrow_exception(slot.error);
  std::memcpy(input, slot.input.data(), slot.input.size());
  std::memcpy(target, slot.target.data(), slot.target.size());
  {
    const std::lock_guard lock(mutex_);
    ++consumed_;
  }
  space_.notify_all();
}

}  // namespace convoy
