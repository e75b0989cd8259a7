#include "core/tape.h"

#include <algorithm>
#include <map>

#include "core/problem_limits.h"

namespace convoy {

ValueId Tape::add_value(const std::string& name, const TensorDesc& desc, ValueKind kind) {
  for (int axis = 0; axis < 5; ++axis)
    if (desc.shape[axis] < 1) fail_usage(name + ": expected extents of 1 or more, found " + desc.str());
  if (count_elements(desc.shape) > double(most_elements))  // sizes and strides of kernels would overflow
    fail_usage(name + ": expected at most " + std::to_string(most_elements) + " elements, found " + desc.str());
  values_.push_back({name, desc, kind, false});
  return static_cast<ValueId>(values_.size() - 1);
}

std::string Tape::text_of(ValueId unknown) const {
  if (unknown == no_value) return "no_value (Tape::find of an unknown name?)";
  return "number " + std::to_string(unknown) + " of " + std::to_string(values_.size()) + " (of another tape?)";
}

std::string Tape::unique_name(const std::string& name) const {
  const auto taken = [&](const std::string& n) {
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.name == n; });
  };
  if (!taken(name)) return name;
  for (int i = 2;; ++i)
    if (std::string candidate = name + "#" + std::to_string(i); !taken(candidate)) return candidate;
}

ValueId Tape::input(const std::string& name, const TensorDesc& desc) {
  if (find(name) != no_value) fail_usage("value \"" + name + "\" exists already");
  return add_value(name, desc, ValueKind::input);
}

ValueId Tape::state(const std::string& name, const TensorDesc& desc, const StateInit& init) {
  if (const ValueId known = find(name); known != no_value) {
    if (value(known).kind != ValueKind::state) fail_usage("value \"" + name + "\" exists already and is no state");
    if (!(this->desc(known) == desc))
      fail_usage("state \"" + name + "\" is " + this->desc(known).str() + ", asked for " + desc.str());
    return known;
  }
  const ValueId id = add_value(name, desc, ValueKind::state);
  states_.push_back({id, init, false});
  return id;
}

ValueId Tape::parameter(const std::string& name, const Shape& shape, const StateInit& init, int rank) {
  if (find(name) != no_value) fail_usage("parameter \"" + name + "\" exists already");
  const ValueId id = state(name, TensorDesc(shape, float_type_), init);
  states_.back().trainable = true;
  states_.back().rank = rank;
  return id;
}

const Node& Tape::add(const Op& op, const std::string& name, std::vector<ValueId> in) {
  Node node{unique_name(name), op, std::move(in), {}};
  for (size_t i = 0; i < node.in.size(); ++i)
    if (!has(node.in[i]))
      fail_usage(node.name + ": input " + std::to_string(i) + ": expected a value of the tape, found " +
                 text_of(node.in[i]));
  std::vector<TensorDesc> out;
  try {
    out = infer(op, descs(node.in));
  } catch (const Error& error) {
    throw Error(error.kind(), node.name + ": " + error.what());
  }
  for (size_t i = 0; i < out.size(); ++i)
    node.out.push_back(add_value(i ? node.name + ":" + std::to_string(i) : node.name, out[i], ValueKind::temporary));
  nodes_.push_back(std::move(node));
  return nodes_.back();
}

void Tape::keep(ValueId id, const std::string& name) {
  check(id);
  Value& value = values_[static_cast<size_t>(id)];
  if (value.kind == ValueKind::state) fail_usage("states are kept anyway, and under their own names: " + value.name);
  if (const ValueId other = find(name); other != no_value && other != id)
    fail_usage("another value is called " + name + " already");
  value.keep = true;
  value.name = name;
}

ValueId Tape::find(const std::string& name) const {
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i].name == name) return static_cast<ValueId>(i);
  return no_value;
}

std::vector<TensorDesc> Tape::descs(std::span<const ValueId> ids) const {
  std::vector<TensorDesc> result;
  for (ValueId id : ids) result.push_back(desc(id));
  return result;
}

std::vector<ValueId> Tape::parameters() const {
  std::vector<ValueId> ids;
  for (const StateSpec& spec : states_)
    if (spec.trainable) ids.push_back(spec.value);
  return ids;
}

void Tape::verify() const {
  std::vector<bool> written(values_.size()), updated(values_.size());
  for (size_t i = 0; i < values_.size(); ++i) written[i] = values_[i].kind != ValueKind::temporary;
  for (const Node& node : nodes_) {
    for (ValueId id : node.in) {
      if (!written.at(static_cast<size_t>(id)))
        fail_runtime("node " + node.name + " reads " + value(id).name + " before it is written");
      if (updated[static_cast<size_t>(id)])
        fail_runtime("node " + node.name + " reads state " + value(id).name + " after its update");
    }
    for (ValueId id : node.out) {
      if (written.at(static_cast<size_t>(id))) fail_runtime("value " + value(id).name + " is written twice");
      written[static_cast<size_t>(id)] = true;
    }
    for (ValueId id : node.updated()) updated[static_cast<size_t>(id)] = true;
  }
}

}  // namespace convoy
