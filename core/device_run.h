// Runs of a plan on a device: its queue, the recordings that are replayed, and the messages to other ranks between.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/bound_plan.h"
#include "core/device.h"
#include "core/host_mirrors.h"
#include "core/node_times.h"

namespace convoy {

/// What Executor's functions of the same names do on a device. `bound` and `times` are the executor's.
class DeviceRun {
 public:
  DeviceRun(const BoundPlan& bound, NodeTimes& times, const StateStore& host, Device& device)
      : bound_(bound), times_(times), device_(device), mirrors_(bound, host, device) {}

  void refresh();
  void stage_inputs() { mirrors_.stage(); }
  void place_inputs() { mirrors_.place(); }
  void start();
  void inputs_free() { device_.wait_until_staged(); }
  void finish();
  void set_eager(bool eager) { eager_ = eager; }
  void set_groups(std::span<Communicator* const> groups) { groups_ = groups; }
  bool meet_peers(Communicator& world, const std::function<std::shared_ptr<Buffer>(int64_t bytes)>& flags);
  void leave_peers();

  /// What the host has of a value; null for values of the device alone.
  const Tensor* on_host(ValueId id) const { return mirrors_.find(id); }
  /// A copy of a tensor of the device, behind all that was queued.
  Tensor copy_of(const Tensor& t) const;

 private:
  /// An all-reduce of the device's values.
  struct Exchange {
    AllReduceAttrs attrs;
    Tensor device, host;             ///< the host's is made when values are fetched first
    std::unique_ptr<Fence> arrived;  ///< on the host
    int64_t peer_sum = -1;           ///< its number, where devices read each other
  };
  /// Nodes that the device gets in one go: behind the end of an exchange, or up to the beginning of one.
  struct Stretch {
    size_t begin = 0, end = 0;
    Exchange *awaits = nullptr, *starts = nullptr;
    std::unique_ptr<Recording> recording;
  };
  void cut_stretches();
  void go_on(bool to_the_end);
  void queue_stretch(Stretch& stretch);
  void queue_nodes(size_t begin, size_t end, bool marks);
  void queue_offered();
  void begin_exchange(Exchange& exchange);
  void receive(Exchange& exchange);
  void note_times();

  const BoundPlan& bound_;
  NodeTimes& times_;
  Device& device_;
  HostMirrors mirrors_;
  std::span<Communicator* const> groups_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<Stretch> stretches_;
  size_t next_stretch_ = 0;
  std::vector<Exchange*> fetched_;  ///< on their way to the host, or there; not yet told to the other ranks
  std::unique_ptr<PeerSums> peers_;
  std::vector<size_t> offered_;  ///< not yet queued
  bool eager_ = false, warm_ = false, timed_ = false;
  NodeTimes::Clock::time_point started_;
};

}  // namespace convoy
