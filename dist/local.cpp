#include "dist/local.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "core/error.h"
#include "core/tensor.h"

namespace convoy {
namespace {

/// What the ranks of one process share: a box of messages per pair and tag, and an area per rank.
struct Office {
  explicit Office(std::vector<int> nodes)
      : nodes(std::move(nodes)),
        area_bytes(std::max(int64_t{64} << 10, SharedReduction::least_bytes(static_cast<int>(this->nodes.size())))) {
    for (size_t r = 0; r < this->nodes.size(); ++r)
      areas.push_back(std::make_unique<Buffer>(area_bytes, Buffer::Fill::zero));
  }
  std::vector<int> nodes;
  int64_t area_bytes;
  std::vector<std::unique_ptr<Buffer>> areas;
  std::mutex mutex;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes;  ///< from, to, tag
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Office> office, int rank) : office_(std::move(office)), rank_(rank) {
    for (size_t r = 0; r < office_->nodes.size(); ++r)
      if (office_->nodes[r] == office_->nodes[static_cast<size_t>(rank)]) areas_.push_back(office_->areas[r]->data());
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(office_->nodes.size()); }
  const std::vector<int>& nodes() const override { return office_->nodes; }

  int send(int peer, int tag, std::span<const std::byte> data) override {
    const std::lock_guard lock(office_->mutex);
    office_->boxes[{rank_, peer, tag}].emplace_back(data.begin(), data.end());
    return sent;
  }
  int receive(int peer, int tag, std::span<std::byte> data) override {
    pending_.push_back({peer, tag, data, false});
    return static_cast<int>(pending_.size()) - 1;
  }
  bool done(int message) override {
    if (message == sent) return true;
    const std::lock_guard lock(office_->mutex);
    // Messages of one box go to receives in the order in which these were posted.
    for (Pending& p : pending_) {
      if (p.arrived) continue;
      auto& box = office_->boxes[{p.peer, rank_, p.tag}];
      if (box.empty()) continue;
      if (box.front().size() != p.data.size())
        fail_runtime("rank " + std::to_string(rank_) + " expects " + std::to_string(p.data.size()) + " bytes, rank " +
                     std::to_string(p.peer) + " sent " + std::to_string(box.front().size()));
      std::memcpy(p.data.data(), box.front().data(), p.data.size());
      box.pop_front();
      p.arrived = true;
    }
    if (!pending_[static_cast<size_t>(message)].arrived) return false;
    finished_ += 1;
    if (finished_ == pending_.size()) pending_.clear(), finished_ = 0;
    return true;
  }
  const std::vector<std::byte*>& shared() const override { return areas_; }
  int64_t shared_bytes() const override { return office_->area_bytes; }
  void waiting(const std::string& what, double seconds) override {
    if (seconds > 60) throw Error(ErrorKind::lost_rank, "rank " + std::to_string(rank_) + " waits for " + what);
  }
  void alive() override {}

 private:
  static constexpr int sent = -1;
  struct Pending {
    int peer, tag;
    std::span<std::byte> data;
    bool arrived;
  };
  std::shared_ptr<Office> office_;
  int rank_;
  std::vector<std::byte*> areas_;
  std::vector<Pending> pending_;
  size_t finished_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Collectives>> make_thread_communicators(int size, CommunicationOptions options,
                                                                    std::vector<int> nodes) {
  if (nodes.empty()) nodes.assign(static_cast<size_t>(size), 0);
  const auto office = std::make_shared<Office>(std::move(nodes));
  std::vector<std::unique_ptr<Collectives>> ranks;
  for (int r = 0; r < size; ++r)
    ranks.push_back(std::make_unique<Collectives>(std::make_shared<ThreadTransport>(office, r), options));
  return ranks;
}

std::unique_ptr<Collectives> make_self_communicator() {
  return std::move(make_thread_communicators(1)[0]);
}

}  // namespace convoy
