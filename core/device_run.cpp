#include "core/device_run.h"

#include <thread>

#include "core/node_failure.h"
#include "core/ops/communication.h"

namespace convoy {

void DeviceRun::refresh() {
  queue_nodes(0, bound_.refresh_nodes(), false);
  device_.synchronize();
}

void DeviceRun::start() {
  if (!mirrors_.staged()) fail_usage("start: no inputs were staged");
  mirrors_.place();
  started_ = NodeTimes::Clock::now();
  // The first run, node by node, also loads every kernel: loading cannot be recorded.
  timed_ = eager_ || !warm_;
  if (timed_) device_.clear_marks(), device_.mark();
  if (stretches_.empty()) cut_stretches();
  next_stretch_ = 0;
  go_on(false);
  warm_ = true;
}

void DeviceRun::finish() {
  go_on(true);
  device_.synchronize();
  mirrors_.arrived();
  if (timed_) note_times();
}

void DeviceRun::cut_stretches() {
  const std::vector<PlannedNode>& nodes = bound_.plan().nodes;
  stretches_.emplace_back().begin = bound_.refresh_nodes();
  const auto cut = [&](size_t at) {
    stretches_.back().end = at;
    stretches_.emplace_back().begin = at;
  };
  for (size_t i = bound_.refresh_nodes(); i < nodes.size() && !groups_.empty(); ++i) {
    const Op& op = nodes[i].op;
    if (op.kind == OpKind::all_reduce_start) {
      const Tensor& device = bound_.args(i).out[0];
      exchanges_.push_back(
          std::make_unique<Exchange>(Exchange{op.as<AllReduceAttrs>(), device, Tensor(), device_.fence()}));
      stretches_.back().starts = exchanges_.back().get();
      cut(i + 1);
    } else if (op.kind == OpKind::all_reduce_wait) {
      cut(i);
      const int64_t id = op.as<AllReduceAttrs>().id;
      for (const auto& exchange : exchanges_)
        if (exchange->attrs.id == id) stretches_.back().awaits = exchange.get();
      if (!stretches_.back().awaits) fail_usage("node " + nodes[i].name + " waits for what did not start");
    }
  }
  stretches_.back().end = nodes.size();
}

/// Queues stretch after stretch; not `to_the_end`: up to the first that needs what other ranks answer to the host.
void DeviceRun::go_on(bool to_the_end) {
  if (next_stretch_ == stretches_.size()) return;
  for (; next_stretch_ < stretches_.size(); ++next_stretch_) {
    Stretch& s = stretches_[next_stretch_];
    if (s.awaits) {
      queue_offered();
      if (s.awaits->peer_sum >= 0) {
        peers_->await(static_cast<size_t>(s.awaits->peer_sum));
      } else {
        if (!to_the_end) return;
        receive(*s.awaits);
      }
    }
    queue_stretch(s);
    if (s.starts) begin_exchange(*s.starts);
  }
  mirrors_.bring_back();
}

void DeviceRun::queue_stretch(Stretch& s) {
  constexpr size_t few = 3;  // not worth a recording between two messages
  const bool alone = stretches_.size() == 1;
  if (timed_ || (!alone && s.end - s.begin < few)) return queue_nodes(s.begin, s.end, timed_);
  if (!s.recording) s.recording = device_.record([&] { queue_nodes(s.begin, s.end, false); });
  s.recording->replay();
}

void DeviceRun::queue_nodes(size_t begin, size_t end, bool marks) {
  const std::vector<PlannedNode>& nodes = bound_.plan().nodes;
  // Without groups: a device's kernels talk to nobody, receive() does.
  for (size_t i = begin; i < end;) {
    const size_t next = bound_.next_turn(i);
    try {
      if (const auto* first = dynamic_cast<const Joinable*>(nodes[i].prepared.get())) {
        std::vector<KernelRun> all;
        for (size_t k = i; k < next; ++k) all.push_back({nodes[k].prepared.get(), bound_.args(k)});
        first->run_joined(all);
      } else {
        for (size_t k = i; k < next; ++k) nodes[k].prepared->run(bound_.args(k));
      }
    } catch (...) {
      rethrow_of(nodes[i]);
    }
    for (; i < next; ++i)
      if (marks) device_.mark();
  }
}

void DeviceRun::begin_exchange(Exchange& e) {
  if (e.peer_sum >= 0) {
    offered_.push_back(static_cast<size_t>(e.peer_sum));
    return peers_->offer(offered_.back());
  }
  // Here, since what goes from device to device needs none.
  if (e.host.empty()) e.host = Tensor(e.device.desc(), device_.allocate_host(e.device.desc().bytes()));
  device_.fetch(e.host.bytes(), e.device.bytes(), e.host.desc().bytes(), *e.arrived);
  fetched_.push_back(&e);
}

/// Behind all of the backward pass: a rank that waits here for another one keeps its device busy.
void DeviceRun::queue_offered() {
  for (size_t sum : offered_) peers_->queue(sum);
  offered_.clear();
}

/// Waits for what other ranks answer and queues it to the device. All that is on its way to the host is told to them
/// first, in the order of the plan, which all ranks share.
void DeviceRun::receive(Exchange& e) {
  const auto group = [&](const Exchange& x) { return groups_[static_cast<size_t>(x.attrs.group)]; };
  for (Exchange* sent : fetched_) {
    while (!sent->arrived->passed()) groups_[0]->progress(), std::this_thread::yield();
    group(*sent)->start(sent->attrs.id, all_reduce(sent->host, sent->attrs));
  }
  fetched_.clear();
  group(e)->wait(e.attrs.id);
  device_.upload(e.device.bytes(), e.host.bytes(), e.host.desc().bytes());
}

bool DeviceRun::meet_peers(Communicator& world, const std::function<std::shared_ptr<Buffer>(int64_t bytes)>& flags) {
  if (stretches_.empty()) cut_stretches();
  constexpr int64_t least = 1024;  // elements: less is as fast through the host
  std::vector<PeerSum> sums;
  std::vector<Exchange*> chosen;
  for (const auto& e : exchanges_) {
    const int64_t elements = e->device.shape().elements();
    const bool plain = e->device.dtype() == DType::f32 && e->attrs.wire == DType::f32 && e->attrs.group == 0;
    if (!plain || elements < least || elements % 4 != 0) continue;
    sums.push_back({e->device.bytes(), elements, 1.0 / double(e->attrs.ranks)});
    chosen.push_back(e.get());
  }
  if (sums.empty()) return false;
  const auto shared = flags(Device::peer_flag_bytes(world.size(), sums.size()));
  if (shared) peers_ = device_.peer_sums(world, bound_.arena(), std::move(sums), shared);
  for (size_t i = 0; i < chosen.size() && peers_; ++i) chosen[i]->peer_sum = static_cast<int64_t>(i);
  return peers_ != nullptr;
}

void DeviceRun::leave_peers() {
  if (!peers_) return;
  peers_->leave();
  peers_.reset();
  for (const auto& exchange : exchanges_) exchange->peer_sum = -1;
}

Tensor DeviceRun::copy_of(const Tensor& t) const {
  const Tensor copy(t.desc(), std::make_shared<Buffer>(t.desc().span_bytes(), Buffer::Fill::none));
  device_.download(copy.bytes(), t.bytes(), t.desc().span_bytes());
  device_.synchronize();
  return copy;
}

/// Of the nodes between the marks of a run that was queued node by node.
void DeviceRun::note_times() {
  NodeTimes::Clock::time_point at = started_;
  std::vector<size_t> turn;
  for (size_t i = bound_.refresh_nodes(); i < bound_.plan().nodes.size();) {
    const size_t next = bound_.next_turn(i);
    double seconds = 0;
    turn.clear();
    for (; i < next; ++i) turn.push_back(i), seconds += device_.seconds_after(i - bound_.refresh_nodes());
    const auto duration = std::chrono::round<NodeTimes::Clock::duration>(std::chrono::duration<double>(seconds));
    times_.note(bound_.plan(), turn, at, duration);
    at += duration;
  }
}

}  // namespace convoy
