#include "dist/collectives.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/flush_subnormals.h"
#include "dist/add_up.h"

namespace convoy {
namespace {

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

/// Tags of all-reduces take turns; blocking operations come one at a time and need no more.
constexpr int tags = 1 << 12;
constexpr size_t longest_message = size_t{1} << 30;

template <class Half>
void narrow(const float* from, std::byte* to, int64_t count) {
  auto* half = reinterpret_cast<Half*>(to);
  for (int64_t i = 0; i < count; ++i) half[i] = Half(from[i]);
}
template <class Half>
void widen(const std::byte* from, float* to, int64_t count) {
  const auto* half = reinterpret_cast<const Half*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = float(half[i]);
}

void to_wire(DType wire, const float* from, std::byte* to, int64_t count) {
  wire == DType::bf16 ? narrow<bf16>(from, to, count) : narrow<f16>(from, to, count);
}
void from_wire(DType wire, const std::byte* from, float* to, int64_t count) {
  wire == DType::bf16 ? widen<bf16>(from, to, count) : widen<f16>(from, to, count);
}

template <class T>
void multiply(std::byte* data, Piece piece, double scale) {
  T* values = reinterpret_cast<T*>(data) + piece.begin;
  for (int64_t i = 0; i < piece.count; ++i) values[i] *= static_cast<T>(scale);
}

void multiply(DType type, std::byte* data, Piece piece, double scale) {
  if (scale == 1) return;
  type == DType::f64 ? multiply<double>(data, piece, scale) : multiply<float>(data, piece, scale);
}

Piece whole(const AllReduce& what) {
  return {0, static_cast<int64_t>(what.data.size()) / size_of(what.type)};
}
bool converts(const AllReduce& what) {
  return what.wire != what.type;
}

std::vector<Piece> equal_parts(int64_t count, int parts) {
  std::vector<Piece> list;
  for (int i = 0; i < parts; ++i) list.push_back({i * count, count});
  return list;
}

}  // namespace

Collectives::Collectives(std::shared_ptr<Transport> transport, CommunicationOptions options)
    : transport_(std::move(transport)), options_(std::move(options)) {
  const std::vector<int>& nodes = transport_->nodes();
  std::map<int, int> filled;
  std::vector<int> place;
  for (int r = 0; r < size(); ++r) {
    all_.push_back(r);
    place.push_back(filled[nodes[static_cast<size_t>(r)]]++);
  }
  const auto me = static_cast<size_t>(rank());
  for (int r = 0; r < size(); ++r) {
    const auto i = static_cast<size_t>(r);
    if (nodes[i] == nodes[me]) {
      if (r == rank()) node_place_ = static_cast<int>(node_peers_.size());
      node_peers_.push_back(r);
    }
    if (place[i] == place[me]) {
      if (r == rank()) column_place_ = static_cast<int>(column_.size());
      column_.push_back(r);
    }
  }
  if (!transport_->shared().empty())
    shared_ = std::make_unique<SharedReduction>(transport_->shared(), transport_->shared_bytes(), node_place_);
}

Collectives::~Collectives() {
  stop_ = true;
  if (progress_.joinable()) progress_.join();
}

void Collectives::set_options(CommunicationOptions options) {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, op] : operations_)
    if (op.active) fail_runtime("communication options changed while " + op.what.name + " is under way");
  options_ = std::move(options);
  plans_.clear();
}

void Collectives::prepare(const AllReduce& what) {
  const std::lock_guard lock(mutex_);
  if (size() > 1) plan_for(what);
}

void Collectives::set_window(const SharedWindow& window) {
  const std::lock_guard lock(mutex_);
  if (shared_) shared_->set_window(window);
}

void Collectives::start_progress_thread() {
  progress_ = std::thread([this] {
    while (!stop_) {
      bool active = false;
      try {
        const std::lock_guard lock(mutex_);
        for (auto& [id, op] : operations_) active = active || op.active;
        if (active) advance_all();
      } catch (...) {  // told by the next wait
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
        return;
      }
      active ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
}

ReductionProblem Collectives::problem(int64_t bytes, bool narrowed) const {
  ReductionProblem p;
  p.bytes = bytes;
  p.nodes = transport_->nodes();
  p.shares_memory = shared_ != nullptr;
  p.native = transport_->has_native();
  p.rank_order = options_.deterministic;
  p.converts = narrowed;
  return p;
}

AlgorithmChoice Collectives::choice(int64_t bytes, DType type, DType wire) const {
  return choose_algorithm(problem(bytes, type != wire), options_);
}

std::shared_ptr<const Collectives::Stages> Collectives::plan_for(const AllReduce& what) {
  const auto bytes = static_cast<int64_t>(what.data.size());
  std::shared_ptr<const Stages>& plan = plans_[{bytes, what.type, what.wire, what.scale}];
  if (plan) return plan;
  Stages stages;
  // Values that travel narrowed are scaled before they leave: a sum of many could overflow.
  const double scale = converts(what) ? 1 : what.scale;
  using Part = SharedReduction::Part;
  const auto schedule = [&](Schedule s, double factor) {
    stages.push_back({Stage::Kind::schedule, std::move(s), {}, factor});
  };
  const auto shared = [&](Part part, double factor) { stages.push_back({Stage::Kind::shared, {}, part, factor}); };
  const Members everybody{all_, rank(), whole(what)};
  switch (choice(bytes, what.type, what.wire).algorithm) {
    case Algorithm::shared:
      shared(Part::all_reduce, scale);
      break;
    case Algorithm::hierarchical:
      shared(Part::reduce_scatter, 1);
      schedule(halving_schedule({column_, column_place_,
                                 part_of(everybody.range, node_place_, static_cast<int>(node_peers_.size()))}),
               scale);
      shared(Part::all_gather, 1);
      break;
    case Algorithm::direct:
      schedule(direct_schedule(everybody), scale);
      break;
    case Algorithm::doubling:
      schedule(doubling_schedule(everybody), scale);
      break;
    case Algorithm::halving:
      schedule(halving_schedule(everybody), scale);
      break;
    case Algorithm::ring:
      schedule(ring_schedule(everybody), scale);
      break;
    case Algorithm::native:
      stages.push_back({Stage::Kind::native, {}, {}, scale});
      break;
  }
  return plan = std::make_shared<const Stages>(std::move(stages));
}

void Collectives::begin(Operation& op, std::shared_ptr<const Stages> stages, const AllReduce& what, int tag) {
  if (op.active) fail_runtime(what.name + " is started a second time");
  op.what = what;
  op.stages = std::move(stages);
  op.active = true;
  op.tag = tag;
  op.stage = op.round = 0;
  op.posted = false;
  op.started = Clock::now();
  const bool uses_shared =
      std::any_of(op.stages->begin(), op.stages->end(), [](const Stage& s) { return s.kind == Stage::Kind::shared; });
  op.serial = uses_shared ? next_serial_++ : -1;
  if (!converts(what)) return;
  multiply(what.type, what.data.data(), whole(what), what.scale);
  // Which rank adds up an element depends on the cut into buckets: its own value must not be finer than the others'.
  if (options_.deterministic) round_to_wire(op, whole(what));
}

/// Leaves what the wire's type can hold of a piece.
void Collectives::round_to_wire(Operation& op, Piece piece) {
  auto* values = reinterpret_cast<float*>(op.what.data.data()) + piece.begin;
  op.outgoing.resize(std::max(op.outgoing.size(), static_cast<size_t>(piece.count * size_of(op.what.wire))));
  to_wire(op.what.wire, values, op.outgoing.data(), piece.count);
  from_wire(op.what.wire, op.outgoing.data(), values, piece.count);
}

void Collectives::start(int64_t id, const AllReduce& what) {
  const auto before = Clock::now();
  const FlushSubnormals flush(1);  // what is scaled here
  transport_->alive();
  const std::lock_guard lock(mutex_);
  if (size() == 1) return multiply(what.type, what.data.data(), whole(what), what.scale);
  const auto tag = static_cast<int>(next_tag_ % tags);
  for (const auto& [other, op] : operations_)
    if (op.active && op.tag == tag)
      fail_usage("expected at most " + std::to_string(tags) + " all-reduces under way: " + what.name +
                 " is started before " + op.what.name + " has ended");
  begin(operations_[id], plan_for(what), what, tag);
  ++next_tag_;
  ++times_.reductions;
  times_.bytes += static_cast<int64_t>(what.data.size()) / size_of(what.type) * size_of(what.wire);
  advance_all();
  times_.exposed += seconds_between(before, Clock::now());
}

void Collectives::wait(int64_t id) {
  const auto before = Clock::now();
  transport_->alive();
  const auto found = [&] {
    const std::lock_guard lock(mutex_);
    return operations_.find(id);
  }();
  if (found == operations_.end()) return;
  if (first_wait_ == 0) first_wait_ = std::chrono::duration<double>(before.time_since_epoch()).count();
  wait_for(found->second);
  const std::lock_guard lock(mutex_);
  times_.exposed += seconds_between(before, Clock::now());
}

std::string Collectives::reason(const Operation& op) const {
  std::set<int> peers;
  // The shared memory may be busy with an earlier operation: whoever keeps that one keeps this one.
  const Operation* held = &op;
  if (op.serial >= 0 && op.serial != serving_)
    for (const auto& [id, other] : operations_)
      if (other.active && other.serial == serving_) held = &other;
  if (held->stage < held->stages->size()) {
    const Stage& stage = (*held->stages)[held->stage];
    if (stage.kind == Stage::Kind::shared && shared_busy_)
      for (int place : shared_->missing()) peers.insert(node_peers_[static_cast<size_t>(place)]);
    if (stage.kind == Stage::Kind::schedule && held->round < stage.schedule.rounds.size())
      for (const auto* list : {&stage.schedule.rounds[held->round].sends, &stage.schedule.rounds[held->round].receives})
        for (const Transfer& t : *list) peers.insert(t.peer);
  }
  std::string text = op.what.name;
  if (!peers.empty()) text += peers.size() > 1 ? ", for ranks" : ", for rank";
  for (int peer : peers) text.append(" ").append(std::to_string(peer));
  return text;
}

void Collectives::wait_for(Operation& op) {
  // Ranks that all wait hand pieces over while those are in the caches. Who waits for one that computes fills the
  // area, for that one to find much to do when it comes by.
  constexpr int64_t close = 2;
  constexpr int64_t patience = 1000;
  spin(
      [&](int64_t spins) {
        if (!op.active) return true;
        if (failure_) std::rethrow_exception(failure_);
        advance_all(spins < patience ? close : everything);
        return !op.active;
      },
      [&] { return reason(op); });
}

void Collectives::wait_until(const std::function<bool()>& holds, const std::string& name) {
  const auto before = Clock::now();
  if (first_wait_ == 0) first_wait_ = std::chrono::duration<double>(before.time_since_epoch()).count();
  spin(
      [&](int64_t) {
        if (holds()) return true;
        if (failure_) std::rethrow_exception(failure_);
        advance_all();
        return false;
      },
      [&] { return name; });
  const std::lock_guard lock(mutex_);
  times_.exposed += seconds_between(before, Clock::now());
}

void Collectives::spin(const std::function<bool(int64_t spins)>& finished, const std::function<std::string()>& what) {
  const auto start = Clock::now();
  bool told = false;
  for (int64_t spins = 0;; ++spins) {
    {
      const std::lock_guard lock(mutex_);
      if (finished(spins)) break;
      // Asking the clock every time would cost more than a poll.
      if (spins % 256 == 255)
        if (const double waited = seconds_between(start, Clock::now()); waited > 0.002) {
          transport_->waiting(what(), waited);
          told = true;
        }
    }
    // Ranks may share a core: give the one that is waited for its turn.
    if (spins > 100) std::this_thread::yield();
  }
  if (told) transport_->alive();
}

void Collectives::progress() {
  const auto before = Clock::now();
  transport_->alive();
  const std::lock_guard lock(mutex_);
  const bool any = std::any_of(operations_.begin(), operations_.end(), [](const auto& o) { return o.second.active; });
  if (!any) return;
  advance_all();
  times_.exposed += seconds_between(before, Clock::now());
}

void Collectives::advance_all(int64_t ahead) {
  // Who adds must not show in a sum: a step, the host of a device, a wait between steps, the progress thread.
  const FlushSubnormals flush(1);
  for (auto& [id, op] : operations_) {
    if (!op.active || !advance(op, ahead)) continue;
    op.active = false;
    const double seconds = seconds_between(op.started, Clock::now());
    times_.in_flight += seconds;
    if (tracing_ && id >= 0)
      trace_.push_back({op.what.name, id, static_cast<int64_t>(op.what.data.size()),
                        std::chrono::duration<double, std::micro>(op.started.time_since_epoch()).count(),
                        1e6 * seconds});
  }
}

bool Collectives::advance(Operation& op, int64_t ahead) {
  while (op.stage < op.stages->size()) {
    const Stage& stage = (*op.stages)[op.stage];
    if (stage.kind == Stage::Kind::shared) {
      // The ranks of a node must use the areas in the same order: that in which the operations were started.
      if (op.serial != serving_) return false;
      if (!shared_busy_) {
        shared_->start(stage.part, op.what.data.data(), op.what.type, whole(op.what), stage.scale, options_.threads);
        shared_busy_ = true;
      }
      if (!shared_->advance(ahead)) return false;
      shared_busy_ = false;
      const bool last = std::none_of(op.stages->begin() + static_cast<std::ptrdiff_t>(op.stage) + 1, op.stages->end(),
                                     [](const Stage& s) { return s.kind == Stage::Kind::shared; });
      if (last) ++serving_;
      // Through memory nothing is narrowed; messages would have rounded the mean.
      if (last && options_.deterministic && converts(op.what)) round_to_wire(op, whole(op.what));
    } else if (stage.kind == Stage::Kind::native) {
      if (!op.posted) op.messages = {transport_->start_native(op.what.data, op.what.type)}, op.posted = true;
      if (!transport_->done(op.messages[0])) return false;
      op.messages.clear(), op.posted = false;
      multiply(op.what.type, op.what.data.data(), whole(op.what), stage.scale);
    } else if (!advance_schedule(op, stage)) {
      return false;
    }
    ++op.stage, op.round = 0;
  }
  return true;
}

bool Collectives::advance_schedule(Operation& op, const Stage& stage) {
  while (op.round < stage.schedule.rounds.size()) {
    const Round& round = stage.schedule.rounds[op.round];
    if (!op.posted) post(op, round), op.posted = true;
    while (!op.messages.empty() && transport_->done(op.messages.back())) op.messages.pop_back();
    if (!op.messages.empty()) return false;
    complete(op, round);
    for (const Piece& piece : round.finished) {
      multiply(op.what.type, op.what.data.data(), piece, stage.scale);
      if (converts(op.what)) round_to_wire(op, piece);  // everybody gets what the others can be told
    }
    op.posted = false;
    ++op.round;
  }
  return true;
}

void Collectives::post(Operation& op, const Round& round) {
  const bool narrowed = converts(op.what);
  const int64_t size = size_of(narrowed ? op.what.wire : op.what.type);
  std::byte* data = op.what.data.data();
  const Schedule& schedule = (*op.stages)[op.stage].schedule;
  if (static_cast<int64_t>(op.scratch.size()) < schedule.scratch * size)
    op.scratch.resize(static_cast<size_t>(schedule.scratch * size));
  int64_t out = 0, in = 0;
  for (const Transfer& t : round.sends) out += t.piece.count * size;
  for (const Transfer& t : round.receives) in += t.scratch == Transfer::in_place ? t.piece.count * size : 0;
  if (narrowed) {
    if (static_cast<int64_t>(op.outgoing.size()) < out) op.outgoing.resize(static_cast<size_t>(out));
    if (static_cast<int64_t>(op.incoming.size()) < in) op.incoming.resize(static_cast<size_t>(in));
  }
  const auto bytes = [&](const Transfer& t) { return static_cast<size_t>(t.piece.count * size); };
  // MPI counts are ints.
  const auto in_messages = [&](int peer, auto data_of, size_t length, auto send_or_receive) {
    for (size_t at = 0; at < length; at += longest_message)
      op.messages.push_back(send_or_receive(peer, data_of.subspan(at, std::min(longest_message, length - at))));
  };
  in = out = 0;
  for (const Transfer& t : round.receives) {
    std::byte* to = t.scratch != Transfer::in_place ? op.scratch.data() + t.scratch * size
                    : narrowed                      ? op.incoming.data() + in
                                                    : data + t.piece.begin * size;
    if (t.scratch == Transfer::in_place) in += t.piece.count * size;
    in_messages(t.peer, std::span(to, bytes(t)), bytes(t),
                [&](int peer, std::span<std::byte> part) { return transport_->receive(peer, op.tag, part); });
  }
  for (const Transfer& t : round.sends) {
    const std::byte* from = data + t.piece.begin * size;
    if (narrowed) {
      to_wire(op.what.wire, reinterpret_cast<const float*>(data) + t.piece.begin, op.outgoing.data() + out,
              t.piece.count);
      from = op.outgoing.data() + out;
      out += t.piece.count * size;
    }
    in_messages(t.peer, std::span(from, bytes(t)), bytes(t),
                [&](int peer, std::span<const std::byte> part) { return transport_->send(peer, op.tag, part); });
  }
}

void Collectives::complete(Operation& op, const Round& round) {
  std::byte* data = op.what.data.data();
  const int64_t size = size_of(op.what.type), wire_size = size_of(op.what.wire);
  if (converts(op.what)) {
    auto* values = reinterpret_cast<float*>(data);
    int64_t in = 0;
    for (const Transfer& t : round.receives) {
      if (t.scratch != Transfer::in_place) continue;
      from_wire(op.what.wire, op.incoming.data() + in, values + t.piece.begin, t.piece.count);
      in += t.piece.count * wire_size;
    }
    std::vector<float> other;
    for (const Sum& sum : round.sums) {
      std::vector<float> total(static_cast<size_t>(sum.piece.count), -0.f);  // to which any first value adds itself
      other.resize(total.size());
      for (int64_t source : sum.sources) {
        const float* from = values + sum.piece.begin;
        if (source != Sum::own) {
          from_wire(op.what.wire, op.scratch.data() + source * wire_size, other.data(), sum.piece.count);
          from = other.data();
        }
        for (size_t i = 0; i < total.size(); ++i) total[i] += from[i];
      }
      std::copy(total.begin(), total.end(), values + sum.piece.begin);
    }
    return;
  }
  const auto sum_in = [&]<class T>(T*) {
    for (const Sum& sum : round.sums) {
      T* to = reinterpret_cast<T*>(data) + sum.piece.begin;
      std::vector<const T*> sources;
      for (int64_t s : sum.sources)
        sources.push_back(s == Sum::own ? to : reinterpret_cast<const T*>(op.scratch.data() + s * size));
      add_up<T>(sources, 1, sum.piece.count, options_.threads, to);
    }
  };
  op.what.type == DType::f64 ? sum_in(static_cast<double*>(nullptr)) : sum_in(static_cast<float*>(nullptr));
}

/// Blocking operations that add nothing travel as plain bytes.
void Collectives::run(Schedule schedule, const AllReduce& what) {
  constexpr int64_t blocking_bytes_id = -2;
  Operation* op;
  try {
    {
      const std::lock_guard lock(mutex_);
      op = &operations_[blocking_bytes_id];
      // perhaps not all ranks take part: no counting
      begin(*op, std::make_shared<const Stages>(Stages{{Stage::Kind::schedule, std::move(schedule), {}, 1}}), what,
            tags);
      advance_all();
    }
    wait_for(*op);
  } catch (...) {  // nobody may go on with the caller's memory
    const std::lock_guard lock(mutex_);
    operations_[blocking_bytes_id].active = false;
    throw;
  }
}

void Collectives::broadcast(std::span<std::byte> data, int root) {
  broadcast_among(all_, root, data);
}

void Collectives::broadcast_among(std::span<const int> ranks, int root, std::span<std::byte> data) {
  if (ranks.size() < 2 || data.empty()) return;
  const auto place = [&](int rank) {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end()) fail_usage("broadcast: rank " + std::to_string(rank) + " is not among the receivers");
    return static_cast<int>(found - ranks.begin());
  };
  const Members members{{ranks.begin(), ranks.end()}, place(rank()), {0, static_cast<int64_t>(data.size())}};
  run(broadcast_schedule(members, place(root)),
      {data, DType::u8, DType::u8, 1, "a broadcast from rank " + std::to_string(root)});
}

void Collectives::all_gather(std::span<const std::byte> part, std::span<std::byte> whole) {
  const auto bytes = static_cast<int64_t>(part.size());
  if (static_cast<int64_t>(whole.size()) != bytes * size())
    fail_usage("all_gather: " + std::to_string(size()) + " parts of " + std::to_string(bytes) + " bytes do not fill " +
               std::to_string(whole.size()));
  std::memcpy(whole.data() + rank() * bytes, part.data(), part.size());
  if (size() == 1 || bytes == 0) return;
  const Members members{all_, rank(), {0, bytes * size()}};
  run(gather_schedule(members, equal_parts(bytes, size())), {whole, DType::u8, DType::u8, 1, "an all-gather"});
}

void Collectives::barrier() {
  float nothing = 0;
  all_reduce_sum(std::span(&nothing, 1));
}

CommunicationTimes Collectives::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

}  // namespace convoy
