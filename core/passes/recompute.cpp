// Memory for time ("sublinear memory cost", arXiv:1604.06174, for the ops that cost least): a value that the backward
// pass reads is dropped behind its last forward reader and made again in front of its first backward reader.
#include <algorithm>
#include <climits>
#include <map>

#include "core/by_value.h"
#include "core/passes/passes.h"

namespace convoy {
namespace {

constexpr const char *again = "/again", *ahead = "/ahead of ";  // behind the names of copies

/// Ops that run at memory speed and depend on their inputs alone.
bool is_cheap(OpKind kind) {
  switch (kind) {
    case OpKind::batch_norm:
    case OpKind::activation:
    case OpKind::channel_scale:
    case OpKind::scale:
    case OpKind::add:
    case OpKind::concat:
    case OpKind::resize:
      return true;
    default:
      return false;
  }
}

class Recomputation {
 public:
  explicit Recomputation(Tape& tape) : tape_(tape), nodes_(tape.nodes()), use_(tape.values().size()) {}

  void run() {
    const auto loss = std::find_if(nodes_.begin(), nodes_.end(), [](const Node& n) {
      return n.op.kind == OpKind::loss || n.op.kind == OpKind::pixel_loss;
    });
    loss_ = static_cast<int>(loss - nodes_.begin());
    note_readers();
    choose();
    rewrite();
  }

 private:
  struct Use {
    int writer = -1;
    int first = -1;  ///< reader behind the loss
    /// The last node ahead of which it lies in memory anyway: the last reader behind the loss, without end for states,
    /// none for what is chosen.
    int live_until = -1;
    bool joined = false;  ///< part of a concatenation, which is written in place
    bool chosen = false;  ///< to be made again
    ValueId again = no_value;
  };

  void note_readers() {
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
      const Node& node = nodes_[static_cast<size_t>(i)];
      for (ValueId id : node.out) use_[id].writer = i;
      if (node.op.kind == OpKind::concat)
        for (ValueId id : node.in) use_[id].joined = true;
      if (i <= loss_) continue;
      for (ValueId id : node.in) {
        if (use_[id].first < 0) use_[id].first = i;
        use_[id].live_until = i;
      }
    }
    for (const StateSpec& state : tape_.states()) use_[state.value].live_until = INT_MAX;
  }

  /// The node of the forward pass that could write the value a second time, or null.
  const Node* maker(ValueId id) {
    const int writer = use_[id].writer;
    if (writer < 0 || writer >= loss_) return nullptr;
    const Node& node = nodes_[static_cast<size_t>(writer)];
    return is_cheap(node.op.kind) && node.out.size() == 1 ? &node : nullptr;
  }

  bool is_live(ValueId id, int at) const { return use_[id].live_until >= at; }

  /// Whether `id` can be had in front of node `at` from what lies there. What is made again itself does not count:
  /// leaning on it would bring a whole chain of values back at once.
  bool within_reach(ValueId id, int at) {
    if (is_live(id, at)) return true;
    const Node* node = use_[id].chosen ? nullptr : maker(id);
    return node && std::all_of(node->in.begin(), node->in.end(), [&](ValueId in) { return within_reach(in, at); });
  }

  /// In the order of the forward pass: what is chosen lies there for nobody behind it. A part of a concatenation lies
  /// in it: neither is worth making again while the other stays.
  void choose() {
    for (const Node& node : nodes_) {
      if (node.out.size() != 1) continue;
      Use& u = use_[node.out[0]];
      if (u.first < 0 || u.joined || !maker(node.out[0]) || tape_.value(node.out[0]).keep) continue;
      const bool joins = node.op.kind == OpKind::concat;
      u.chosen = std::all_of(node.in.begin(), node.in.end(),
                             [&](ValueId in) { return within_reach(in, u.first) && !(joins && is_live(in, u.first)); });
      if (u.chosen) u.live_until = -1;
    }
  }

  /// Appends the nodes that write `id` again for the node `at`; their names tell copies for different readers apart.
  ValueId make(ValueId id, int at, const std::string& suffix, std::map<ValueId, ValueId>& made) {
    if (const auto found = made.find(id); found != made.end()) return found->second;
    const Node& original = *maker(id);
    Node node{original.name + suffix, original.op, {}, {}};
    for (ValueId in : original.in) node.in.push_back(is_live(in, at) ? in : make(in, at, ahead + node.name, made));
    node.out = {tape_.temporary(node.name, tape_.desc(id))};
    made[id] = node.out[0];
    result_.push_back(node);
    return node.out[0];
  }

  void rewrite() {
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
      Node node = nodes_[static_cast<size_t>(i)];
      if (i > loss_)
        for (ValueId& id : node.in) {
          if (!use_[id].chosen) continue;
          if (use_[id].again == no_value) {
            std::map<ValueId, ValueId> made;
            use_[id].again = make(id, i, again, made);
          }
          id = use_[id].again;
        }
      result_.push_back(std::move(node));
    }
    tape_.set_nodes(std::move(result_));
  }

  Tape& tape_;
  const std::vector<Node> nodes_;
  ByValue<Use> use_;
  std::vector<Node> result_;
  int loss_ = 0;
};

}  // namespace

void recompute(Tape& tape) {
  Recomputation(tape).run();
}

std::string original_name(const std::string& node) {
  return node.substr(0, std::min(node.find(again), node.find(ahead)));
}

}  // namespace convoy
