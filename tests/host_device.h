// A device that is the CPU itself, for tests of what travels when.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/device.h"

namespace convoy::testing {

/// Memory of its own, a queue that is always empty, and recordings that call what they recorded. Mistakes in its use
/// are thrown: ranks that are threads may not use Catch's assertions.
class HostDevice final : public Device {
 public:
  std::string description() const override { return "the CPU"; }
  std::string identity() const override { return description(); }
  std::shared_ptr<Buffer> allocate(int64_t bytes) override {
    return std::make_shared<Buffer>(bytes, Buffer::Fill::none);
  }
  std::shared_ptr<Buffer> allocate_host(int64_t bytes) override { return allocate(bytes); }
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void stage(void* to, const void* from, int64_t bytes) override {
    if (!free_) throw std::logic_error("staging memory is written while the queue reads it");
    copy(to, from, bytes);
    order += 's';
  }
  void await_staged() override {
    free_ = false;
    order += 'q';
  }
  void staging_free() override { free_ = true; }
  void wait_until_staged() override {}
  /// What is fetched comes when the fence is asked for the second time.
  class Arrival final : public Fence {
   public:
    bool passed() override {
      if (++asked_ < 2) return false;
      if (arrive_) arrive_(), arrive_ = nullptr;
      return true;
    }
    void set(std::function<void()> arrive) { arrive_ = std::move(arrive), asked_ = 0; }

   private:
    std::function<void()> arrive_;
    int asked_ = 0;
  };
  std::unique_ptr<Fence> fence() override { return std::make_unique<Arrival>(); }
  void fetch(void* to, const void* from, int64_t bytes, Fence& arrived) override {
    std::memset(to, -1, static_cast<size_t>(bytes));
    dynamic_cast<Arrival&>(arrived).set([=, this] { copy(to, from, bytes); });
  }
  /// Ranks are threads of this process.
  class ThreadSums final : public PeerSums {
   public:
    ThreadSums(Communicator& node, std::vector<PeerSum> sums)
        : node_(node), sums_(std::move(sums)), state_(sums_.size(), State::awaited) {
      std::vector<std::byte*> mine;
      for (const PeerSum& s : sums_) mine.push_back(s.values);
      values_.resize(sums_.size() * static_cast<size_t>(node.size()));
      node.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(values_)));
    }
    void offer(size_t sum) override { go_on(sum, State::awaited, State::offered); }
    void queue(size_t sum) override {
      go_on(sum, State::offered, State::queued);
      node_.barrier();  // everybody's values are there
      std::vector<float> total(static_cast<size_t>(sums_[sum].elements));
      for (size_t r = 0; r < static_cast<size_t>(node_.size()); ++r) {
        const auto* from = reinterpret_cast<const float*>(values_[r * sums_.size() + sum]);
        for (size_t i = 0; i < total.size(); ++i) total[i] = r == 0 ? from[i] : total[i] + from[i];
      }
      for (float& v : total) v *= static_cast<float>(sums_[sum].scale);
      node_.barrier();  // and were read
      std::memcpy(sums_[sum].values, total.data(), total.size() * sizeof(float));
    }
    void await(size_t sum) override { go_on(sum, State::queued, State::awaited); }
    void leave() override { node_.barrier(); }

   private:
    enum class State : uint8_t { offered, queued, awaited };
    void go_on(size_t sum, State from, State to) {
      if (state_.at(sum) != from) throw std::logic_error("a sum out of turn");
      state_[sum] = to;
    }
    Communicator& node_;
    std::vector<PeerSum> sums_;
    std::vector<std::byte*> values_;
    std::vector<State> state_;
  };
  std::unique_ptr<PeerSums> peer_sums(Communicator& node, std::shared_ptr<Buffer>, std::vector<PeerSum> sums,
                                      std::shared_ptr<Buffer>) override {
    return std::make_unique<ThreadSums>(node, std::move(sums));
  }
  void copy(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, static_cast<size_t>(bytes)); }
  void synchronize() override { order += 'f'; }
  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    class Again final : public Recording {
     public:
      Again(std::function<void()> work, int& replays) : work_(std::move(work)), replays_(replays) {}
      void replay() override { work_(), ++replays_; }

     private:
      std::function<void()> work_;
      int& replays_;
    };
    ++recordings;
    return std::make_unique<Again>(work, replays);
  }
  void mark() override { ++marks_; }
  double seconds_after(size_t mark) override {
    if (mark + 1 >= marks_) throw std::logic_error("a mark that was not set");
    return 0.5;
  }
  void clear_marks() override { marks_ = 0; }

  int recordings = 0, replays = 0;
  std::string order;  ///< s: an input was staged, q: staged inputs were queued, f: the host waited

 private:
  bool free_ = true;
  size_t marks_ = 0;
};

}  // namespace convoy::testing
