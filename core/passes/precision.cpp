#include <map>

#include "core/passes/passes.h"

namespace convoy {
namespace {

/// Rewrites node by node into a new tape, remembering which cast of a value exists already.
class PrecisionRewriter {
 public:
  PrecisionRewriter(const Tape& source, DType compute)
      : source_(source), compute_(compute), target_(source.float_type()) {}

  Tape rewrite() {
    copy_hosts();
    for (const Node& node : source_.nodes()) {
      std::vector<ValueId> in;
      for (size_t i = 0; i < node.in.size(); ++i) in.push_back(as(mapped_.at(node.in[i]), wanted(node, i)));
      Op op = node.op;
      if (op.kind == OpKind::log1p || op.kind == OpKind::divide_by_mean) op.attrs = CastAttrs{compute_};
      const std::vector<ValueId> out = target_.add(op, node.name, in).out;
      for (size_t i = 0; i < out.size(); ++i) {
        mapped_[node.out[i]] = out[i];
        if (source_.value(node.out[i]).keep) target_.keep(out[i], source_.value(node.out[i]).name);
      }
    }
    return std::move(target_);
  }

 private:
  void copy_hosts() {
    size_t next_state = 0;
    for (size_t i = 0; i < source_.values().size(); ++i) {
      const Value& value = source_.values()[i];
      const auto id = static_cast<ValueId>(i);
      if (value.kind == ValueKind::input) {
        mapped_[id] = target_.input(value.name, value.desc);
        if (value.keep) target_.keep(mapped_[id], value.name);
      }
      if (value.kind == ValueKind::state) {
        const StateSpec& spec = source_.states().at(next_state++);
        mapped_[id] = spec.trainable ? target_.parameter(value.name, value.desc.shape, spec.init, spec.rank)
                                     : target_.state(value.name, value.desc, spec.init);
      }
    }
  }

  /// Storage type that input i of a node should have.
  DType wanted(const Node& node, size_t i) const {
    const DType recorded = source_.desc(node.in[i]).dtype;
    if (recorded != source_.float_type()) return recorded;  // counts, arg-max, step state
    switch (node.op.kind) {
      case OpKind::conv_forward:
      case OpKind::conv_backward_data:
      case OpKind::dense_forward:
        return i < 2 ? compute_ : recorded;  // the bias stays wide
      case OpKind::batch_norm:
      case OpKind::channel_scale:
        return i == 0 ? compute_ : recorded;
      case OpKind::activation:
        return node.op.as<ActivationAttrs>().function == Activation::tanh ? recorded : compute_;
      case OpKind::batch_norm_update:
      case OpKind::pixel_loss:
      case OpKind::loss:
      case OpKind::sum_squares:
      case OpKind::log1p:
      case OpKind::divide_by_mean:
        return recorded;
      default:
        return compute_;
    }
  }

  ValueId as(ValueId id, DType type) {
    if (target_.desc(id).dtype == type) return id;
    const auto key = std::make_pair(id, type);
    if (const auto found = casts_.find(key); found != casts_.end()) return found->second;
    const ValueId cast = target_.emit({OpKind::cast, CastAttrs{type}}, target_.value(id).name + ".cast", {id});
    casts_[key] = cast;
    return cast;
  }

  const Tape& source_;
  DType compute_;
  Tape target_;
  std::map<ValueId, ValueId> mapped_;
  std::map<std::pair<ValueId, DType>, ValueId> casts_;
};

}  // namespace

Tape apply_precision(const Tape& tape, DType compute) {
  if (compute == tape.float_type()) return tape;
  if (tape.float_type() != DType::f32 || (compute != DType::bf16 && compute != DType::f16))
    fail_usage("precision: cannot compute in " + std::string(name_of(compute)) + " on a tape recorded in " +
               std::string(name_of(tape.float_type())));
  return PrecisionRewriter(tape, compute).rewrite();
}

}  // namespace convoy
