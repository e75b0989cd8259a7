#include "bench/thread_shares.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace convoy::bench {

namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

void keep_least(std::vector<double>& best, const std::vector<double>& now) {
  if (best.size() != now.size()) fail_usage("thread shares: a step divides its work otherwise than the one before");
  for (size_t i = 0; i < now.size(); ++i) best[i] = std::min(best[i], now[i]);
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

ThreadShares::ThreadShares(Executor& executor) : executor_(executor), best_(executor.plan().nodes.size()) {
  executor_.after_nodes([this](size_t node) { end_node(node); });
  team_stand_in = this;
}

ThreadShares::~ThreadShares() {
  team_stand_in = nullptr;
  executor_.after_nodes({});
}

void ThreadShares::run_step() {
  node_ = {}, in_regions_ = 0, in_region_ = false, in_unit_ = false;
  node_start_ = Clock::now();
  executor_.run();
}

void ThreadShares::run(int threads, ThreadBody body) {
  if (in_region_) {  // of a thread's own team
    for (int thread = 0; thread < threads; ++thread) body(thread);
    return;
  }
  const auto start = Clock::now();
  in_region_ = true;
  node_.regions.emplace_back().threads.reserve(static_cast<size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) {
    in_units_ = 0;
    const auto thread_start = Clock::now();
    body(thread);
    node_.regions.back().threads.push_back(std::max(0.0, seconds(Clock::now() - thread_start) - in_units_));
  }
  in_region_ = false;
  in_regions_ += seconds(Clock::now() - start);
}

void ThreadShares::next_unit() {
  const auto now = Clock::now();
  if (in_unit_) {
    node_.regions.back().units.push_back(seconds(now - unit_start_));
    in_units_ += node_.regions.back().units.back();
  }
  in_unit_ = in_region_, unit_start_ = now;
}

void ThreadShares::no_unit() {
  in_unit_ = false;
}

void ThreadShares::end_node(size_t node) {
  const auto now = Clock::now();
  node_.ran = true, node_.alone = std::max(0.0, seconds(now - node_start_) - in_regions_);
  Node& best = best_[node];
  if (!best.ran) {
    best = std::move(node_);
  } else {
    if (best.regions.size() != node_.regions.size())
      fail_usage("thread shares: a step has other regions than the one before");
    best.alone = std::min(best.alone, node_.alone);
    for (size_t i = 0; i < best.regions.size(); ++i) {
      keep_least(best.regions[i].threads, node_.regions[i].threads);
      keep_least(best.regions[i].units, node_.regions[i].units);
    }
  }
  node_ = {}, in_regions_ = 0;
  node_start_ = Clock::now();
}

std::vector<ThreadShare> ThreadShares::of_nodes() const {
  std::vector<ThreadShare> shares;
  for (const Node& node : best_) {
    ThreadShare share{node.alone, node.alone, static_cast<int64_t>(node.regions.size())};
    for (const Region& region : node.regions) {
      std::vector<double> busy = region.threads;
      for (double unit : region.units) *std::min_element(busy.begin(), busy.end()) += unit;
      share.even += (sum(region.threads) + sum(region.units)) / double(busy.size());
      share.slowest += *std::max_element(busy.begin(), busy.end());
    }
    shares.push_back(share);
  }
  return shares;
}

}  // namespace convoy::bench
