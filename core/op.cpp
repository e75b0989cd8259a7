#include "core/op.h"

#include <algorithm>
#include <cstdio>

#include "core/ops/families.h"
#include "core/text.h"

namespace convoy {
namespace {

std::vector<OpDef> build_table() {
  std::vector<OpDef> table(static_cast<size_t>(OpKind::count));
  for (const auto& family :
       {conv_ops(), dense_ops(), pool_ops(), activation_ops(), loss_ops(), elementwise_ops(), channel_ops(), norm_ops(),
        resize_ops(), pixel_ops(), optimizer_ops(), communication_ops()})
    for (const OpDef& def : family) table[static_cast<size_t>(def.kind)] = def;
  for (size_t i = 0; i < table.size(); ++i)
    if (!table[i].infer || table[i].family == OpFamily::none)
      fail_runtime("op kind " + std::to_string(i) + ": expected a row with a family in the op table, found none");
  return table;
}

struct FieldPrinter {
  std::string text;
  void add(std::string_view key, const std::string& value) {
    text.append(text.empty() ? "" : ";").append(key).append("=").append(value);
  }
};

std::string value_text(int64_t v) {
  return std::to_string(v);
}
std::string value_text(double v) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.17g", v);
  return buffer;
}
std::string value_text(const Int3& v) {
  return std::to_string(v[0]) + "," + std::to_string(v[1]) + "," + std::to_string(v[2]);
}
std::string value_text(DType v) {
  return std::string(name_of(v));
}
std::string value_text(const ClassWeights& v) {
  std::string text;
  for (int64_t k = 0; k < v.count; ++k) text.append(text.empty() ? "" : ",").append(value_text(v[k]));
  return text;
}

/// Names of an enumeration's values, in order.
template <class E>
constexpr std::array<std::string_view, 0> names_of{};
template <>
constexpr std::array<std::string_view, 2> names_of<Activation>{"leaky_relu", "tanh"};
template <>
constexpr std::array<std::string_view, 2> names_of<Loss>{"mse", "l1"};
template <>
constexpr std::array<std::string_view, 2> names_of<PixelLoss>{"cross_entropy", "focal"};
template <>
constexpr std::array<std::string_view, 2> names_of<Reduction>{"mean", "sum"};
template <>
constexpr std::array<std::string_view, 3> names_of<Corners>{"half_pixel", "aligned", "asymmetric"};

template <class E>
requires(!names_of<E>.empty()) std::string value_text(E v) {
  return std::string(names_of<E>[static_cast<size_t>(v)]);
}

// What parses a value gets its place, "op: key", for errors.

[[noreturn]] void fail_value(const std::string& where, const std::string& expected, std::string_view found) {
  fail_usage(where + ": expected " + expected + ", found \"" + std::string(found) + "\"");
}
void parse_value(const std::string& where, std::string_view text, int64_t& v) {
  v = parse_number<int64_t>(text, where);
}
void parse_value(const std::string& where, std::string_view text, double& v) {
  v = parse_number<double>(text, where);
}
void parse_value(const std::string& where, std::string_view text, Int3& v) {
  const auto parts = split(text, ',');
  if (parts.size() != 3) fail_value(where, "three numbers", text);
  for (int i = 0; i < 3; ++i) v[i] = parse_number<int64_t>(parts[i], where);
}
void parse_value(const std::string& where, std::string_view text, DType& v) {
  const auto parsed = parse_dtype(text);
  if (!parsed) fail_value(where, "an element type", text);
  v = *parsed;
}
void parse_value(const std::string& where, std::string_view text, ClassWeights& v) {
  std::vector<double> list;
  for (std::string_view part : split(text, ',')) list.push_back(parse_number<double>(part, where));
  if (list.size() > v.values.size()) fail_value(where, "8 weights or fewer", text);
  v = ClassWeights(list);
}
template <class E>
requires(!names_of<E>.empty()) void parse_value(const std::string& where, std::string_view text, E& v) {
  const auto& names = names_of<E>;
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    std::string known;
    for (std::string_view name : names) known.append(known.empty() ? "" : " or ").append(name);
    fail_value(where, known, text);
  }
  v = static_cast<E>(found - names.begin());
}

}  // namespace

std::span<const OpDef> all_op_defs() {
  static const std::vector<OpDef> table = build_table();
  return table;
}

const OpDef& op_def(OpKind kind) {
  return all_op_defs()[static_cast<size_t>(kind)];
}

std::vector<TensorDesc> infer(const Op& op, std::span<const TensorDesc> in) {
  return op_def(op.kind).infer(op, in);
}

int64_t flops_of(const Op& op, std::span<const TensorDesc> in, std::span<const TensorDesc> out) {
  const OpDef& def = op_def(op.kind);
  return def.flops ? def.flops(op, in, out) : 0;
}

int64_t bytes_of(std::span<const TensorDesc> in, std::span<const TensorDesc> out) {
  int64_t total = 0;
  for (const TensorDesc& desc : in) total += desc.bytes();
  for (const TensorDesc& desc : out) total += desc.bytes();
  return total;
}

std::string to_text(const Op& op) {
  FieldPrinter printer;
  std::visit(
      [&](auto attrs) {
        using A = decltype(attrs);
        // Walk the default beside the value: both list the same fields in the same order.
        std::vector<std::string> defaults;
        A standard = std::get<A>(op_def(op.kind).default_attrs);
        standard.visit([&](std::string_view, auto& v) { defaults.push_back(value_text(v)); });
        size_t field = 0;
        attrs.visit([&](std::string_view key, auto& v) {
          const std::string text = value_text(v);
          if (text != defaults[field++]) printer.add(key, text);
        });
      },
      op.attrs);
  return std::string(name_of(op.kind)) + "{" + printer.text + "}";
}

Op parse_op(std::string_view text) {
  const size_t open = text.find('{');
  if (open == std::string_view::npos || text.back() != '}')
    fail_usage("expected op{key=value;...}, found \"" + std::string(text) + "\"");
  const std::string_view name = text.substr(0, open);
  const OpDef* found = nullptr;
  for (const OpDef& def : all_op_defs())
    if (def.name == name) found = &def;
  if (!found) fail_usage("unknown op \"" + std::string(name) + "\"");
  Op op{found->kind, found->default_attrs};
  const std::string_view body = text.substr(open + 1, text.size() - open - 2);
  if (body.empty()) return op;
  for (std::string_view item : split(body, ';')) {
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    bool known = false;
    std::visit(
        [&](auto& attrs) {
          attrs.visit([&](std::string_view field, auto& v) {
            if (field != key || equals == std::string_view::npos) return;
            known = true;
            parse_value(std::string(name) + ": " + std::string(key), item.substr(equals + 1), v);
          });
        },
        op.attrs);
    if (!known) fail_usage(std::string(name) + " has no attribute \"" + std::string(key) + "\"");
  }
  return op;
}

}  // namespace convoy
