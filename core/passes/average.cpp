#include "core/passes/average.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/by_value.h"

namespace convoy {
namespace {

constexpr int64_t all_ranks = 0, batch_norm_group = 1;

AllReduceAttrs mean_over(int64_t ranks, int64_t group, int64_t id, DType wire) {
  return {.id = id, .group = group, .ranks = ranks, .wire = wire};
}

/// Index of the node that writes each value, -1 for inputs and states.
ByValue<int> writers(const Tape& tape) {
  ByValue<int> writer(tape.values().size(), -1);
  for (size_t i = 0; i < tape.nodes().size(); ++i)
    for (ValueId id : tape.nodes()[i].out) writer[id] = static_cast<int>(i);
  return writer;
}

DType wire_of(const TensorDesc& desc, const AveragingOptions& o) {
  return desc.dtype == DType::f32 ? o.wire : desc.dtype;
}

/// Gradients by bucket, in the order in which they become ready.
std::vector<std::vector<size_t>> fill_buckets(const Tape& tape, const std::vector<ValueId>& gradients, int64_t bytes) {
  const ByValue<int> writer = writers(tape);
  std::vector<size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return writer[gradients[a]] < writer[gradients[b]]; });
  std::vector<std::vector<size_t>> buckets;
  int64_t filled = 0;
  for (size_t i : order) {
    if (buckets.empty() || filled >= bytes) buckets.emplace_back(), filled = 0;
    buckets.back().push_back(i);
    filled += tape.desc(gradients[i]).bytes();
  }
  return buckets;
}

}  // namespace

void hoist(Tape& tape, const std::function<bool(const Node&)>& movable) {
  const std::vector<Node>& nodes = tape.nodes();
  const ByValue<int> writer = writers(tape);
  std::vector<int> place(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    place[i] = static_cast<int>(i);
    if (!movable(nodes[i])) continue;
    place[i] = -1;
    for (ValueId id : nodes[i].in)
      if (const int w = writer[id]; w >= 0) place[i] = std::max(place[i], place[static_cast<size_t>(w)]);
  }
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place[a] < place[b]; });
  std::vector<Node> moved;
  for (size_t i : order) moved.push_back(nodes[i]);
  tape.set_nodes(std::move(moved));
}

AveragedBuckets average_gradients(Tape& tape, std::span<const ValueId> parameters, std::vector<ValueId>& gradients,
                                  int64_t lag, const AveragingOptions& o) {
  AveragedBuckets result;
  const auto buckets = fill_buckets(tape, gradients, o.bucket_bytes);
  std::vector<ValueId> waiting;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const int64_t id = all_reduce_id(Averaged::bucket, int64_t(b));
    const std::string name = all_reduce_name(id);
    std::vector<ValueId> parts;
    for (size_t i : buckets[b]) parts.push_back(gradients[i]);
    ValueId bucket = tape.emit({OpKind::bucket, NoAttrs{}}, name + ".fill", parts);
    if (lag > 0) {
      StateInit none{StateInit::Kind::constant, NAN, 0, 0};
      const ValueId state = tape.state(name + ".lagged", tape.desc(bucket), none);
      result.lagged.push_back({bucket, state, id});
      bucket = state;
    } else {
      const AllReduceAttrs attrs = mean_over(o.ranks, all_ranks, id, wire_of(tape.desc(bucket), o));
      bucket = tape.emit({OpKind::all_reduce_start, attrs}, name + ".start", {bucket});
    }
    waiting.push_back(bucket);
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    const int64_t id = all_reduce_id(Averaged::bucket, int64_t(b));
    const std::string name = all_reduce_name(id);
    const AllReduceAttrs attrs = mean_over(o.ranks, all_ranks, id, wire_of(tape.desc(waiting[b]), o));
    const ValueId averaged = tape.emit({OpKind::all_reduce_wait, attrs}, name + ".wait", {waiting[b]});
    std::vector<ValueId> in{averaged};
    for (size_t i : buckets[b]) in.push_back(parameters[i]);  // for their shapes
    const std::vector<ValueId> out = tape.add({OpKind::unbucket, NoAttrs{}}, name + ".empty", in).out;
    for (size_t i = 0; i < buckets[b].size(); ++i) gradients[buckets[b][i]] = out[i];
    result.buckets.push_back(averaged);
  }
  return result;
}

void start_lagged(Tape& tape, const AveragedBuckets& averaged, const AveragingOptions& o) {
  for (const auto& [bucket, state, id] : averaged.lagged) {
    const AllReduceAttrs attrs = mean_over(o.ranks, all_ranks, id, wire_of(tape.desc(bucket), o));
    tape.add({OpKind::all_reduce_later, attrs}, all_reduce_name(id) + ".start", {bucket, state});
  }
}

ValueId average_value(Tape& tape, Averaged what, ValueId value, const AveragingOptions& o) {
  const AllReduceAttrs attrs = mean_over(o.ranks, all_ranks, all_reduce_id(what), tape.desc(value).dtype);
  const std::string name = all_reduce_name(attrs.id);
  const ValueId started = tape.emit({OpKind::all_reduce_start, attrs}, name + ".start", {value});
  return tape.emit({OpKind::all_reduce_wait, attrs}, name + ".wait", {started});
}

void share_batch_norm(Tape& tape, const AveragingOptions& o) {
  int64_t shares = 0;
  std::vector<Node> nodes;
  std::map<ValueId, ValueId> shared;
  for (Node node : std::vector<Node>(tape.nodes())) {
    // The parameter gradients are sums over this rank's own pixels.
    if (node.op.kind != OpKind::batch_norm_backward_parameters)
      for (ValueId& in : node.in)
        if (const auto found = shared.find(in); found != shared.end()) in = found->second;
    if (node.op.kind == OpKind::batch_norm_update) {
      auto running = node.op.as<RunningAttrs>();
      running.count *= o.batch_norm_ranks;
      node.op.attrs = running;
    }
    nodes.push_back(node);
    if (node.op.kind != OpKind::channel_moments && node.op.kind != OpKind::batch_norm_sums) continue;
    const TensorDesc desc = tape.desc(node.out[0]);
    const AllReduceAttrs attrs =
        mean_over(o.batch_norm_ranks, batch_norm_group, all_reduce_id(Averaged::statistics, shares++), desc.dtype);
    const ValueId started = tape.temporary(node.name + "/start", desc),
                  mean = tape.temporary(node.name + "/mean", desc);
    nodes.push_back({node.name + "/start", {OpKind::all_reduce_start, attrs}, {node.out[0]}, {started}});
    nodes.push_back({node.name + "/mean", {OpKind::all_reduce_wait, attrs}, {started}, {mean}});
    shared[node.out[0]] = mean;
  }
  tape.set_nodes(std::move(nodes));
}

}  // namespace convoy
