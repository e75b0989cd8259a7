#include "bench/problem_strings.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/problem_limits.h"
#include "core/text.h"

namespace convoy::bench {
namespace {

constexpr const char* keys[] = {"g",  "mb", "ic", "oc", "id", "ih", "iw", "od", "oh", "ow", "kd",
                                "kh", "kw", "sd", "sh", "sw", "dd", "dh", "dw", "pd", "ph", "pw"};

using Numbers = std::map<std::string, int64_t>;

[[noreturn]] void fail_string(const std::string& message, std::string_view text) {
  fail_usage("convolution string: " + message + " in \"" + std::string(text) + "\"");
}

/// key-number pairs run together, with optional underscores; a trailing n"name" names the problem.
Numbers read_numbers(std::string_view text, std::string& name) {
  Numbers numbers;
  size_t i = 0;
  while (i < text.size()) {
    if (text[i] == '_' || text[i] == ' ') {
      ++i;
      continue;
    }
    if (text[i] == 'n') {
      name = text.substr(i + 1);
      std::erase(name, '"');
      break;
    }
    size_t digits = i;
    while (digits < text.size() && text[digits] >= 'a' && text[digits] <= 'z') ++digits;
    size_t end = digits;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    const std::string key(text.substr(i, digits - i));
    if (std::find(std::begin(keys), std::end(keys), key) == std::end(keys) || end == digits)
      fail_string("cannot read \"" + std::string(text.substr(i)) + "\"", text);
    const int64_t value = parse_number<int64_t>(text.substr(digits, end - digits), "convolution string: " + key);
    constexpr int64_t most = 1 << 24;
    if (value > most || (value < 1 && key[0] != 'p' && key[0] != 'd'))
      fail_string(key + ": expected " + (key[0] == 'p' || key[0] == 'd' ? "0" : "1") + " to " + std::to_string(most) +
                      ", found " + std::to_string(value),
                  text);
    if (!numbers.emplace(key, value).second) fail_string(key + ": expected once, found twice", text);
    i = end;
  }
  return numbers;
}

/// Values along D, H, W of a key family ("i" -> id, ih, iw). An axis that the image lacks gets `absent`.
Int3 along_axes(const Numbers& n, const std::string& family, int axes, int64_t absent, int64_t otherwise) {
  Int3 value{absent, absent, absent};
  int64_t last = otherwise;
  for (int i = 3 - axes; i < 3; ++i) {
    const auto found = n.find(family + "dhw"[i]);
    value[i] = last = found == n.end() ? last : found->second;
  }
  return value;
}

/// Whether an axis or one that it copies has a value of a family.
bool is_given(const Numbers& n, const std::string& family, int axes, int axis) {
  for (int i = 3 - axes; i <= axis; ++i)
    if (n.count(family + "dhw"[i])) return true;
  return false;
}

int64_t number(const Numbers& n, const std::string& key, int64_t otherwise) {
  const auto found = n.find(key);
  return found == n.end() ? otherwise : found->second;
}

int64_t floor_divide(int64_t a, int64_t b) {
  return a / b - (a % b < 0);
}

/// One axis of a convolution; of a transposed one `in` is what the convolution writes.
struct Axis {
  int64_t in, reach, stride, pad;
  bool transposed;

  /// Positions that the convolution from `large` positions writes.
  int64_t written(int64_t large, int64_t behind) const {
    return floor_divide(large + pad + behind - reach, stride) + 1;
  }
  /// With as much padding behind as in front.
  int64_t symmetric_output() const { return transposed ? (in - 1) * stride + reach - 2 * pad : written(in, pad); }
  /// The padding behind that gives these outputs: as much as in front where that does. Negative where none does.
  int64_t padding_behind(int64_t out) const {
    const int64_t small = transposed ? in : out, large = transposed ? out : in;
    if (written(large, pad) == small) return pad;
    if (written(large, 0) == small) return 0;
    const int64_t needed = (small - 1) * stride + reach - large - pad;
    return needed <= most_padding() ? needed : -1;
  }
  /// In front and behind, half of what these outputs need.
  int64_t even_padding(int64_t out) const {
    const int64_t small = transposed ? in : out, large = transposed ? out : in;
    return std::max<int64_t>(0, (small - 1) * stride + reach - large) / 2;
  }
  /// The outputs that some padding behind gives: more of it than this would be read alone.
  int64_t most_padding() const { return std::max(pad, reach - 1); }
  std::pair<int64_t, int64_t> outputs() const {
    const int64_t last = (in - 1) * stride + reach - pad;
    return transposed ? std::pair(last - most_padding(), last + stride - 1)
                      : std::pair(written(in, 0), written(in, most_padding()));
  }
};

/// Numbers of axes that the image lacks would have no effect.
void refuse_lacking_axes(const Numbers& n, int axes, std::string_view text) {
  for (int i = 0; i < 3 - axes; ++i)
    for (const char family : {'o', 's', 'd', 'p'}) {
      const std::string key{family, "dhw"[i]};
      const int64_t neutral = family == 'o' || family == 's' ? 1 : 0;
      if (number(n, key, neutral) != neutral)
        fail_string(key + ": expected an input or kernel along that axis, found none", text);
    }
}

ConvString from_numbers(const Numbers& n, std::string name, bool transposed, std::string_view text) {
  for (const char* key : {"ic", "oc"})
    if (!n.count(key)) fail_string(std::string("no ") + key, text);
  const int axes = n.count("id") || n.count("kd") ? 3 : n.count("ih") || n.count("kh") ? 2 : 1;
  refuse_lacking_axes(n, axes, text);
  ConvString c;
  c.name = name.empty() ? std::string(text) : std::move(name);
  c.transposed = transposed;
  ConvAttrs& a = c.attrs;
  const Int3 in = along_axes(n, "i", axes, 1, 1), kernel = along_axes(n, "k", axes, 1, 1);
  a.stride = along_axes(n, "s", axes, 1, 1), a.dilation = along_axes(n, "d", axes, 0, 0);
  a.pad_low = along_axes(n, "p", axes, 0, 0);
  a.groups = number(n, "g", 1);
  const int64_t batch = number(n, "mb", 2), ic = n.at("ic"), oc = n.at("oc");
  if (ic % a.groups != 0 || oc % a.groups != 0)
    fail_usage("convolution string: expected channels that " + std::to_string(a.groups) + " groups divide, found \"" +
               std::string(text) + "\"");
  const Int3 wanted = along_axes(n, "o", axes, 1, 0);  // 0: not given
  Int3 out{};
  for (int i = 0; i < 3; ++i) {
    a.dilation[i] += 1;
    Axis axis{in[i], a.dilation[i] * (kernel[i] - 1) + 1, a.stride[i], a.pad_low[i], transposed};
    if (wanted[i] && !is_given(n, "p", axes, i)) axis.pad = a.pad_low[i] = axis.even_padding(wanted[i]);
    out[i] = wanted[i] ? wanted[i] : axis.symmetric_output();
    const auto [least, most] = axis.outputs();
    if (out[i] < 1 || most < 1)
      fail_usage("convolution string: expected outputs along every axis, found none in \"" + std::string(text) + "\"");
    a.pad_high[i] = axis.padding_behind(out[i]);
    if (a.pad_high[i] < 0)
      fail_string(std::string("o") + "dhw"[i] + ": expected " + std::to_string(std::max<int64_t>(1, least)) + " to " +
                      std::to_string(most) + ", found " + std::to_string(out[i]),
                  text);
  }
  c.src = Shape(batch, in[0], in[1], in[2], ic), c.dst = Shape(batch, out[0], out[1], out[2], oc);
  c.weights = Shape(transposed ? ic : oc, kernel[0], kernel[1], kernel[2], (transposed ? oc : ic) / a.groups);
  return c;
}

/// Extents that are numbers by themselves may have a product that is none.
void check_size(const ConvString& c) {
  for (const Shape* shape : {&c.src, &c.dst, &c.weights})
    if (count_elements(*shape) > double(most_elements))
      fail_string("expected at most " + std::to_string(most_elements) + " elements in a tensor, found " + shape->str(),
                  c.name);
  const Shape& y = c.transposed ? c.src : c.dst;
  if (2 * double(y.rows()) * count_elements(c.weights) > most_flops)
    fail_string("expected fewer than 2^62 operations, found " + y.str() + " times " + c.weights.str(), c.name);
}

}  // namespace

std::string_view name_of(Pass pass) {
  return pass == Pass::forward ? "forward" : pass == Pass::backward_data ? "backward_data" : "backward_weights";
}

std::vector<Pass> parse_passes(std::string_view text) {
  std::vector<Pass> passes;
  for (std::string_view word : split(text, ',')) {
    bool found = false;
    for (Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights})
      if (word == name_of(pass)) passes.push_back(pass), found = true;
    if (!found)
      fail_usage("--pass: expected forward, backward_data or backward_weights, found \"" + std::string(word) + "\"");
  }
  return passes;
}

Problem ConvString::problem(Pass pass, DType type) const {
  check_size(*this);
  // A transposed convolution is the backward_data of the convolution from its output to its input.
  const Shape &x = transposed ? dst : src, &y = transposed ? src : dst;
  const TensorDesc xd(x, type), yd(y, type), wd(weights, type);
  const OpKind forward = transposed ? OpKind::conv_backward_data : OpKind::conv_forward;
  const OpKind backward = transposed ? OpKind::conv_forward : OpKind::conv_backward_data;
  const OpKind kind = pass == Pass::forward         ? forward
                      : pass == Pass::backward_data ? backward
                                                    : OpKind::conv_backward_weights;
  ConvAttrs a = attrs;
  if (kind == OpKind::conv_backward_data) a.result_size = spatial(x);
  if (kind == OpKind::conv_backward_weights) a.result_size = spatial(weights);
  Problem p;
  p.op = {kind, a};
  if (kind == OpKind::conv_forward) p.in = {xd, wd};
  if (kind == OpKind::conv_backward_data) p.in = {yd, wd};
  if (kind == OpKind::conv_backward_weights) p.in = {xd, yd};
  if (pass == Pass::forward) p.in.emplace_back(Shape::vector(dst.c()), accumulation_type(type));  // bias
  p.out = infer(p.op, p.in);
  return p;
}

ConvString parse_conv_string(std::string_view text) {
  text = trim(text);
  const bool transposed = text.starts_with("deconv ");
  if (const size_t space = text.find(' '); text.starts_with("conv ") || transposed) text = trim(text.substr(space));
  std::string name;
  const Numbers numbers = read_numbers(text, name);
  return from_numbers(numbers, std::move(name), transposed, text);
}

bool is_verbose_line(std::string_view text) {
  return text.starts_with("dnnl_verbose,") || text.starts_with("onednn_verbose,");
}

namespace {

/// "eltwise_relu:0.3+sum" of "attr-scratchpad:user attr-post-ops:eltwise_relu:0.3+sum" (with quotes up to oneDNN 1.5).
std::string post_ops_of(std::string_view field) {
  for (std::string_view key : {"post-ops:", "post_ops:"})
    if (const size_t at = field.find(key); at != std::string_view::npos) {
      const std::string_view rest = field.substr(at + key.size());
      std::string ops(rest.substr(0, rest.find(' ')));
      std::erase_if(ops, [](char c) { return c == '\'' || c == ';'; });
      return ops;
    }
  return {};
}

}  // namespace

VerboseLine parse_verbose_line(std::string_view text) {
  VerboseLine line{};
  bool primitive = false, found = false;
  bool typed = false;
  for (std::string_view field : split(text, ',')) {
    if (field == "convolution" || field == "deconvolution") primitive = true, line.conv.transposed = field[0] == 'd';
    if (field.starts_with("forward")) line.pass = Pass::forward;
    if (field == "backward_data") line.pass = Pass::backward_data;
    if (field == "backward_weights") line.pass = Pass::backward_weights;
    if (std::string ops = post_ops_of(field); !ops.empty()) line.post_ops = std::move(ops);
    // "src_bf16::blocked:..." up to oneDNN 3.4, "src:bf16::blocked:..." later.
    if (const size_t at = field.find("src");
        at != std::string_view::npos && field.find(":blocked:") != std::string_view::npos) {
      std::string_view rest = field.substr(std::min(field.size(), at + 4));
      const std::string name(rest.substr(0, rest.find(':')));
      const auto type = parse_dtype(name);
      if (!type || (*type != DType::f32 && *type != DType::bf16 && *type != DType::f16))
        fail_usage("verbose line: expected src in f32, bf16 or f16, found \"" + name + "\"");
      line.type = *type, typed = true;
    }
    if (field.find("_ic") != std::string_view::npos && field.find("oc") != std::string_view::npos &&
        (field.starts_with("mb") || field.starts_with("g"))) {
      std::string name;
      const Numbers numbers = read_numbers(field, name);
      line.conv = from_numbers(numbers, std::string(field), line.conv.transposed, field);
      found = true;
    }
  }
  if (primitive && found && !typed) fail_usage("verbose line: no data type of src in \"" + std::string(text) + "\"");
  if (!primitive || !found)
    fail_usage("verbose line: expected a convolution or deconvolution, found \"" + std::string(text) + "\"");
  return line;
}

}  // namespace convoy::bench
