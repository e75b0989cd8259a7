// Convolutions by cuDNN, channels-last as they are stored: one operation of its graph interface, sums in f32, without
// TF32, transforms, and kernels whose sums differ from run to run. Up to eight plans of its heuristics are timed when
// somebody first asks whether it takes a problem, once per process. It sees dense tensors and equal padding on both
// sides: slices, and images with the rows or columns that one side is padded by more, are copied through the workspace.
// Bias and activation are a pass of our own; what a data gradient is added to is an operation of the graph where that
// is faster than such a pass.
#include <map>
#include <optional>

#include "core/conv_shapes.h"
#include "core/round_up.h"
#include "kernels/conv/conv_cuda_passes.h"
#include "kernels/device/cuda.h"
#include "kernels/device/cudnn.h"
#include "kernels/device/timing.h"
#include "kernels/elementwise/elementwise_cuda.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace {

using namespace cuda;

constexpr int most_plans = 8;
constexpr int64_t most_workspace = int64_t{1} << 30;
// cuDNN compiles plans with an addition when they are made, half a second each: two, and only where the addition is
// long enough for training to win that back.
constexpr int most_plans_of_sums = 2;
constexpr float least_addition = 0.03f;  // milliseconds, as a pass of its own

cudnnDataType_t type_of(DType type) {
  return type == DType::f32 ? CUDNN_DATA_FLOAT : type == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

/// N, C and the spatial extents, without the depth of an image.
struct Dims {
  std::vector<int64_t> extent, stride;
};
Dims dims_of(const Shape& s, bool flat) {
  const auto dense = TensorDesc::dense_strides(s);
  Dims d{{s.n(), s.c()}, {dense[0], 1}};
  for (int i = flat ? 1 : 0; i < 3; ++i)
    d.extent.push_back(s[i + 1]), d.stride.push_back(dense[static_cast<size_t>(i + 1)]);
  return d;
}

/// `pitch`: elements from pixel to pixel of a slice, 0: dense. A virtual tensor passes from one operation to the next.
CudnnDescriptor tensor(int64_t id, const Shape& shape, DType type, bool flat, int64_t pitch = 0,
                       bool is_virtual = false) {
  Dims d = dims_of(shape, flat);
  for (size_t i = 0; i < d.stride.size() && pitch > 0; ++i)
    if (i != 1) d.stride[i] = d.stride[i] / shape.c() * pitch;
  const cudnnDataType_t data_type = type_of(type);
  const int64_t alignment = 16;
  CudnnDescriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &data_type);
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, d.extent);
  t.set(CUDNN_ATTR_TENSOR_STRIDES, d.stride);
  if (is_virtual) t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  t.finalize();
  return t;
}

enum : int64_t { id_x = 1, id_w = 2, id_y = 3, id_addend = 4, id_gradient = 5 };

/// sum = gradient + addend in f32: the operation, and what it refers to.
struct Addition {
  CudnnDescriptor addend, sum;
  CudnnDescriptor mode{CUDNN_BACKEND_POINTWISE_DESCRIPTOR};
  CudnnDescriptor operation{CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR};

  Addition(const CudnnDescriptor& gradient, CudnnDescriptor its_addend, CudnnDescriptor its_sum)
      : addend(std::move(its_addend)), sum(std::move(its_sum)) {
    const cudnnPointwiseMode_t add = CUDNN_POINTWISE_ADD;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    mode.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &add);
    mode.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    mode.finalize();
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, gradient);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, addend);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, sum);
    operation.finalize();
  }
};

/// A convolution that cuDNN can run, whatever the pass: x, w, y in its own terms. A data gradient may be added to
/// something, pixels of which lie `addend_pitch` elements apart; 0: is not.
class CudnnPlan {
 public:
  CudnnPlan(OpKind kind, const ConvShapes& s, DType type, DType result, int64_t addend_pitch = 0)
      : type_(type), addend_pitch_(addend_pitch) {
    const bool flat = s.x.d() == 1 && s.w.d() == 1 && s.y.d() == 1 && s.attrs.pad_low[0] == 0;
    const auto part = [&](const Int3& a) { return std::vector<int64_t>(a.begin() + (flat ? 1 : 0), a.end()); };
    const bool forward = kind == OpKind::conv_forward, data = kind == OpKind::conv_backward_data;
    const CudnnDescriptor x = adds() ? tensor(id_gradient, s.x, DType::f32, flat, 0, true)
                                     : tensor(id_x, s.x, data ? result : type, flat),
                          w = tensor(id_w, s.w, !forward && !data ? result : type, flat),
                          y = tensor(id_y, s.y, forward ? result : type, flat);
    CudnnDescriptor conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    const int64_t axes = flat ? 2 : 3;
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &axes);
    conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    conv.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    conv.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, part(s.attrs.pad_low));
    conv.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, part(s.attrs.pad_high));
    conv.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, part(s.attrs.stride));
    conv.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, part(s.attrs.dilation));
    conv.finalize();

    const float one = 1, zero = 0;
    CudnnDescriptor op(forward ? CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
                       : data  ? CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                               : CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
    const auto set_op = [&](auto alpha, auto beta, auto desc, auto name_x, auto name_w, auto name_y) {
      op.set(alpha, CUDNN_TYPE_FLOAT, 1, &one), op.set(beta, CUDNN_TYPE_FLOAT, 1, &zero);
      op.set(desc, conv), op.set(name_x, x), op.set(name_w, w), op.set(name_y, y);
    };
    if (forward)
      set_op(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
             CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
    else if (data)
      set_op(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
    else
      set_op(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
    op.finalize();
    std::vector<cudnnBackendDescriptor_t> ops{op.handle()};
    std::optional<Addition> addition;
    if (adds()) {
      addition.emplace(x, tensor(id_addend, s.x, result, flat, addend_pitch), tensor(id_x, s.x, result, flat));
      ops.push_back(addition->operation.handle());
    }
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn()->handle);
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(ops.size()), ops.data());
    graph_.finalize();
    choose(s, type, result, kind);
  }

  int64_t workspace() const { return workspace_; }
  float milliseconds() const { return milliseconds_; }
  const std::string& detail() const { return detail_; }

  /// What was refused when it was timed is refused no more: an error of the device.
  void run(const void* x, const void* w, const void* y, void* workspace, const void* addend = nullptr) const {
    try {
      execute(*plan_, x, w, y, workspace, addend);
    } catch (const CudnnRefusal& refusal) {
      fail_runtime("cuDNN: " + refusal.what);
    }
  }

 private:
  bool adds() const { return addend_pitch_ > 0; }

  static void execute(const CudnnDescriptor& plan, const void* x, const void* w, const void* y, void* workspace,
                      const void* addend) {
    const int64_t ids[] = {id_x, id_w, id_y, id_addend};
    const void* pointers[] = {x, w, y, addend};
    const int64_t count = addend ? 4 : 3;
    CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    pack.finalize();
    const auto require = [](cudnnStatus_t status) {
      if (status != CUDNN_STATUS_SUCCESS) throw CudnnRefusal{cudnn()->error_string(status)};
    };
    require(cudnn()->set_stream(cudnn()->handle, stream()));
    require(cudnn()->execute(cudnn()->handle, plan.handle(), pack.handle()));
  }

  /// Engines whose sums depend on the order of blocks, that round f32 to TF32, or whose transforms err with their
  /// neighbours' magnitude are left out.
  bool wanted(const CudnnDescriptor& config) const {
    CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t handle = engine.handle();
    config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    const int64_t count =
        engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < count; ++i)
      if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC || notes[i] == CUDNN_NUMERICAL_NOTE_FFT ||
          notes[i] == CUDNN_NUMERICAL_NOTE_WINOGRAD || notes[i] == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 ||
          notes[i] == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 || notes[i] == CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13 ||
          (type_ == DType::f32 &&
           (notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE || notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)))
        return false;
    return true;
  }

  /// What a heuristic proposes; nothing where it has no word on this convolution.
  std::vector<CudnnDescriptor> proposals(cudnnBackendHeurMode_t mode) const {
    std::vector<CudnnDescriptor> configs;
    try {
      CudnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
      heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
      heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
      heuristic.finalize();
      const int64_t count = heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
      std::vector<cudnnBackendDescriptor_t> handles;
      for (int64_t i = 0; i < count; ++i) {
        configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        handles.push_back(configs.back().handle());
      }
      heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, handles.data());
    } catch (const CudnnRefusal&) {
      configs.clear();
    }
    return configs;
  }

  void choose(const ConvShapes& s, DType type, DType result, OpKind kind) {
    const auto bytes = [&](const Shape& shape, bool is_result) {
      return shape.elements() * size_of(is_result ? result : type);
    };
    const bool forward = kind == OpKind::conv_forward, data = kind == OpKind::conv_backward_data;
    const DeviceBytes x(bytes(s.x, data)), w(bytes(s.w, !forward && !data)), y(bytes(s.y, forward)),
        addend(s.x.rows() * addend_pitch_ * size_of(result));
    int tried = 0;
    bool short_of_memory = false;
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      if (tried > 0) break;
      int compiled = 0;
      std::vector<CudnnDescriptor> configs = proposals(mode);
      const size_t count = configs.size();
      for (size_t i = 0; i < configs.size() && tried < most_plans; ++i) {
        try {
          if (!wanted(configs[i])) continue;
          if (adds() && compiled++ == most_plans_of_sums) break;
          auto plan = std::make_unique<CudnnDescriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
          plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn()->handle);
          plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]);
          plan->finalize();
          int64_t workspace = 0;
          plan->get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
          if (workspace > most_workspace) continue;
          const DeviceBytes scratch(workspace);
          const float milliseconds = least_milliseconds(
              3, [&] { execute(*plan, x.data(), w.data(), y.data(), scratch.data(), addend.data()); });
          ++tried;
          if (plan_ && milliseconds >= milliseconds_) continue;
          milliseconds_ = milliseconds, plan_ = std::move(plan), workspace_ = workspace;
          detail_ = "plan " + std::to_string(i) + " of " + std::to_string(count);
        } catch (const CudnnRefusal&) {    // the next one may do
        } catch (const NoDeviceMemory&) {  // for its workspace
          short_of_memory = true;
        }
      }
    }
    if (!plan_ && short_of_memory) throw NoDeviceMemory(ErrorKind::runtime, "no room for the workspace of a plan");
    if (!plan_) throw CudnnRefusal{"cuDNN has no plan for this convolution"};
  }

  DType type_;
  CudnnDescriptor graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
  std::unique_ptr<CudnnDescriptor> plan_;
  int64_t workspace_ = 0, addend_pitch_;
  float milliseconds_ = 0;
  std::string detail_;
};

/// The same convolution with equal padding: the input grown by what one side has more.
struct Balanced {
  ConvShapes shapes;
  Int3 offset{0, 0, 0};  ///< of the input in the grown one
  bool grown = false;
};
Balanced balanced(const Problem& p) {
  Balanced b{*conv_shapes(p)};
  ConvAttrs& a = b.shapes.attrs;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t least = std::min(a.pad_low[i], a.pad_high[i]), front = a.pad_low[i] - least,
                  behind = a.pad_high[i] - least;
    b.shapes.x[static_cast<int>(i) + 1] += front + behind;
    b.offset[i] = front, b.grown = b.grown || front + behind > 0;
    a.pad_low[i] = a.pad_high[i] = least;
  }
  return b;
}

/// Plans of this process; weight gradients fall back to the inputs' type where cuDNN writes no f32.
struct Planned {
  std::shared_ptr<const CudnnPlan> plan;
  DType result = DType::f32;
  std::string refusal;
};

const Planned& planned(const Problem& p) {
  static std::map<std::string, Planned> all;
  const OpKind kind = p.op.kind == OpKind::conv_activation_forward ? OpKind::conv_forward : p.op.kind;
  const ConvShapes s = balanced(p).shapes;
  const std::string key = to_text({kind, s.attrs}) + s.x.str() + s.w.str() + std::string(name_of(p.in[0].dtype));
  if (const auto found = all.find(key); found != all.end()) return found->second;
  Planned made;
  std::vector<DType> results{p.out[0].dtype};
  if (p.in[0].dtype != results[0]) results.push_back(p.in[0].dtype);
  std::optional<NoDeviceMemory> no_room;  // for one type of results; the other may want less
  for (size_t i = 0; i < results.size() && !made.plan; ++i) {
    try {
      made.plan = std::make_shared<CudnnPlan>(kind, s, p.in[0].dtype, results[i]);
      made.result = results[i];
    } catch (const CudnnRefusal& refusal) {
      made.refusal = refusal.what;
    } catch (const NoDeviceMemory& error) {
      no_room = error;
    }
  }
  if (!made.plan && no_room) throw *no_room;  // there may be room another time
  return all.emplace(key, std::move(made)).first->second;
}

/// The addition to a data gradient as a pass of its own, at memory speed.
float milliseconds_of_addition(const Problem& p) {
  constexpr float bytes_per_millisecond = 4e9;
  return 3 * float(p.out[0].bytes()) / bytes_per_millisecond;
}

/// The convolution with its addition as one graph, timed once per process; null where that is no faster than a pass.
std::shared_ptr<const CudnnPlan> planned_sum(const Problem& p) {
  static std::map<std::string, std::shared_ptr<const CudnnPlan>> all;
  const auto [found, is_new] = all.try_emplace(p.text());
  if (!is_new) return found->second;
  const Planned& alone = planned(without_addend(p));
  try {
    auto sum = std::make_shared<CudnnPlan>(OpKind::conv_backward_data, balanced(p).shapes, p.in[0].dtype,
                                           p.out[0].dtype, p.in[2].pixel_pitch());
    if (sum->milliseconds() < alone.plan->milliseconds() + milliseconds_of_addition(p)) found->second = std::move(sum);
  } catch (const CudnnRefusal&) {    // the addition stays a pass of its own
  } catch (const NoDeviceMemory&) {  // until there is room
    all.erase(found);
    return nullptr;
  }
  return found->second;
}

/// Sums that a graph may be faster for. The pixels of a grown image are not the addend's; cuDNN reads whole packs of 16
/// bytes, at which slices of 16-bit types begin (core/passes/slices.cpp).
Support supports_sum(const Problem& p) {
  if (!adds_to_value(p)) return Support::yes();
  if (size_of(p.out[0].dtype) != 2) return Support::no("adds in 16 bits only");
  if (balanced(p).grown || !p.out[0].dense()) return Support::no("adds to dense results of equal padding only");
  if (p.out[0].shape.c() % 8 != 0 || p.in[2].pixel_pitch() % 8 != 0)
    return Support::no("adds to multiples of eight channels");
  if (milliseconds_of_addition(p) < least_addition)
    return Support::no("leaves small additions, which compiling a graph is not worth");
  return Support::yes();
}

Support supports(const Problem& p) {
  if (!capability()) return Support::no("no CUDA device is open");
  if (!cudnn()) return Support::no(why_no_cudnn());
  if (const Support support = even_convolution(p); !support.ok) return support;
  if (p.op.as<ConvAttrs>().groups != 1) return Support::no("groups 1 only");
  if (p.op.kind == OpKind::conv_backward_weights) {
    if (p.in[0].dtype == DType::f32)
      return Support::no("cuDNN's weight gradients in f32 err by more than f32's roundings");
    if (const Support bias = few_channels_to_sum(p.in[1]); !bias.ok) return bias;
  }
  if (const Support sum = supports_sum(p); !sum.ok) return sum;
  try {
    const Planned& found = planned(without_addend(p));
    return found.plan ? Support::yes() : Support::no(found.refusal);
  } catch (const NoDeviceMemory&) {  // there may be room another time
    return Support::no("the device has no room to time cuDNN's plans");
  }
}

class CudnnConv final : public Prepared {
 public:
  explicit CudnnConv(const Problem& p)
      : kind_(p.op.kind),
        balanced_(balanced(p)),
        planned_(planned(without_addend(p))),
        slope_(float(p.op.as<ConvAttrs>().slope)) {
    const bool data = is_data_gradient(kind_), weights = kind_ == OpKind::conv_backward_weights;
    if (adds_to_value(p)) sum_ = planned_sum(p);
    const TensorDesc &x = data ? p.out[0] : p.in[0], &y = data ? p.in[0] : weights ? p.in[1] : p.out[0];
    if (balanced_.grown || !x.dense()) x_ = TensorDesc(balanced_.shapes.x, x.dtype);
    if (!y.dense()) y_ = TensorDesc(y.shape, y.dtype);
    if (weights && planned_.result != p.out[0].dtype) narrow_ = TensorDesc(p.out[0].shape, planned_.result);
    if (weights) sum_bytes_ = column_sum_bytes(y.shape);
  }
  std::string detail() const override { return plan().detail() + (sum_ ? ", adds" : ""); }

  int64_t workspace_bytes() const override {
    int64_t bytes = round_up(plan().workspace(), 256) + sum_bytes_;
    for (const auto& copy : {x_, y_, narrow_}) bytes += copy ? round_up(copy->bytes(), 256) : 0;
    return bytes;
  }

  void run(const KernelArgs& a) const override {
    std::byte* room = a.workspace;
    const auto take = [&](int64_t bytes) {
      room += round_up(bytes, 256);
      return room - round_up(bytes, 256);
    };
    const auto copy_of = [&](const std::optional<TensorDesc>& copy, const Tensor& t) {
      return copy ? Tensor(*copy, take(copy->bytes())) : t;
    };
    const Tensor &first = a.in[0], &second = a.in[1], &out = a.out[0];
    const bool has_bias = a.in.size() > 2 && kind_ != OpKind::conv_backward_data_add;
    const float* bias = has_bias ? data<const float>(a.in[2]) : nullptr;
    const auto in_copy = [&](const Tensor& t, const Tensor& copy, const Int3& offset) {
      if (copy.bytes() != t.bytes()) queue_place(t, copy, offset);
    };
    switch (kind_) {
      case OpKind::conv_backward_data:
      case OpKind::conv_backward_data_add: {
        const Tensor x = copy_of(x_, out), y = copy_of(y_, first);
        in_copy(first, y, {});
        plan().run(x.bytes(), second.bytes(), y.bytes(), take(plan().workspace()), sum_ ? a.in[2].bytes() : nullptr);
        const Int3& at = balanced_.offset;
        in_copy(x, out, {-at[0], -at[1], -at[2]});
        if (bias) queue_bias_activation(out, out, bias, 1);
        if (kind_ == OpKind::conv_backward_data_add && !sum_) queue_sum(a.in[2], out, out);
        return;
      }
      case OpKind::conv_backward_weights: {
        const Tensor x = copy_of(x_, first), y = copy_of(y_, second), w = copy_of(narrow_, out);
        in_copy(first, x, balanced_.offset), in_copy(second, y, {});
        plan().run(x.bytes(), w.bytes(), y.bytes(), take(plan().workspace()));
        if (narrow_) queue_widen(planned_.result, out.shape().elements(), w.bytes(), data<float>(out));
        queue_column_sums(second, take(sum_bytes_), data<float>(a.out[1]));
        return;
      }
      default: {
        const Tensor x = copy_of(x_, first), y = copy_of(y_, out);
        in_copy(first, x, balanced_.offset);
        plan().run(x.bytes(), second.bytes(), y.bytes(), take(plan().workspace()));
        if (bias || slope_ != 1 || y_) queue_bias_activation(y, out, bias, slope_);
      }
    }
  }

 private:
  const CudnnPlan& plan() const { return sum_ ? *sum_ : *planned_.plan; }

  OpKind kind_;
  Balanced balanced_;
  const Planned& planned_;
  std::shared_ptr<const CudnnPlan> sum_;  ///< with the addition; null where there is none, or it is a pass of its own
  float slope_;
  std::optional<TensorDesc> x_, y_, narrow_;  ///< copies in the workspace
  int64_t sum_bytes_ = 0;
};

std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<CudnnConv>(p);
}

}  // namespace

std::vector<KernelPtr> conv_cudnn_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_activation_forward, OpKind::conv_backward_data,
                      OpKind::conv_backward_data_add, OpKind::conv_backward_weights})
    list.push_back(kernel("cudnn", kind, supports, prepare));
  return list;
}

}  // namespace convoy
