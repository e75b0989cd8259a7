// What the lowering rule of a fused op sees (OpDef::lower).
#pragma once

#include "core/tape.h"

namespace convoy {

class LoweringContext {
 public:
  LoweringContext(Tape& tape, const Node& node, std::vector<Node>& result)
      : tape_(tape), node_(node), result_(result) {}
  const Op& op() const { return node_.op; }
  ValueId in(size_t i) const { return node_.in.at(i); }
  /// An inner node; returns its first output.
  ValueId emit(const Op& op, const std::string& what, std::vector<ValueId> in);
  /// The node that writes the fused node's outputs, under its name: overrides and profiles keep finding it.
  void emit_final(const Op& op, std::vector<ValueId> in);

 private:
  Tape& tape_;
  const Node& node_;
  std::vector<Node>& result_;
};

}  // namespace convoy
