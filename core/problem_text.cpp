// Problems as text, and what such a text must keep before a kernel may trust it: tuned tables, problem files and
// command lines are written by hand, too.
#include <algorithm>

#include "core/conv_shapes.h"
#include "core/problem_limits.h"
#include "core/text.h"

namespace convoy {
namespace {

constexpr int64_t most_position = int64_t{1} << 24;   // of kernels, strides, paddings, dilations, results, and groups
constexpr int64_t most_attribute = int64_t{1} << 40;  // all other whole numbers

std::string join_descs(std::span<const TensorDesc> descs) {
  std::string text;
  for (const TensorDesc& desc : descs) text.append(text.empty() ? "" : "|").append(desc.str());
  return text;
}

[[noreturn]] void fail_text(const std::string& message) {
  fail_usage("problem text: " + message);
}

void check_size(const TensorDesc& desc) {
  double span = double(desc.shape.c());
  for (int i = 0; i < 4; ++i) span += double(desc.shape[i] - 1) * double(desc.stride[static_cast<size_t>(i)]);
  if (std::max(count_elements(desc.shape), span) > double(most_elements))
    fail_text("expected at most " + std::to_string(most_elements) + " elements, found " +
              std::string(name_of(desc.dtype)) + ":" + desc.shape.str());
}

TensorDesc parse_desc(std::string_view text) {
  const size_t colon = text.find(':');
  const auto type = colon == std::string_view::npos ? std::nullopt : parse_dtype(text.substr(0, colon));
  if (!type) fail_text("expected type:NxDxHxWxC, found \"" + std::string(text) + "\"");
  std::string_view rest = text.substr(colon + 1), strides;
  if (const size_t at = rest.find('@'); at != std::string_view::npos)
    strides = rest.substr(at + 1), rest = rest.substr(0, at);
  const auto parts = split(rest, 'x');
  if (parts.size() != 5) fail_text("expected five extents, found \"" + std::string(rest) + "\"");
  Shape shape;
  for (int i = 0; i < 5; ++i) {
    shape[i] = parse_number<int64_t>(parts[static_cast<size_t>(i)], "problem text: extent");
    if (shape[i] < 1 || shape[i] > most_elements)
      fail_text("expected extents of 1 to " + std::to_string(most_elements) + ", found \"" + std::string(rest) + "\"");
  }
  TensorDesc desc;
  desc.shape = shape, desc.dtype = *type;
  check_size(desc);  // before the dense strides are multiplied out
  desc = TensorDesc(shape, *type);
  if (strides.empty()) return desc;
  const auto values = split(strides, ',');
  if (values.size() != 4) fail_text("expected four strides, found \"" + std::string(strides) + "\"");
  for (size_t i = 4; i-- > 0;) {
    // Positions of an axis lie behind each other.
    const double least =
        i == 3 ? double(shape.c()) : double(shape[static_cast<int>(i) + 1]) * double(desc.stride[i + 1]);
    desc.stride[i] = parse_number<int64_t>(values[i], "problem text: stride");
    if (double(desc.stride[i]) < least || desc.stride[i] > most_elements)
      fail_text("expected strides that do not overlap, at most " + std::to_string(most_elements) + ", found " +
                std::string(values[i]) + " along " + "NDHW"[i] + " in \"" + std::string(text) + "\"");
  }
  check_size(desc);
  return desc;
}

std::vector<TensorDesc> parse_descs(std::string_view text) {
  std::vector<TensorDesc> descs;
  if (text.empty()) return descs;
  for (std::string_view part : split(text, '|')) descs.push_back(parse_desc(part));
  return descs;
}

/// No extent of what infer() makes is above the largest of the inputs and all attributes along its axis together.
struct AttributeCheck {
  std::string_view op;
  double samples = 1, channels = 1;  ///< most of any input
  std::array<double, 3> extents{1, 1, 1};
  void within(std::string_view key, int64_t value, int64_t least, int64_t most) const {
    if (value < least || value > most)
      fail_text(std::string(op) + ": " + std::string(key) + ": expected " + std::to_string(least) + " to " +
                std::to_string(most) + ", found " + std::to_string(value));
  }
  void product_within(std::string_view key) const {
    if (samples * channels * extents[0] * extents[1] * extents[2] > 0x1p55)
      fail_text(std::string(op) + ": " + std::string(key) + ": expected results of fewer than 2^55 elements");
  }
  void operator()(std::string_view key, const Int3& values) {
    for (size_t i = 0; i < 3; ++i) within(key, values[i], 0, most_position), extents[i] += double(values[i]);
    product_within(key);
  }
  void operator()(std::string_view key, int64_t value) {
    within(key, value, -most_attribute, key == "groups" ? most_position : most_attribute);
    if (key != "size") return;  // channels of a result
    channels = std::max(channels, double(value));
    product_within(key);
  }
  template <class T>
  void operator()(std::string_view, const T&) {}
};

void check_attributes(const Op& op, const std::vector<TensorDesc>& in) {
  AttributeCheck check{name_of(op.kind)};
  for (const TensorDesc& desc : in) {
    check.samples = std::max(check.samples, double(desc.shape.n()));
    check.channels = std::max(check.channels, double(desc.shape.c()));
    for (size_t i = 0; i < 3; ++i) check.extents[i] = std::max(check.extents[i], double(spatial(desc.shape)[i]));
  }
  std::visit([&](auto attrs) { attrs.visit([&](std::string_view key, const auto& value) { check(key, value); }); },
             op.attrs);
}

/// What a kernel writes: the outputs, then the updated states, which are also the last inputs.
std::vector<TensorDesc> expected_outputs(const Problem& p) {
  std::vector<TensorDesc> out = infer(p.op, p.in);
  const auto updated = static_cast<size_t>(op_def(p.op.kind).updated_inputs);
  out.insert(out.end(), p.in.end() - static_cast<std::ptrdiff_t>(updated), p.in.end());
  return out;
}

/// Outputs may be slices; updated states are the tensors that come in.
void check_outputs(const Problem& p, const std::vector<TensorDesc>& expected) {
  bool equal = p.out.size() == expected.size();
  const size_t states = expected.size() - static_cast<size_t>(op_def(p.op.kind).updated_inputs);
  for (size_t i = 0; equal && i < expected.size(); ++i)
    equal = i < states ? p.out[i].shape == expected[i].shape && p.out[i].dtype == expected[i].dtype
                       : p.out[i] == expected[i];
  if (!equal)
    fail_text(std::string(name_of(p.op.kind)) + ": expected out=" + join_descs(expected) +
              ", found out=" + join_descs(p.out));
}

/// Sums of products are where operands that fit give a count that does not.
void check_work(const Problem& p) {
  double products = 0;
  if (const auto s = conv_shapes(p))
    products = double(s->y.rows()) * count_elements(s->w);
  else if (p.op.kind == OpKind::dense_forward || p.op.kind == OpKind::dense_backward_data)
    products = double(p.in[0].shape.n()) * double(p.in[1].shape.elements());
  else if (p.op.kind == OpKind::dense_backward_weights)
    products = double(p.in[0].shape.n()) * double(p.out[0].shape.elements());
  if (2 * products > most_flops) fail_text("expected fewer than 2^62 operations, found " + p.text());
}

}  // namespace

std::string Problem::text() const {
  return to_text(op) + " in=" + join_descs(in) + " out=" + join_descs(out) +
         " device=" + (device == DeviceKind::cpu ? "cpu" : "cuda") + " threads=" + std::to_string(threads);
}

Problem Problem::parse(std::string_view text) {
  Problem problem;
  bool has_out = false;
  const auto words = split(trim(text), ' ');
  problem.op = parse_op(words.at(0));
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string_view key = words[i].substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : words[i].substr(equals + 1);
    if (key == "in")
      problem.in = parse_descs(value);
    else if (key == "out")
      problem.out = parse_descs(value), has_out = true;
    else if (key == "device" && (value == "cpu" || value == "cuda"))
      problem.device = value == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
    else if (key == "threads")
      problem.threads = parse_number<int>(value, "threads");
    else
      fail_text("cannot read \"" + std::string(words[i]) + "\"");
  }
  if (problem.threads < 1) fail_text("threads: expected 1 or more, found " + std::to_string(problem.threads));
  check_attributes(problem.op, problem.in);
  const std::vector<TensorDesc> expected = expected_outputs(problem);
  for (const TensorDesc& desc : expected) check_size(desc);
  if (has_out)
    check_outputs(problem, expected);
  else
    problem.out = expected;
  check_work(problem);
  return problem;
}

}  // namespace convoy
