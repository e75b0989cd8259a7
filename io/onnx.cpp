#include "io/onnx.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "io/file.h"
#include "io/protobuf.h"
#include "io/safetensors.h"

namespace convoy {
namespace {

// Numbers of onnx.proto, version 1.8.
constexpr int64_t ir_version = 7, operator_set = 13, type_float = 1, type_u8 = 2, type_i64 = 7;

using Names = std::vector<std::string>;
using Ints = std::vector<int64_t>;

/// Attributes of a node.
class Attributes {
 public:
  Attributes& ints(std::string_view name, const Ints& values) {
    ProtobufMessage a = named(name, 7);
    for (int64_t value : values) a.number(8, value);
    return add(a);
  }
  Attributes& integer(std::string_view name, int64_t value) {
    ProtobufMessage a = named(name, 2);
    a.number(3, value);
    return add(a);
  }
  Attributes& real(std::string_view name, double value) {
    ProtobufMessage a = named(name, 1);
    a.real(2, static_cast<float>(value));
    return add(a);
  }
  Attributes& text(std::string_view name, std::string_view value) {
    ProtobufMessage a = named(name, 3);
    a.text(4, value);
    return add(a);
  }
  const std::vector<ProtobufMessage>& list() const { return list_; }

 private:
  static ProtobufMessage named(std::string_view name, int64_t type) {
    ProtobufMessage a;
    a.text(1, name);
    a.number(20, type);
    return a;
  }
  Attributes& add(const ProtobufMessage& a) {
    list_.push_back(a);
    return *this;
  }
  std::vector<ProtobufMessage> list_;
};

/// Nodes and constants, each under a name of its own.
class Graph {
 public:
  /// Returns the name of the node's one output, which is the node's own.
  std::string node(const std::string& op, const std::string& name, const Names& in, const Attributes& attributes = {}) {
    ProtobufMessage n;
    for (const std::string& input : in) n.text(1, input);
    n.text(2, name);
    n.text(3, name);
    n.text(4, op);
    for (const ProtobufMessage& a : attributes.list()) n.message(5, a);
    message_.message(1, n);
    return name;
  }
  std::string constant(const std::string& name, const Ints& dims, std::span<const float> values) {
    return tensor(name, dims, type_float, std::as_bytes(values));
  }
  std::string constant(const std::string& name, const Ints& values) {
    return tensor(name, {static_cast<int64_t>(values.size())}, type_i64, std::as_bytes(std::span(values)));
  }
  /// The first dimension is called N.
  void input(const std::string& name, const Ints& behind, const std::string& text) {
    message_.message(11, described(name, type_float, behind, text));
  }
  void output(const std::string& name, int64_t type, const Ints& behind) {
    message_.message(12, described(name, type, behind, {}));
  }
  bool has(const std::string& constant) const { return constants_.contains(constant); }
  int64_t constant_bytes() const { return bytes_; }
  ProtobufMessage& message() { return message_; }

 private:
  std::string tensor(const std::string& name, const Ints& dims, int64_t type, std::span<const std::byte> raw) {
    bytes_ += static_cast<int64_t>(raw.size());
    constants_.insert(name);
    ProtobufMessage t;
    for (int64_t d : dims) t.number(1, d);
    t.number(2, type);
    t.text(8, name);
    t.bytes(9, raw);
    message_.message(5, t);
    return name;
  }
  static ProtobufMessage described(const std::string& name, int64_t type, const Ints& behind, const std::string& text) {
    ProtobufMessage batch, shape, tensor, any, info;
    batch.text(2, "N");
    shape.message(1, batch);
    for (int64_t extent : behind) {
      ProtobufMessage d;
      d.number(1, extent);
      shape.message(1, d);
    }
    tensor.number(1, type);
    tensor.message(2, shape);
    any.message(1, tensor);
    info.text(1, name);
    info.message(2, any);
    if (!text.empty()) info.text(3, text);
    return info;
  }
  ProtobufMessage message_;
  std::set<std::string> constants_;
  int64_t bytes_ = 0;
};

/// Translates a tape's nodes. ONNX has channels ahead of the spatial axes: inputs and outputs are turned.
class Translation {
 public:
  Translation(const Tape& tape, const StateStore& states)
      : tape_(tape), states_(states), names_(tape.values().size()), flat_(tape.values().size()) {}

  Graph run(const std::vector<OnnxOutput>& outputs, const OnnxNormalisation& normalisation, const std::string& text) {
    const ValueId x = tape_.find("x");
    axes_ = tape_.desc(x).shape.d() > 1 ? 3 : 2;
    begin(x, normalisation, text);
    std::vector<bool> read(tape_.values().size());
    for (const OnnxOutput& o : outputs) read[index(tape_.find(o.name))] = true;
    for (auto n = tape_.nodes().rbegin(); n != tape_.nodes().rend(); ++n)
      if (std::any_of(n->out.begin(), n->out.end(), [&](ValueId id) { return read[index(id)]; }))
        for (ValueId id : n->in) read[index(id)] = true;
    for (const Node& n : tape_.nodes())
      if (read[index(n.out.at(0))]) names_[index(n.out[0])] = translate(n);
    for (const OnnxOutput& o : outputs) end(o, tape_.find(o.name));
    return std::move(graph_);
  }

 private:
  static size_t index(ValueId id) { return static_cast<size_t>(id); }
  const std::string& name(const Node& n, size_t input = 0) const { return names_[index(n.in.at(input))]; }
  bool flat(const Node& n) const { return flat_[index(n.in.at(0))]; }

  Ints spatial(const Int3& all) const { return {all.end() - axes_, all.end()}; }
  Ints pads(const Int3& low, const Int3& high) const {
    Ints all = spatial(low);
    for (int64_t pad : spatial(high)) all.push_back(pad);
    return all;
  }
  /// Axes of a turned value from one on.
  Ints axes_behind(int64_t first) const {
    Ints axes;
    for (int64_t a = first; a < axes_ + 2; ++a) axes.push_back(a);
    return axes;
  }
  /// Extents behind N, channels last.
  Ints extents(const Shape& s) const {
    Ints list = spatial({s.d(), s.h(), s.w()});
    list.push_back(s.c());
    return list;
  }

  void begin(ValueId x, const OnnxNormalisation& normalisation, const std::string& text) {
    const Shape& s = tape_.desc(x).shape;
    graph_.input("x", extents(s), text);
    std::string at = "x";
    if (!normalisation.low.empty()) {
      const Ints channels{s.c()};
      at = graph_.node("Sub", "x.above", {at, graph_.constant("x.low", channels, normalisation.low)});
      at = graph_.node("Mul", "x.normalised", {at, graph_.constant("x.factor", channels, normalisation.factor)});
    }
    Ints order = axes_behind(1);  // 0, C, then the others
    order.insert(order.begin(), 0);
    std::rotate(order.begin() + 1, order.end() - 1, order.end());
    names_[index(x)] = graph_.node("Transpose", "x.turned", {at}, Attributes().ints("perm", order));
  }

  std::string channels_last(const std::string& from, const std::string& as) {
    Ints order{0};
    for (int64_t axis : axes_behind(2)) order.push_back(axis);
    order.push_back(1);
    return graph_.node("Transpose", as, {from}, Attributes().ints("perm", order));
  }

  /// Outputs are called as the tape keeps them; the value itself has its own name.
  void end(const OnnxOutput& output, ValueId id) {
    const std::string& kept = output.name;
    const Shape& s = tape_.desc(id).shape;
    const bool classes = tape_.desc(id).dtype == DType::u8;
    if (classes) {
      graph_.node("Cast", kept, {names_[index(id)]}, Attributes().integer("to", type_u8));
      return graph_.output(kept, type_u8, spatial({s.d(), s.h(), s.w()}));
    }
    const std::string value = times(kept, names_[index(id)], output.factor);
    if (flat_[index(id)]) {
      graph_.node("Identity", kept, {value});
      return graph_.output(kept, type_float, {s.c()});
    }
    channels_last(value, kept);
    graph_.output(kept, type_float, extents(s));
  }

  const Value& state_of(const Node& n, size_t input) const {
    const Value& v = tape_.value(n.in.at(input));
    if (v.kind != ValueKind::state) refuse(n);
    return v;
  }
  /// A state as a constant: weights in ONNX' order, vectors as they are.
  std::string state(const Node& n, size_t input) {
    const Value& v = state_of(n, input);
    if (graph_.has(v.name)) return v.name;
    const NamedArray array = to_torch(v.name, states_.get(v.name), states_.rank(v.name));
    return graph_.constant(v.name, array.shape,
                           {reinterpret_cast<const float*>(array.data.data()), array.data.size() / sizeof(float)});
  }
  /// x, the weights and, where the node has one, the bias.
  Names with_weights(const Node& n, const std::string& x) {
    Names in{x, state(n, 1)};
    if (n.in.size() > 2) in.push_back(state(n, 2));
    return in;
  }
  /// A vector of channels that a turned value is multiplied by, or that is added to it.
  std::string channels(const Node& n, size_t input) {
    if (flat(n)) return state(n, input);
    const Value& v = state_of(n, input);
    const std::string name = v.name + ".channels";
    if (graph_.has(name)) return name;
    Ints dims(static_cast<size_t>(axes_) + 1, 1);
    dims[0] = v.desc.shape.c();
    return graph_.constant(name, dims, {states_.get(v.name).data<float>(), static_cast<size_t>(dims[0])});
  }
  std::string scalar(const std::string& name, double number) {
    const auto value = static_cast<float>(number);
    return graph_.constant(name, {}, {&value, 1});
  }

  std::string times(const std::string& name, const std::string& x, double factor) {
    return factor == 1 ? x : graph_.node("Mul", name + ".scaled", {x, scalar(name + ".factor", factor)});
  }

  [[noreturn]] static void refuse(const Node& n) {
    fail_usage("an ONNX model: " + n.name + " (" + std::string(op_def(n.op.kind).name) + ") cannot be written");
  }

  std::string translate(const Node& n) {
    flat_[index(n.out[0])] = n.op.kind == OpKind::dense_forward || flat(n);
    switch (n.op.kind) {
      case OpKind::conv_forward:
      case OpKind::conv_backward_data:
        return convolution(n);
      case OpKind::dense_forward:
        return dense(n);
      case OpKind::activation:
        return activation(n);
      case OpKind::max_pool:
      case OpKind::avg_pool:
        return pool(n);
      case OpKind::channel_moments:
        return moments(n);
      case OpKind::batch_norm:
        return batch_norm(n);
      case OpKind::channel_scale: {
        const std::string scaled =
            graph_.node("Mul", n.in.size() > 2 ? n.name + ".scaled" : n.name, {name(n), channels(n, 1)});
        return n.in.size() > 2 ? graph_.node("Add", n.name, {scaled, channels(n, 2)}) : scaled;
      }
      case OpKind::log1p: {
        const std::string more = graph_.node("Add", n.name + ".plus_one", {name(n), scalar(n.name + ".one", 1)});
        return graph_.node("Log", n.name, {more});
      }
      case OpKind::divide_by_mean: {
        const std::string mean =
            graph_.node("ReduceMean", n.name + ".mean", {name(n)}, Attributes().ints("axes", axes_behind(1)));
        return graph_.node("Div", n.name, {name(n), mean});
      }
      case OpKind::cast:
        return name(n);
      case OpKind::add:
        return graph_.node("Add", n.name, {name(n), name(n, 1)});
      case OpKind::scale:
        return times(n.name, name(n), n.op.as<ScaleAttrs>().alpha);
      case OpKind::concat: {
        Names parts;
        for (size_t i = 0; i < n.in.size(); ++i) parts.push_back(name(n, i));
        return graph_.node("Concat", n.name, parts, Attributes().integer("axis", 1));
      }
      case OpKind::slice: {
        const auto& a = n.op.as<SliceAttrs>();
        return graph_.node(
            "Slice", n.name,
            {name(n), graph_.constant(n.name + ".begin", Ints{a.begin}),
             graph_.constant(n.name + ".end", Ints{a.begin + a.size}), graph_.constant(n.name + ".axis", Ints{1})});
      }
      case OpKind::resize:
        return resize(n);
      case OpKind::arg_max:
        return graph_.node("ArgMax", n.name, {name(n)}, Attributes().integer("axis", 1).integer("keepdims", 0));
      default:
        refuse(n);
    }
  }

  std::string convolution(const Node& n) {
    const auto& a = n.op.as<ConvAttrs>();
    const bool transposed = n.op.kind == OpKind::conv_backward_data;
    Int3 high = a.pad_high, more{};
    const Shape &x = tape_.desc(n.in[0]).shape, &w = tape_.desc(n.in[1]).shape;
    for (int i = 0; i < 3 && transposed; ++i) {
      // Rows that no tap reaches are there all the same; ONNX takes their number apart from what is cut off.
      const int64_t reached = (x[i + 1] - 1) * a.stride[i] + (w[i + 1] - 1) * a.dilation[i] + 1 - a.pad_low[i];
      more[i] = std::max<int64_t>(0, a.result_size[i] - reached + high[i]);
      high[i] = reached + more[i] - a.result_size[i];
    }
    Attributes attributes;
    attributes.ints("kernel_shape", spatial({w.d(), w.h(), w.w()})).ints("strides", spatial(a.stride));
    attributes.ints("dilations", spatial(a.dilation)).ints("pads", pads(a.pad_low, high)).integer("group", a.groups);
    if (transposed) attributes.ints("output_padding", spatial(more));
    return graph_.node(transposed ? "ConvTranspose" : "Conv", n.name, with_weights(n, name(n)), attributes);
  }

  /// Features count the last map in the order of its values, channels last.
  std::string dense(const Node& n) {
    std::string x = name(n);
    if (!flat(n)) {
      x = channels_last(x, n.name + ".channels_last");
      x = graph_.node("Flatten", n.name + ".features", {x}, Attributes().integer("axis", 1));
    }
    return graph_.node("Gemm", n.name, with_weights(n, x), Attributes().integer("transB", 1));
  }

  std::string activation(const Node& n) {
    const auto& a = n.op.as<ActivationAttrs>();
    std::string y;
    if (a.function == Activation::tanh)
      y = graph_.node("Tanh", n.name, {name(n)});
    else if (a.slope == 0)
      y = graph_.node("Relu", n.name, {name(n)});
    else
      y = graph_.node("LeakyRelu", n.name, {name(n)}, Attributes().real("alpha", a.slope));
    return times(n.name, y, a.scale);
  }

  std::string pool(const Node& n) {
    const auto& a = n.op.as<PoolAttrs>();
    Attributes attributes;
    attributes.ints("kernel_shape", spatial(a.kernel)).ints("strides", spatial(a.stride));
    attributes.ints("pads", pads(a.pad_low, a.pad_high));
    if (n.op.kind == OpKind::max_pool) return graph_.node("MaxPool", n.name, {name(n)}, attributes);
    return graph_.node("AveragePool", n.name, {name(n)}, attributes.integer("count_include_pad", a.count_padding));
  }

  /// Stands for moments in what batch norm makes of them: the variance, and what is left of x behind its mean.
  std::string moments(const Node& n) {
    Ints axes = axes_behind(2);
    axes.insert(axes.begin(), 0);
    const auto mean = [&](const std::string& as, const std::string& of) {
      return graph_.node("ReduceMean", as, {of}, Attributes().ints("axes", axes));
    };
    const std::string rest = graph_.node("Sub", n.name + ".rest", {name(n), mean(n.name + ".mean", name(n))});
    rests_[n.out[0]] = rest;
    return mean(n.name + ".variance", graph_.node("Mul", n.name + ".squares", {rest, rest}));
  }

  std::string batch_norm(const Node& n) {
    const auto& a = n.op.as<BatchNormAttrs>();
    const std::string normal = a.relu ? n.name + ".normal" : n.name;
    if (n.in.size() == 5) {
      graph_.node("BatchNormalization", normal, {name(n), state(n, 1), state(n, 2), state(n, 3), state(n, 4)},
                  Attributes().real("epsilon", a.epsilon));
    } else {
      const std::string sum =
          graph_.node("Add", n.name + ".above_zero", {name(n, 3), scalar(n.name + ".epsilon", a.epsilon)});
      const std::string deviation = graph_.node("Sqrt", n.name + ".deviation", {sum});
      const std::string unit = graph_.node("Div", n.name + ".unit", {rests_.at(n.in[3]), deviation});
      const std::string scaled = graph_.node("Mul", n.name + ".scaled", {unit, channels(n, 1)});
      graph_.node("Add", normal, {scaled, channels(n, 2)});
    }
    return a.relu ? graph_.node("Relu", n.name, {normal}) : normal;
  }

  std::string resize(const Node& n) {
    const auto& a = n.op.as<ResizeAttrs>();
    Ints behind = spatial(a.result_size);
    behind.insert(behind.begin(), tape_.desc(n.in[0]).shape.c());
    const std::string shape = graph_.node("Shape", n.name + ".shape", {name(n)});
    const std::string batch =
        graph_.node("Slice", n.name + ".batch",
                    {shape, graph_.constant(n.name + ".first", Ints{0}), graph_.constant(n.name + ".last", Ints{1})});
    const std::string sizes =
        graph_.node("Concat", n.name + ".sizes", {batch, graph_.constant(n.name + ".extents", behind)},
                    Attributes().integer("axis", 0));
    const char* corners = a.corners == Corners::aligned      ? "align_corners"
                          : a.corners == Corners::asymmetric ? "asymmetric"
                                                             : "half_pixel";
    return graph_.node("Resize", n.name, {name(n), "", "", sizes},
                       Attributes().text("mode", "linear").text("coordinate_transformation_mode", corners));
  }

  const Tape& tape_;
  const StateStore& states_;
  Graph graph_;
  Names names_;                           ///< of values
  std::vector<bool> flat_;                ///< values of two axes, N and C
  std::map<ValueId, std::string> rests_;  ///< of moments: see there
  int64_t axes_ = 2;                      ///< spatial ones
};

}  // namespace

void write_onnx(const std::string& path, const Tape& tape, const StateStore& states,
                const std::vector<OnnxOutput>& outputs, const OnnxNormalisation& normalisation,
                const OnnxDescription& description) {
  Graph graph = Translation(tape, states).run(outputs, normalisation, description.input);
  constexpr int64_t most = int64_t{2} << 30;
  if (graph.constant_bytes() >= most)
    fail_usage(path + ": expected less than 2 GiB of weights in an ONNX model, found " +
               std::to_string(graph.constant_bytes()) + " bytes");
  graph.message().text(2, description.network);
  ProtobufMessage operators, model;
  operators.text(1, "");
  operators.number(2, operator_set);
  model.number(1, ir_version);
  model.text(2, "convoy");
  model.text(3, description.version);
  model.message(7, graph.message());
  model.message(8, operators);
  write_file(path, model.data());
}

}  // namespace convoy
