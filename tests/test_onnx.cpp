// The operator vectors of Debian's libonnx-testdata that our ops cover, through every kernel that takes them. An
// outside oracle: values computed by other frameworks.
#include <cmath>
#include <filesystem>
#include <optional>

#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/kernel_check.h"
#include "tests/onnx_reader.h"

using namespace convoy;
using namespace convoy::testing;
namespace fs = std::filesystem;

namespace {

/// N, C, spatial... to our five extents, missing axes in front.
Shape activation_shape(const std::vector<int64_t>& d) {
  Shape s(d[0], 1, 1, 1, d.size() > 1 ? d[1] : 1);
  for (size_t i = 2; i < d.size(); ++i) s[static_cast<int>(4 - (d.size() - i))] = d[i];
  return s;
}

Tensor channels_last(const OnnxTensor& t) {
  const Shape s = activation_shape(t.dims);
  const Tensor out = Tensor::zeros(s, DType::f32);
  size_t i = 0;
  for (int64_t n = 0; n < s.n(); ++n)
    for (int64_t c = 0; c < s.c(); ++c)
      for (int64_t d = 0; d < s.d(); ++d)
        for (int64_t h = 0; h < s.h(); ++h)
          for (int64_t w = 0; w < s.w(); ++w) out.set(n, d, h, w, c, t.data[i++]);
  return out;
}

Tensor vector(const OnnxTensor& t) {
  const Tensor out = Tensor::zeros(Shape::vector(static_cast<int64_t>(t.data.size())), DType::f32);
  std::copy(t.data.begin(), t.data.end(), out.data<float>());
  return out;
}

/// An attribute over the spatial axes, missing axes in front; `half` 1 reads the second half (high pads).
Int3 spatial(const OnnxNode& n, const std::string& name, size_t rank, int64_t standard, size_t half = 0) {
  Int3 out{standard, standard, standard};
  if (rank < 3)
    std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(3 - rank),
              name == "kernel_shape" || name == "strides" || name == "dilations" ? 1 : 0);
  const auto found = n.ints.find(name);
  if (found == n.ints.end() || found->second.size() < rank * (half + 1)) return out;
  for (size_t i = 0; i < rank; ++i) out[3 - rank + i] = found->second[half * rank + i];
  return out;
}

struct Case {
  Op op;
  std::vector<Tensor> in;
};

/// The op a node stands for, or nothing where it asks for what we do not have (ceil mode, automatic padding, ...).
std::optional<Case> translate(const OnnxNode& n, const std::vector<OnnxTensor>& in) {
  const auto has = [&](const char* name, int64_t value) {
    return n.ints.count(name) && !n.ints.at(name).empty() && n.ints.at(name)[0] == value;
  };
  if (n.strings.count("auto_pad") && !n.strings.at("auto_pad").empty() && n.strings.at("auto_pad") != "NOTSET")
    return std::nullopt;
  if (has("ceil_mode", 1) || has("storage_order", 1) || n.outputs.size() != 1) return std::nullopt;
  for (const OnnxTensor& t : in)
    if (t.type != 1 || t.dims.empty() || t.dims.size() > 5) return std::nullopt;
  const size_t rank = in[0].dims.size() - 2;
  const auto pool = [&] {
    PoolAttrs a{spatial(n, "kernel_shape", rank, 1), spatial(n, "strides", rank, 1), spatial(n, "pads", rank, 0),
                spatial(n, "pads", rank, 0, 1)};
    a.count_padding = has("count_include_pad", 1);
    return a;
  };
  if (n.op == "LeakyRelu")
    return Case{{OpKind::activation, ActivationAttrs{.slope = n.floats.count("alpha") ? n.floats.at("alpha") : 0.01}},
                {channels_last(in[0])}};
  if (n.op == "Relu") return Case{{OpKind::activation, ActivationAttrs{}}, {channels_last(in[0])}};
  if (n.op == "Tanh")
    return Case{{OpKind::activation, ActivationAttrs{.function = Activation::tanh}}, {channels_last(in[0])}};
  if (n.op == "MaxPool" && spatial(n, "dilations", rank, 1) == Int3{1, 1, 1})
    return Case{{OpKind::max_pool, pool()}, {channels_last(in[0])}};
  if (n.op == "AveragePool") return Case{{OpKind::avg_pool, pool()}, {channels_last(in[0])}};
  if (n.op == "Conv" || n.op == "ConvTranspose") {
    if (n.ints.count("output_shape")) return std::nullopt;
    Case c{{OpKind::conv_forward, ConvAttrs{}}, {channels_last(in[0]), channels_last(in[1])}};
    ConvAttrs a{spatial(n, "strides", rank, 1), spatial(n, "dilations", rank, 1), spatial(n, "pads", rank, 0),
                spatial(n, "pads", rank, 0, 1)};
    if (n.ints.count("group")) a.groups = n.ints.at("group")[0];
    if (in.size() > 2) c.in.push_back(vector(in[2]));
    if (n.op == "ConvTranspose") {
      c.op.kind = OpKind::conv_backward_data;
      const Int3 extra = spatial(n, "output_padding", rank, 0);
      const Shape &x = c.in[0].shape(), &w = c.in[1].shape();
      for (int i = 0; i < 3; ++i)
        a.result_size[i] =
            (x[i + 1] - 1) * a.stride[i] + extra[i] + (w[i + 1] - 1) * a.dilation[i] + 1 - a.pad_low[i] - a.pad_high[i];
    }
    c.op.attrs = a;
    return c;
  }
  if (n.op == "GlobalAveragePool") {
    const Tensor x = channels_last(in[0]);
    const Int3 all{x.shape().d(), x.shape().h(), x.shape().w()};
    return Case{{OpKind::avg_pool, PoolAttrs{.kernel = all, .stride = all}}, {x}};
  }
  if (n.op == "BatchNormalization" && in.size() == 5 && !has("training_mode", 1)) {
    const double epsilon = n.floats.count("epsilon") ? double(n.floats.at("epsilon")) : 1e-5;
    return Case{{OpKind::batch_norm, BatchNormAttrs{.epsilon = epsilon}},
                {channels_last(in[0]), vector(in[1]), vector(in[2]), vector(in[3]), vector(in[4])}};
  }
  if (n.op == "Resize" && in.size() == 2 && rank == 2 && in[1].dims == std::vector<int64_t>{4}) {
    const auto text = [&](const char* name, const char* otherwise) {
      return n.strings.count(name) && !n.strings.at(name).empty() ? n.strings.at(name) : std::string(otherwise);
    };
    const std::string mode = text("coordinate_transformation_mode", "half_pixel");
    if (text("mode", "nearest") != "linear" ||
        (mode != "half_pixel" && mode != "align_corners" && mode != "asymmetric"))
      return std::nullopt;
    const Tensor x = channels_last(in[0]), scales = vector(in[1]);
    // Where a scale does not lead to a whole number, ONNX divides by the scale, we by the ratio of extents.
    const double height = double(x.shape().h()) * scales.at(0, 0, 0, 0, 2),
                 width = double(x.shape().w()) * scales.at(0, 0, 0, 0, 3);
    if (height != std::floor(height) || width != std::floor(width)) return std::nullopt;
    const Corners corners = mode == "half_pixel"      ? Corners::half_pixel
                            : mode == "align_corners" ? Corners::aligned
                                                      : Corners::asymmetric;
    return Case{{OpKind::resize, ResizeAttrs{corners, {1, int64_t(height), int64_t(width)}}}, {x}};
  }
  if (n.op == "Gemm" && has("transB", 1) && !has("transA", 1) && in.size() == 3 && in[2].dims.size() == 1) {
    Case c{{OpKind::dense_forward, NoAttrs{}}, {channels_last(in[0]), channels_last(in[1]), vector(in[2])}};
    for (const char* factor : {"alpha", "beta"})
      if (n.floats.count(factor) && n.floats.at(factor) != 1.0f) return std::nullopt;
    return c;
  }
  return std::nullopt;
}

/// Runs one folder; returns how many kernels were compared.
int run_folder(const fs::path& folder) {
  const OnnxModel model = onnx::model((folder / "model.onnx").string());
  if (model.nodes.size() != 1) return 0;
  std::map<std::string, OnnxTensor> values;
  for (const OnnxTensor& t : model.initializers) values[t.name] = t;
  for (size_t i = 0; i < model.inputs.size(); ++i) {
    const fs::path file = folder / "test_data_set_0" / ("input_" + std::to_string(i) + ".pb");
    if (fs::exists(file)) values[model.inputs[i]] = onnx::tensor(onnx::read(file.string()));
  }
  std::vector<OnnxTensor> in;
  for (const std::string& name : model.nodes[0].inputs) {
    if (name.empty()) continue;  // an optional input that is not given
    if (!values.count(name)) return 0;
    in.push_back(values[name]);
  }
  if (in.empty()) return 0;
  const auto found = translate(model.nodes[0], in);
  if (!found) return 0;
  const Tensor expected =
      channels_last(onnx::tensor(onnx::read((folder / "test_data_set_0" / "output_0.pb").string())));
  Problem p{found->op, {}, {}, DeviceKind::cpu, 2};
  for (const Tensor& t : found->in) p.in.push_back(t.desc());
  p.out = infer(p.op, p.in);
  INFO(folder.filename().string() << " " << p.text());
  REQUIRE(p.out[0].shape.elements() == expected.shape().elements());
  int ran = 0;
  for (const auto& kernel : kernel_list()) {
    if (!kernel->supports(p).ok) continue;
    Run run = make_run(p, Fill::integers, 1);
    for (size_t i = 0; i < p.in.size(); ++i) run.in[i].copy_from(found->in[i]);
    execute(*kernel, p, run);
    double worst = 0, size = 1e-3;
    // Vectors of rank 2 hold their features in C on both sides, so element order agrees in every rank.
    const Tensor flat_expected(TensorDesc(p.out[0].shape, DType::f32), expected.bytes());
    for_each_index(p.out[0].shape, [&](auto... at) {
      worst = std::max(worst, std::abs(run.out[0].at(at...) - flat_expected.at(at...)));
      size = std::max(size, std::abs(flat_expected.at(at...)));
    });
    INFO(kernel->name());
    CHECK(worst <= 1e-5 * size);
    ++ran;
  }
  return ran;
}

}  // namespace

TEST_CASE("operator vectors of libonnx-testdata", "[onnx]") {
  const fs::path root = "/usr/share/libonnx-testdata/data";
  if (!fs::is_directory(root)) {
    WARN("skipped: libonnx-testdata is not installed");
    return;
  }
  int vectors = 0, kernels = 0, others = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().filename() != "model.onnx") continue;
    const int ran = run_folder(entry.path().parent_path());
    (ran ? vectors : others) += 1;
    kernels += ran;
  }
  WARN(vectors << " vectors through " << kernels << " kernels; " << others << " are of other operators or settings");
  CHECK(vectors >= 50);
}
