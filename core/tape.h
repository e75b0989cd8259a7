// A step as data: a list of nodes over named values. Values are written once; state values (parameters, moments,
// counters) live in a StateStore and may be updated by nodes that run after every reader of the old version.
#pragma once

#include <string>
#include <vector>

#include "core/op.h"

namespace convoy {

enum class ValueKind : uint8_t {
  temporary,  ///< written by a node, lives in the arena
  input,      ///< written by the host before each run, lives in the arena
  state,      ///< lives in the StateStore
};

struct Value {
  std::string name;
  TensorDesc desc;
  ValueKind kind = ValueKind::temporary;
  bool keep = false;  ///< readable by the host after the run
};

struct Node {
  std::string name;  ///< "<layer>.<what>", unique in the tape
  Op op;
  std::vector<ValueId> in;
  std::vector<ValueId> out;
  /// State values this node rewrites (the trailing inputs, see OpDef::updated_inputs).
  std::span<const ValueId> updated() const {
    return std::span(in).last(static_cast<size_t>(op_def(op.kind).updated_inputs));
  }
};

/// How a state value starts.
struct StateInit {
  enum class Kind : uint8_t { zero, constant, first, glorot_uniform, he_normal };
  Kind kind = Kind::zero;
  double value = 0;                 ///< for constant; for first that of the first element, behind which zeros follow
  int64_t fan_in = 0, fan_out = 0;  ///< for the two random ones
};

struct StateSpec {
  ValueId value = no_value;
  StateInit init;
  bool trainable = false;
  /// Of weights: the dimensions of the array in its usual form, whatever its extents: 2 (K,F) of a dense layer, 4 or 5
  /// of a convolution of images or volumes; 0 of everything else.
  int rank = 0;
};

class Tape {
 public:
  /// `float_type` is what activations and parameters are recorded in: f32, or f64 for gradient checks.
  explicit Tape(DType float_type = DType::f32) : float_type_(float_type) {}
  DType float_type() const { return float_type_; }

  /// Throws Error(usage) where a value of that name exists.
  ValueId input(const std::string& name, const TensorDesc& desc);
  /// The state of that name, new or known. Throws Error(usage) where a value of that name is no state, or one with
  /// another descriptor.
  ValueId state(const std::string& name, const TensorDesc& desc, const StateInit& init = {});
  /// A trainable state in the tape's float type; `rank`: StateSpec::rank. Throws Error(usage) where a value of that
  /// name exists: layers share no parameters.
  ValueId parameter(const std::string& name, const Shape& shape, const StateInit& init, int rank = 0);

  /// Appends a node; infers its outputs, named after the node ("conv1.forward", "pool1.forward:1", ...). A name that is
  /// taken gets a number ("conv1.forward#2"). Throws Error(usage) for an input that is no value of the tape, and the
  /// Error of the op's shape inference, with the node's name ahead of it. The reference holds until the next node is
  /// added.
  const Node& add(const Op& op, const std::string& name, std::vector<ValueId> in);
  /// The same for ops with exactly one interesting output.
  ValueId emit(const Op& op, const std::string& name, std::vector<ValueId> in) {
    return add(op, name, std::move(in)).out.at(0);
  }

  /// Lets the host read a computed value, or an input, after a run. The value is called so from here on: who keeps it
  /// twice finds it by the later name. Throws Error(usage) for states and for a name that another value has.
  void keep(ValueId id, const std::string& name);
  ValueId find(const std::string& name) const;  ///< no_value when absent

  const std::vector<Value>& values() const { return values_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<StateSpec>& states() const { return states_; }
  /// Of ids that are not the tape's, such as no_value, this and `desc` throw Error(usage).
  const Value& value(ValueId id) const {
    check(id);
    return values_[static_cast<size_t>(id)];
  }
  const TensorDesc& desc(ValueId id) const { return value(id).desc; }
  std::vector<TensorDesc> descs(std::span<const ValueId> ids) const;
  std::vector<ValueId> parameters() const;

  /// A value for a node that a pass is about to place.
  ValueId temporary(const std::string& name, const TensorDesc& desc) {
    return add_value(name, desc, ValueKind::temporary);
  }
  /// Replaces the node list (passes); names and values stay.
  void set_nodes(std::vector<Node> nodes) { nodes_ = std::move(nodes); }
  /// Throws unless every value is written before it is read and every state is read before it is updated.
  void verify() const;

 private:
  bool has(ValueId id) const { return id >= 0 && static_cast<size_t>(id) < values_.size(); }
  void check(ValueId id) const {
    if (!has(id)) fail_usage("expected a value of the tape, found " + text_of(id));
  }
  std::string text_of(ValueId unknown) const;
  ValueId add_value(const std::string& name, const TensorDesc& desc, ValueKind kind);
  std::string unique_name(const std::string& name) const;
  DType float_type_;
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<StateSpec> states_;
};

/// Names of the two bookkeeping states that training nodes read.
inline constexpr const char* step_state_name = "step_state";
inline constexpr const char* scale_state_name = "loss_scale";

/// Fields of `step_state`, an f64 vector that the host writes before each step: the rate of the update, the number of
/// the step (from 0), the lower and upper 32 bits of the seed that dropout draws from, the number of this pass's first
/// sample among those of all ranks since the first step (so that n ranks of b samples drop what one rank of n * b
/// would), and the pass among those whose gradients are added up before one update.
enum class StepField : int { learning_rate, step, seed_low, seed_high, first_sample, micro_step, count = 8 };
/// Fields of `loss_scale`, an f64 vector that loss_scale_update advances: the factor on the loss, finite steps since it
/// last changed, steps skipped for overflow (with lagged gradients also the first one, which has none to apply),
/// updates applied.
enum class ScaleField : int { scale, good_steps, skipped, applied, count = 4 };

/// The first of these as the host sets them ahead of a pass (Program::set_clock).
struct StepClock {
  double learning_rate = 0;
  int64_t step = 0;
  uint64_t seed = 0;
  int64_t first_sample = 0;
  int64_t micro_step = 0;  ///< of the passes ahead of an update from 0 on, of the update's own the last
  void write(double* step_state) const {
    const auto set = [&](StepField field, double value) { step_state[int(field)] = value; };
    set(StepField::learning_rate, learning_rate), set(StepField::step, double(step));
    set(StepField::seed_low, double(seed & 0xffffffffu)), set(StepField::seed_high, double(seed >> 32));
    set(StepField::first_sample, double(first_sample)), set(StepField::micro_step, double(micro_step));
  }
};

inline TensorDesc step_state_desc() {
  return TensorDesc(Shape::vector(int64_t(StepField::count)), DType::f64);
}
inline TensorDesc scale_state_desc() {
  return TensorDesc(Shape::vector(int64_t(ScaleField::count)), DType::f64);
}
/// Updates divide by the factor on the loss: it is never zero, not even before anybody sets it.
inline StateInit scale_state_init(double scale = 1) {
  static_assert(int(ScaleField::scale) == 0);
  return {.kind = StateInit::Kind::first, .value = scale};
}

}  // namespace convoy
