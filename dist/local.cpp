#include "dist/local.h"

#include <barrier>
#include <cstring>

#include "core/error.h"

namespace convoy {
namespace {

class Self final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_sum(std::span<float>) override {}
  void all_reduce_sum(std::span<double>) override {}
  void broadcast(std::span<std::byte>, int) override {}
  void barrier() override {}
};

/// What the ranks of one group share: a barrier and a slot per rank to show a buffer to the others.
struct Meeting {
  explicit Meeting(int size) : barrier(size), shown(static_cast<size_t>(size)) {}
  std::barrier<> barrier;
  struct Shown {
    void* data = nullptr;
    size_t bytes = 0;
  };
  std::vector<Shown> shown;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_->shown.size()); }
  void all_reduce_sum(std::span<float> data) override { reduce(data); }
  void all_reduce_sum(std::span<double> data) override { reduce(data); }
  void broadcast(std::span<std::byte> data, int root) override {
    show(data.data(), data.size());
    if (rank_ != root) std::memcpy(data.data(), meeting_->shown.at(static_cast<size_t>(root)).data, data.size());
    barrier();
  }
  void barrier() override { meeting_->barrier.arrive_and_wait(); }

 private:
  /// Publishes this rank's buffer and waits for all; afterwards everybody may read everybody's.
  void show(void* data, size_t bytes) {
    meeting_->shown[static_cast<size_t>(rank_)] = {data, bytes};
    barrier();
    for (const auto& other : meeting_->shown)
      if (other.bytes != bytes) {
        const size_t found = other.bytes;
        barrier();  // everybody sees the mismatch before anybody leaves
        fail_runtime("collective call with " + std::to_string(bytes) + " bytes on rank " + std::to_string(rank_) +
                     " and " + std::to_string(found) + " on another");
      }
  }

  template <class T>
  void reduce(std::span<T> data) {
    show(data.data(), data.size_bytes());
    std::vector<T> sum(data.size());
    for (const auto& other : meeting_->shown) {
      const T* values = static_cast<const T*>(other.data);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    barrier();  // nobody overwrites its buffer while others still read it
    std::copy(sum.begin(), sum.end(), data.begin());
    barrier();
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<Self>();
}

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size) {
  auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<ThreadRank>(meeting, r));
  return ranks;
}

}  // namespace convoy
