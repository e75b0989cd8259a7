// ONNX' operators as ours: what a node means, by the kinds and kernels of this library.
#pragma once

#include <cmath>
#include <optional>
#include <stdexcept>

#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/kernel_check.h"
#include "tests/onnx_reader.h"

namespace convoy::testing {

/// N, C, spatial... to our five extents, missing axes in front.
inline Shape activation_shape(const std::vector<int64_t>& d) {
  if (d.empty()) return Shape::vector(1);
  Shape s(d[0], 1, 1, 1, d.size() > 1 ? d[1] : 1);
  for (size_t i = 2; i < d.size(); ++i) s[static_cast<int>(4 - (d.size() - i))] = d[i];
  return s;
}

inline Tensor channels_last(const OnnxTensor& t) {
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

inline Tensor vector(const OnnxTensor& t) {
  const Tensor out = Tensor::zeros(Shape::vector(static_cast<int64_t>(t.data.size())), DType::f32);
  std::copy(t.data.begin(), t.data.end(), out.data<float>());
  return out;
}

/// An attribute over the spatial axes, missing axes in front; `half` 1 reads the second half (high pads).
inline Int3 spatial(const OnnxNode& n, const std::string& name, size_t rank, int64_t standard, size_t half = 0) {
  Int3 out{standard, standard, standard};
  if (rank < 3)
    std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(3 - rank),
              name == "kernel_shape" || name == "strides" || name == "dilations" ? 1 : 0);
  const auto found = n.ints.find(name);
  if (found == n.ints.end() || found->second.size() < rank * (half + 1)) return out;
  for (size_t i = 0; i < rank; ++i) out[3 - rank + i] = found->second[half * rank + i];
  return out;
}

inline const Kernel& reference_kernel(const Problem& p) {
  for (const auto& kernel : kernel_list())
    if (kernel->name() == reference_name && kernel->supports(p).ok) return *kernel;
  FAIL("no reference kernel for " << p.text());
  throw std::logic_error("unreachable");
}

struct Case {
  Op op;
  std::vector<Tensor> in;
};

/// The op a node stands for, or nothing where it asks for what we do not have (ceil mode, automatic padding, ...).
inline std::optional<Case> translate(const OnnxNode& n, const std::vector<OnnxTensor>& in) {
  const auto has = [&](const char* name, int64_t value) {
    return n.ints.count(name) && !n.ints.at(name).empty() && n.ints.at(name)[0] == value;
  };
  if (n.strings.count("auto_pad") && !n.strings.at("auto_pad").empty() && n.strings.at("auto_pad") != "NOTSET")
    return std::nullopt;
  if (has("ceil_mode", 1) || has("storage_order", 1)) return std::nullopt;
  if (n.outputs.size() != 1 && n.op != "BatchNormalization") return std::nullopt;
  for (const OnnxTensor& t : in)
    if (t.dims.empty() || t.dims.size() > 5) return std::nullopt;
  if (in[0].type != 1) return std::nullopt;
  const bool labels_follow = n.op == "SoftmaxCrossEntropyLoss", extents_follow = n.op == "Resize" || n.op == "Slice";
  for (size_t i = 1; i < in.size(); ++i)
    if (in[i].type != 1 && !extents_follow && !(labels_follow && i == 1)) return std::nullopt;
  const size_t rank = in[0].dims.size() - 2;
  const bool classes = in[0].dims.size() >= 2;  // there is an axis of channels
  const auto on_channels = [&](int64_t axis) { return classes && (axis == 1 || axis == 1 - int64_t(rank) - 2); };
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
  if (n.op == "Add" && in.size() == 2 && in[0].dims == in[1].dims)
    return Case{{OpKind::add, NoAttrs{}}, {channels_last(in[0]), channels_last(in[1])}};
  if (n.op == "Concat" && n.ints.count("axis") && on_channels(n.ints.at("axis").at(0))) {
    Case c{{OpKind::concat, NoAttrs{}}, {}};
    for (const OnnxTensor& t : in) c.in.push_back(channels_last(t));
    return c;
  }
  if (n.op == "ArgMax" && n.ints.count("axis") && on_channels(n.ints.at("axis").at(0)) && !has("select_last_index", 1))
    return Case{{OpKind::arg_max, NoAttrs{}}, {channels_last(in[0])}};
  if (n.op == "Slice" && in.size() >= 4 && in[3].data.size() == 1 && on_channels(int64_t(in[3].data[0])) &&
      (in.size() == 4 || in[4].data[0] == 1)) {
    const int64_t channels = in[0].dims[1], begin = int64_t(in[1].data[0]),
                  end = std::min(channels, int64_t(in[2].data[0]));
    if (begin < 0 || end <= begin) return std::nullopt;
    return Case{{OpKind::slice, SliceAttrs{begin, end - begin}}, {channels_last(in[0])}};
  }
  if (labels_follow) {
    // "mean" divides by the sum of weights; ours are plain means.
    const auto reduction = n.strings.find("reduction");
    const bool sum = reduction != n.strings.end() && reduction->second == "sum",
               mean = reduction == n.strings.end() || reduction->second == "mean";
    const auto ignored = n.ints.find("ignore_index");
    PixelLossAttrs a;
    a.reduction = sum ? Reduction::sum : Reduction::mean;
    if (in.size() > 2) {
      if (in[2].data.size() > a.weights.values.size()) return std::nullopt;
      a.weights = ClassWeights(std::vector<double>(in[2].data.begin(), in[2].data.end()));
    }
    if (!sum && !(mean && in.size() == 2 && ignored == n.ints.end())) return std::nullopt;
    const Tensor logits = channels_last(in[0]);
    const Shape s = logits.shape();
    const Tensor labels = Tensor::zeros({s.n(), s.d(), s.h(), s.w(), 1}, DType::u8);
    for (size_t i = 0; i < in[1].data.size(); ++i) {
      const auto label = int64_t(in[1].data[i]);
      const bool skip = ignored != n.ints.end() && label == ignored->second.at(0);
      labels.data<uint8_t>()[i] = skip ? uint8_t(a.ignore) : uint8_t(label);
    }
    return Case{{OpKind::pixel_loss, a}, {logits, labels}};
  }
  if (n.op == "BatchNormalization" && in.size() == 5) {
    const double epsilon = n.floats.count("epsilon") ? double(n.floats.at("epsilon")) : 1e-5;
    if (has("training_mode", 1)) {
      const Tensor x = channels_last(in[0]);
      const Problem moments = problem({OpKind::channel_moments, NoAttrs{}}, {x.desc()});
      Run run = make_run(moments, Fill::integers, 1);
      run.in[0].copy_from(x);
      execute(reference_kernel(moments), moments, run);
      Tensor copy = Tensor::zeros(run.out[0].shape(), DType::f64);
      copy.copy_from(run.out[0]);
      return Case{{OpKind::batch_norm, BatchNormAttrs{.epsilon = epsilon}}, {x, vector(in[1]), vector(in[2]), copy}};
    }
    return Case{{OpKind::batch_norm, BatchNormAttrs{.epsilon = epsilon}},
                {channels_last(in[0]), vector(in[1]), vector(in[2]), vector(in[3]), vector(in[4])}};
  }
  if (n.op == "Resize" && in.size() == 2 && rank == 2 && in[1].dims == std::vector<int64_t>{4}) {
    const bool sizes = in[1].type == 7;
    const auto text = [&](const char* name, const char* otherwise) {
      return n.strings.count(name) && !n.strings.at(name).empty() ? n.strings.at(name) : std::string(otherwise);
    };
    const std::string mode = text("coordinate_transformation_mode", "half_pixel");
    // PyTorch's half-pixel rule differs for outputs of one row or column only.
    if (text("mode", "nearest") != "linear" ||
        (mode != "half_pixel" && mode != "align_corners" && mode != "asymmetric" && mode != "pytorch_half_pixel"))
      return std::nullopt;
    const Tensor x = channels_last(in[0]), numbers = vector(in[1]);
    // Where a scale does not lead to a whole number, ONNX divides by the scale, we by the ratio of extents.
    const double height = numbers.at(0, 0, 0, 0, 2) * (sizes ? 1.0 : double(x.shape().h())),
                 width = numbers.at(0, 0, 0, 0, 3) * (sizes ? 1.0 : double(x.shape().w()));
    if (height != std::floor(height) || width != std::floor(width)) return std::nullopt;
    if (mode == "pytorch_half_pixel" && (height == 1 || width == 1)) return std::nullopt;
    const Corners corners = mode == "align_corners" ? Corners::aligned
                            : mode == "asymmetric"  ? Corners::asymmetric
                                                    : Corners::half_pixel;
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

}  // namespace convoy::testing
