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
  const std::vector<ValueId>& inputs() const { return node_.in; }
  /// An inner node; returns its first output. One node of a definition has an empty `what`: it takes the fused node's
  /// name, so that overrides and profiles keep finding the heart of it; others are called "name/what".
  ValueId emit(const Op& op, const std::string& what, std::vector<ValueId> in);
  /// The node that writes the fused node's outputs.
  void emit_final(const Op& op, const std::string& what, std::vector<ValueId> in);

 private:
  std::string name(const std::string& what) const { return what.empty() ? node_.name : node_.name + "/" + what; }
  Tape& tape_;
  const Node& node_;
  std::vector<Node>& result_;
};

}  // namespace convoy
