#include "core/passes/slices.h"

#include <algorithm>

namespace convoy {
namespace {

class SliceAliasing {
 public:
  SliceAliasing(std::vector<Value>& values, std::vector<Node>& nodes, const std::function<bool(const Node&)>& accepts,
                bool even_places)
      : values_(values), nodes_(nodes), accepts_(accepts), even_places_(even_places), slice_(values.size()) {}

  ByValue<SliceOf> run() {
    std::vector<bool> removed(nodes_.size());
    // Outer concatenations first, so that the strides of an inner one are known when its inputs are moved.
    for (size_t i = nodes_.size(); i-- > 0;)
      if (nodes_[i].op.kind == OpKind::concat) removed[i] = alias_concat(nodes_[i]);
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].op.kind == OpKind::slice && slice_[nodes_[i].out[0]].parent == no_value)
        removed[i] = try_alias({{nodes_[i].out[0], {nodes_[i].in[0], nodes_[i].op.as<SliceAttrs>().begin}}}, nodes_[i]);
    std::vector<Node> kept;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (!removed[i]) kept.push_back(nodes_[i]);
    nodes_ = std::move(kept);
    return std::move(slice_);
  }

 private:
  using Move = std::pair<ValueId, SliceOf>;

  Value& at(ValueId id) const { return values_[static_cast<size_t>(id)]; }

  bool alias_concat(const Node& node) {
    std::vector<Move> moves;
    int64_t channel = 0;
    for (ValueId id : node.in) {
      const Value& value = at(id);
      const bool twice = std::count(node.in.begin(), node.in.end(), id) > 1;
      if (value.kind != ValueKind::temporary || value.keep || slice_[id].parent != no_value || twice) return false;
      moves.push_back({id, {node.out[0], channel}});
      channel += value.desc.shape.c();
    }
    return try_alias(moves, node);
  }

  /// Applies the moves, asks every neighbour, and undoes them if one refuses.
  bool try_alias(const std::vector<Move>& moves, const Node& origin) {
    std::vector<TensorDesc> before;
    for (const auto& [id, slice] : moves) {
      Value& value = at(id);
      const Value& parent = at(slice.parent);
      if (value.keep || parent.kind == ValueKind::state || (even_places_ && is_odd(value, slice)))
        return undo(moves, before);
      before.push_back(value.desc);
      value.desc.stride = parent.desc.stride;
    }
    for (const Node& node : nodes_) {
      if (&node == &origin) continue;
      const bool touched = std::any_of(moves.begin(), moves.end(), [&](const Move& move) {
        return std::count(node.in.begin(), node.in.end(), move.first) +
                   std::count(node.out.begin(), node.out.end(), move.first) >
               0;
      });
      if (touched && !accepts_(node)) return undo(moves, before);
    }
    for (const auto& [id, slice] : moves) slice_[id] = slice;
    return true;
  }

  bool is_odd(const Value& value, const SliceOf& slice) const {
    if (size_of(value.desc.dtype) != 2) return false;
    int64_t first = slice.channel;
    for (ValueId id = slice.parent; id != no_value; id = slice_[id].parent) first += slice_[id].channel;
    const int64_t pitch = at(slice.parent).desc.pixel_pitch();
    const auto odd = [&](int64_t lanes) {
      return value.desc.shape.c() % lanes == 0 && pitch % lanes == 0 && first % lanes != 0;
    };
    return odd(8) || odd(2);
  }

  bool undo(const std::vector<Move>& moves, const std::vector<TensorDesc>& before) {
    for (size_t i = 0; i < before.size(); ++i) at(moves[i].first).desc = before[i];
    return false;
  }

  std::vector<Value>& values_;
  std::vector<Node>& nodes_;
  const std::function<bool(const Node&)>& accepts_;
  bool even_places_;
  ByValue<SliceOf> slice_;
};

}  // namespace

ByValue<SliceOf> alias_slices(std::vector<Value>& values, std::vector<Node>& nodes,
                              const std::function<bool(const Node&)>& accepts, bool even_places) {
  return SliceAliasing(values, nodes, accepts, even_places).run();
}

}  // namespace convoy
