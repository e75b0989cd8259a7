#include "core/executor.h"

#include <cstring>
#include <thread>

#include "core/all_finite.h"
#include "core/flush_subnormals.h"
#include "core/ops/communication.h"

namespace convoy {
namespace {

/// Kept values of more bytes (logits of images) are copied from a device when the host asks for them.
constexpr int64_t late_bytes = int64_t{1} << 20;

double microseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

/// This rank's elements of what an update reads and writes; the rest of its operands as they are.
Tensor share_of(const Tensor& t, int64_t elements, const Part& part) {
  if (part.count == 0 || t.shape().elements() != elements) return t;
  return Tensor(TensorDesc(Shape::vector(part.count), t.dtype()), t.bytes() + part.begin * size_of(t.dtype()));
}

}  // namespace

Executor::Executor(Plan plan, const StateStore& store, std::shared_ptr<Buffer> arena, std::shared_ptr<Buffer> shared)
    : plan_(std::move(plan)), arena_(std::move(arena)), shared_(std::move(shared)) {
  if (arena_->bytes() < plan_.arena_bytes)
    fail_runtime("the arena has " + std::to_string(arena_->bytes()) + " bytes, the plan needs " +
                 std::to_string(plan_.arena_bytes));
  if (plan_.shared_bytes > 0 && (!shared_ || shared_->bytes() < plan_.shared_bytes))
    fail_runtime("the plan needs " + std::to_string(plan_.shared_bytes) + " bytes of memory shared with its team");
  bind(store);
}

Executor::Executor(Plan plan, const StateStore& store, std::shared_ptr<Buffer> arena, Device& device,
                   const StateStore& states)
    : plan_(std::move(plan)), arena_(std::move(arena)), device_(&device) {
  if (plan_.shared_bytes + plan_.shared_state_bytes > 0) fail_usage("a device has no memory to share with a team");
  mirror_of_.assign(plan_.values.size(), -1);
  bind(states);
  std::vector<bool> written(plan_.values.size());
  for (const PlannedNode& node : plan_.nodes)
    for (ValueId id : node.out) written[static_cast<size_t>(id)] = true;
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    const Value& value = plan_.values[v];
    if (tensors_[v].empty()) continue;
    const bool control = value.kind == ValueKind::state && value.desc.dtype == DType::f64;
    const bool input = value.kind == ValueKind::input;
    if (!control && !input && !value.keep) continue;
    if (!value.desc.dense()) fail_usage("value " + value.name + " is a slice: the host cannot see it");
    mirror_of_[v] = static_cast<int>(mirrors_.size());
    const Tensor host = control ? store.get(value.name) : Tensor(value.desc, device.allocate_host(value.desc.bytes()));
    mirrors_.push_back({v, host, input ? device.allocate(value.desc.bytes()) : nullptr,
                        control ? device.allocate_host(value.desc.bytes()) : nullptr, control,
                        control ? written[v] : value.keep && !input});
    mirrors_.back().late = value.keep && !input && value.desc.bytes() > late_bytes;
  }
}

void Executor::bind(const StateStore& store) {
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    const Value& value = plan_.values[v];
    if (value.kind == ValueKind::state)
      tensors_.push_back(store.contains(value.name) ? store.get(value.name) : Tensor());
    else if (plan_.offset[v] >= 0)
      tensors_.emplace_back(value.desc, arena_, plan_.offset[v]);
    else if (!plan_.shared_offset.empty() && plan_.shared_offset[v] >= 0)
      tensors_.emplace_back(value.desc, shared_, plan_.shared_offset[v]);
    else
      tensors_.emplace_back();
  }
  for (const PlannedNode& node : plan_.nodes) {
    Bound bound;
    const int64_t elements = node.part.count > 0 ? tensor(node.in[0]).shape().elements() : 0;
    for (ValueId id : node.in) bound.in.push_back(share_of(tensor(id), elements, node.part));
    for (ValueId id : node.out) bound.out.push_back(share_of(tensor(id), elements, node.part));
    for (ValueId id : node.packed) bound.packed.push_back(tensor(id).bytes());
    bound.workspace = arena_->data() + node.workspace_offset;
    bound_.push_back(std::move(bound));
    refresh_nodes_ += node.refresh;
  }
  times_.resize(plan_.nodes.size());
}

const Tensor& Executor::tensor(ValueId id) const {
  if (!mirror_of_.empty() && mirror_of_.at(static_cast<size_t>(id)) >= 0) {
    const Mirror& m = mirrors_[static_cast<size_t>(mirror_of_[static_cast<size_t>(id)])];
    if (m.behind) {
      device_->download(m.host.bytes(), tensors_[m.value].bytes(), m.host.desc().bytes());
      device_->synchronize();
      m.behind = false;
    }
    return m.host;
  }
  const Tensor& t = tensors_.at(static_cast<size_t>(id));
  if (t.empty()) fail_usage("value " + plan_.values[static_cast<size_t>(id)].name + " has no storage in this plan");
  return t;
}

SharedWindow Executor::window() const {
  if (plan_.window_bytes == 0) return {};
  return {shared_->data() + plan_.window_begin, plan_.window_bytes, plan_.window_bytes};
}

void Executor::set_groups(std::vector<Communicator*> groups) {
  for (const PlannedNode& node : plan_.nodes) {
    const auto* a = std::get_if<AllReduceAttrs>(&node.op.attrs);
    if (!a || groups.empty()) continue;
    const auto group = static_cast<size_t>(a->group);
    const int64_t found = group < groups.size() && groups[group] ? groups[group]->size() : 0;
    if (found != a->ranks)
      fail_usage(node.name + ": expected a group of " + std::to_string(a->ranks) + " ranks, found " +
                 (found ? std::to_string(found) : "none"));
  }
  groups_ = std::move(groups);
}

void Executor::refresh() {
  if (!device_) return run_nodes(0, refresh_nodes_);
  queue_nodes(0, refresh_nodes_, false);
  device_->synchronize();
}
void Executor::run() {
  if (device_) {
    stage_inputs(), start(), finish();
    return;
  }
  const FlushSubnormals flush(plan_.threads);
  if (plan_.shared_bytes + plan_.shared_state_bytes == 0) return run_nodes(refresh_nodes_, plan_.nodes.size());
  if (!team_) fail_usage("a plan that shares memory runs with its team: set_team");
  run_nodes(0, plan_.team_nodes);
  team_->barrier();  // everybody's packs are there
  run_nodes(plan_.team_nodes, plan_.first_update);
  if (plan_.shared_state_bytes > 0) team_->barrier();  // nobody reads the parameters of this step any more
  run_nodes(plan_.first_update, plan_.nodes.size());
  team_->barrier();  // everybody's parameters are there, and nobody reads packs any more
}

void Executor::stage_inputs() {
  if (!device_) return;
  for (const Mirror& m : mirrors_)
    if (m.staging) device_->stage(m.staging->data(), m.host.bytes(), m.host.desc().bytes());
  staged_ = true;
}

/// Queues what was staged, and control states, to where the plan wants them.
void Executor::place_inputs() {
  device_->await_staged();
  for (const Mirror& m : mirrors_) {
    if (m.staging) device_->copy(tensors_[m.value].bytes(), m.staging->data(), m.host.desc().bytes());
    if (m.locked) std::memcpy(m.locked->data(), m.host.bytes(), static_cast<size_t>(m.host.desc().bytes()));
    if (m.up) device_->upload(tensors_[m.value].bytes(), m.traveller(), m.host.desc().bytes());
  }
  device_->staging_free();
  staged_ = false;
}

void Executor::start() {
  if (!device_) return run();
  if (!staged_) fail_usage("start: no inputs were staged");
  place_inputs();
  started_ = Clock::now();
  // The first run, node by node, also loads every kernel: loading cannot be recorded.
  timed_ = eager_ || !warm_;
  if (timed_) device_->clear_marks(), device_->mark();
  if (stretches_.empty()) cut_stretches();
  next_stretch_ = 0;
  go_on(false);
  warm_ = true;
}

void Executor::cut_stretches() {
  stretches_.emplace_back().begin = refresh_nodes_;
  const auto cut = [&](size_t at) {
    stretches_.back().end = at;
    stretches_.emplace_back().begin = at;
  };
  for (size_t i = refresh_nodes_; i < plan_.nodes.size() && !groups_.empty(); ++i) {
    const Op& op = plan_.nodes[i].op;
    if (op.kind == OpKind::all_reduce_start) {
      const Tensor& device = bound_[i].out[0];
      exchanges_.push_back(
          std::make_unique<Exchange>(Exchange{op.as<AllReduceAttrs>(), device, Tensor(), device_->fence()}));
      stretches_.back().starts = exchanges_.back().get();
      cut(i + 1);
    } else if (op.kind == OpKind::all_reduce_wait) {
      cut(i);
      const int64_t id = op.as<AllReduceAttrs>().id;
      for (const auto& exchange : exchanges_)
        if (exchange->attrs.id == id) stretches_.back().awaits = exchange.get();
      if (!stretches_.back().awaits) fail_usage("node " + plan_.nodes[i].name + " waits for what did not start");
    }
  }
  stretches_.back().end = plan_.nodes.size();
}

void Executor::go_on(bool to_the_end) {
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
    if (!s.starts) continue;
    if (s.starts->peer_sum >= 0) {
      offered_.push_back(static_cast<size_t>(s.starts->peer_sum));
      peers_->offer(offered_.back());
      continue;
    }
    Exchange& e = *s.starts;
    // Here, since what goes from device to device needs none.
    if (e.host.empty()) e.host = Tensor(e.device.desc(), device_->allocate_host(e.device.desc().bytes()));
    device_->fetch(e.host.bytes(), e.device.bytes(), e.host.desc().bytes(), *e.arrived);
    fetched_.push_back(&e);
  }
  for (const Mirror& m : mirrors_) {
    m.behind = m.late;
    if (m.down && !m.late) device_->download(m.traveller(), tensors_[m.value].bytes(), m.host.desc().bytes());
  }
}

/// Behind all of the backward pass: a rank that waits here for another one keeps its device busy.
void Executor::queue_offered() {
  for (size_t sum : offered_) peers_->queue(sum);
  offered_.clear();
}

bool Executor::meet_peers(Communicator& world, const std::function<std::shared_ptr<Buffer>(int64_t bytes)>& flags) {
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
  if (shared) peers_ = device_->peer_sums(world, arena_, std::move(sums), shared);
  for (size_t i = 0; i < chosen.size() && peers_; ++i) chosen[i]->peer_sum = static_cast<int64_t>(i);
  return peers_ != nullptr;
}

void Executor::leave_peers() {
  if (!peers_) return;
  peers_->leave();
  peers_.reset();
  for (const auto& exchange : exchanges_) exchange->peer_sum = -1;
}

void Executor::queue_stretch(Stretch& s) {
  constexpr size_t few = 3;  // not worth a recording between two messages
  const bool alone = stretches_.size() == 1;
  if (timed_ || (!alone && s.end - s.begin < few)) return queue_nodes(s.begin, s.end, timed_);
  if (!s.recording) s.recording = device_->record([&] { queue_nodes(s.begin, s.end, false); });
  s.recording->replay();
}

/// Waits for what other ranks answer and queues it to the device. All that is on its way to the host is told to them
/// first, in the order of the plan, which all ranks share.
void Executor::receive(Exchange& e) {
  const auto group = [&](const Exchange& x) { return groups_[static_cast<size_t>(x.attrs.group)]; };
  for (Exchange* sent : fetched_) {
    while (!sent->arrived->passed()) groups_[0]->progress(), std::this_thread::yield();
    group(*sent)->start(sent->attrs.id, all_reduce(sent->host, sent->attrs));
  }
  fetched_.clear();
  group(e)->wait(e.attrs.id);
  device_->upload(e.device.bytes(), e.host.bytes(), e.host.desc().bytes());
}

void Executor::inputs_free() {
  if (device_) device_->wait_until_staged();
}

void Executor::finish() {
  if (!device_) return;
  go_on(true);
  device_->synchronize();
  for (const Mirror& m : mirrors_)
    if (m.locked && m.down) std::memcpy(m.host.bytes(), m.locked->data(), static_cast<size_t>(m.host.desc().bytes()));
  if (!timed_) return;
  double at = microseconds(started_.time_since_epoch());
  for (size_t i = refresh_nodes_; i < plan_.nodes.size();) {
    const size_t next = i + static_cast<size_t>(plan_.nodes[i].sweep_size);
    double seconds = 0;
    turn_.clear();
    for (; i < next; ++i) turn_.push_back(i), seconds += device_->seconds_after(i - refresh_nodes_);
    note_times(at, 1e6 * seconds);
    at += 1e6 * seconds;
  }
}

void Executor::queue_nodes(size_t begin, size_t end, bool marks) {
  for (size_t i = begin; i < end;) {
    const size_t next = i + static_cast<size_t>(plan_.nodes[i].sweep_size);
    if (const auto* first = dynamic_cast<const Joinable*>(plan_.nodes[i].prepared.get())) {
      std::vector<KernelRun> all;
      for (size_t k = i; k < next; ++k) all.push_back({plan_.nodes[k].prepared.get(), args_of(k)});
      first->run_joined(all);
    } else {
      for (size_t k = i; k < next; ++k) plan_.nodes[k].prepared->run(args_of(k));
    }
    for (; i < next; ++i)
      if (marks) device_->mark();
  }
}

Tensor Executor::on_host(const Tensor& t) {
  if (!device_) return t;
  const Tensor copy(t.desc(), std::make_shared<Buffer>(t.desc().span_bytes(), Buffer::Fill::none));
  device_->download(copy.bytes(), t.bytes(), t.desc().span_bytes());
  device_->synchronize();
  return copy;
}

void Executor::run_nodes(size_t begin, size_t end) {
  Clock::time_point before = Clock::now();
  for (size_t i = begin; i < end;) {
    const size_t next = i + static_cast<size_t>(plan_.nodes[i].sweep_size);
    turn_.clear();
    for (; i < next; ++i)
      if (const int owner = plan_.nodes[i].owner; owner < 0 || owner == team_->rank()) turn_.push_back(i);
    if (turn_.empty()) continue;
    if (turn_.size() == 1)
      plan_.nodes[turn_[0]].prepared->run(args_of(turn_[0]));
    else
      run_together();
    const Clock::time_point after = Clock::now();
    note_times(microseconds(before.time_since_epoch()), microseconds(after - before));
    before = after;
    if (!groups_.empty()) {
      groups_[0]->progress();
      before = Clock::now();
    }
  }
}

KernelArgs Executor::args_of(size_t node) const {
  const Bound& b = bound_[node];
  // A device's kernels talk to nobody: receive() does.
  return {b.in, b.out, b.packed, b.workspace, device_ ? std::span<Communicator* const>() : groups_};
}

void Executor::run_together() {
  swept_.clear();
  for (size_t i : turn_) swept_.push_back({static_cast<const Sweep*>(plan_.nodes[i].prepared.get()), args_of(i)});
  run_sweeps(swept_, plan_.threads, swept_elements_);
}

/// Nodes that ran together share the time by their bytes.
void Executor::note_times(double start_us, double duration_us) {
  double bytes = 0;
  for (size_t i : turn_) bytes += double(plan_.nodes[i].bytes);
  for (size_t i : turn_) {
    const double duration = duration_us * (turn_.size() == 1 ? 1 : double(plan_.nodes[i].bytes) / bytes);
    times_[i].add(1e-6 * duration);
    if (tracing_) trace_.push_back({static_cast<int>(i), start_us, duration});
    start_us += duration;
  }
}

std::string Executor::find_non_finite() {
  const FlushSubnormals flush(plan_.threads);  // as in the step that is looked into
  if (device_) stage_inputs(), place_inputs();
  for (size_t i = 0; i < plan_.nodes.size(); ++i) {
    const PlannedNode& node = plan_.nodes[i];
    if (op_def(node.op.kind).updated_inputs > 0 || node.owner >= 0) continue;  // shared packs are what they were
    for (size_t k = 0; k < node.in.size(); ++k)
      if (plan_.values[static_cast<size_t>(node.in[k])].kind != ValueKind::temporary &&
          !all_finite(on_host(bound_[i].in[k])))
        return plan_.values[static_cast<size_t>(node.in[k])].name;
    node.prepared->run({bound_[i].in, bound_[i].out, bound_[i].packed, bound_[i].workspace});
    for (const Tensor& out : bound_[i].out)
      if (!all_finite(on_host(out))) return node.name;
  }
  return {};
}

void Executor::reset_times() {
  times_.assign(times_.size(), {});
}

}  // namespace convoy
