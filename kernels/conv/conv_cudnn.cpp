// Convolutions by cuDNN, channels-last as they are stored: one operation of its graph interface, sums in f32, without
// TF32, transforms, and kernels whose sums differ from run to run. Up to eight plans of its heuristics are timed when a
// problem is prepared, once per process. A bias is added by a pass of our own.
#include <map>

#include "core/conv_shapes.h"
#include "kernels/conv/conv_cuda.h"
#include "kernels/conv/conv_cuda_passes.h"
#include "kernels/device/cuda.h"
#include "kernels/device/cudnn.h"
#include "kernels/device/timing.h"

namespace convoy {
namespace {

using namespace cuda;

constexpr int most_plans = 8;
constexpr int64_t most_workspace = int64_t{1} << 30;

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

CudnnDescriptor tensor(int64_t id, const Shape& shape, DType type, bool flat) {
  const Dims d = dims_of(shape, flat);
  const cudnnDataType_t data_type = type_of(type);
  const int64_t alignment = 16;
  CudnnDescriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &data_type);
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, d.extent);
  t.set(CUDNN_ATTR_TENSOR_STRIDES, d.stride);
  t.finalize();
  return t;
}

enum : int64_t { id_x = 1, id_w = 2, id_y = 3 };

/// A convolution that cuDNN can run, whatever the pass: x, w, y in its own terms.
class CudnnPlan {
 public:
  CudnnPlan(OpKind kind, const ConvShapes& s, DType type, DType result) : type_(type) {
    const bool flat = s.x.d() == 1 && s.w.d() == 1 && s.y.d() == 1 && s.attrs.pad_low[0] == 0;
    const auto part = [&](const Int3& a) { return std::vector<int64_t>(a.begin() + (flat ? 1 : 0), a.end()); };
    const bool forward = kind == OpKind::conv_forward, data = kind == OpKind::conv_backward_data;
    const CudnnDescriptor x = tensor(id_x, s.x, data ? result : type, flat),
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
    const cudnnBackendDescriptor_t ops[] = {op.handle()};
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn()->handle);
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, ops);
    graph_.finalize();
    choose(s, type, result, kind);
  }

  int64_t workspace() const { return workspace_; }
  const std::string& detail() const { return detail_; }

  /// What was refused when it was timed is refused no more: an error of the device.
  void run(const void* x, const void* w, const void* y, void* workspace) const {
    try {
      execute(*plan_, x, w, y, workspace);
    } catch (const CudnnRefusal& refusal) {
      fail_runtime("cuDNN: " + refusal.what);
    }
  }

 private:
  static void execute(const CudnnDescriptor& plan, const void* x, const void* w, const void* y, void* workspace) {
    const int64_t ids[] = {id_x, id_w, id_y};
    const void* pointers[] = {x, w, y};
    CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    pack.finalize();
    cudnn()->set_stream(cudnn()->handle, stream());
    if (const cudnnStatus_t status = cudnn()->execute(cudnn()->handle, plan.handle(), pack.handle());
        status != CUDNN_STATUS_SUCCESS)
      throw CudnnRefusal{cudnn()->error_string(status)};
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
    const DeviceBytes x(bytes(s.x, data)), w(bytes(s.w, !forward && !data)), y(bytes(s.y, forward));
    float best = 0;
    int tried = 0;
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      if (tried > 0) break;
      std::vector<CudnnDescriptor> configs = proposals(mode);
      const size_t count = configs.size();
      for (size_t i = 0; i < configs.size() && tried < most_plans; ++i) {
        try {
          if (!wanted(configs[i])) continue;
          auto plan = std::make_unique<CudnnDescriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
          plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn()->handle);
          plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]);
          plan->finalize();
          int64_t workspace = 0;
          plan->get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
          if (workspace > most_workspace) continue;
          const DeviceBytes scratch(workspace);
          const float seconds =
              least_milliseconds(3, [&] { execute(*plan, x.data(), w.data(), y.data(), scratch.data()); });
          ++tried;
          if (plan_ && seconds >= best) continue;
          best = seconds, plan_ = std::move(plan), workspace_ = workspace;
          detail_ = "plan " + std::to_string(i) + " of " + std::to_string(count);
        } catch (const CudnnRefusal&) {    // the next one may do
        } catch (const NoDeviceMemory&) {  // for its workspace
        }
      }
    }
    if (!plan_) throw CudnnRefusal{"cuDNN has no plan for this convolution"};
  }

  DType type_;
  CudnnDescriptor graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
  std::unique_ptr<CudnnDescriptor> plan_;
  int64_t workspace_ = 0;
  std::string detail_;
};

/// Plans of this process; weight gradients fall back to the inputs' type where cuDNN writes no f32.
struct Planned {
  std::shared_ptr<const CudnnPlan> plan;
  DType result = DType::f32;
  std::string refusal;
};

const Planned& planned(const Problem& p) {
  static std::map<std::string, Planned> all;
  // The plan knows neither bias nor threads.
  const std::string key = Problem{p.op, {p.in[0], p.in[1]}, {p.out[0]}}.text();
  if (const auto found = all.find(key); found != all.end()) return found->second;
  Planned made;
  std::vector<DType> results{p.out[0].dtype};
  if (p.in[0].dtype != results[0]) results.push_back(p.in[0].dtype);
  for (size_t i = 0; i < results.size() && !made.plan; ++i) {
    try {
      made.plan = std::make_shared<CudnnPlan>(p.op.kind, *conv_shapes(p), p.in[0].dtype, results[i]);
      made.result = results[i];
    } catch (const CudnnRefusal& refusal) {
      made.refusal = refusal.what;
    }
  }
  return all.emplace(key, std::move(made)).first->second;
}

Support supports(const Problem& p) {
  if (!capability()) return Support::no("no CUDA device is open");
  if (!cudnn()) return Support::no(why_no_cudnn());
  if (const Support support = dense_floats(p); !support.ok) return support;
  const auto& a = p.op.as<ConvAttrs>();
  if (a.slope != 1) return Support::no("ends in no activation");
  if (a.groups != 1) return Support::no("groups 1 only");
  // Seen with cuDNN 9 on an H200: errors of 1e-2 with 1 position of padding in front and 200 behind, and sums of small
  // integers that were not exact.
  if (a.pad_low != a.pad_high) return Support::no("equal padding on both sides only");
  if (p.op.kind == OpKind::conv_backward_weights && p.in[0].dtype == DType::f32)
    return Support::no("cuDNN's weight gradients in f32 err by more than f32's roundings");
  try {
    const Planned& found = planned(p);
    return found.plan ? Support::yes() : Support::no(found.refusal);
  } catch (const NoDeviceMemory&) {  // there may be room another time
    return Support::no("the device has no room to time cuDNN's plans");
  }
}

class CudnnConv final : public Prepared {
 public:
  explicit CudnnConv(const Problem& p) : problem_(p), planned_(planned(p)) {}
  std::string detail() const override { return planned_.plan->detail(); }
  int64_t workspace_bytes() const override {
    return narrow_bytes() + plan_bytes() + (is_weights() ? column_sum_bytes(problem_.in[1].shape) : 0);
  }
  void run(const KernelArgs& a) const override {
    const Tensor &first = a.in[0], &second = a.in[1], &out = a.out[0];
    std::byte *narrow = a.workspace, *workspace = narrow + narrow_bytes();
    const float* bias = a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr;
    switch (problem_.op.kind) {
      case OpKind::conv_forward:
        planned_.plan->run(first.bytes(), second.bytes(), out.bytes(), workspace);
        break;
      case OpKind::conv_backward_data:
        planned_.plan->run(out.bytes(), second.bytes(), first.bytes(), workspace);
        break;
      default:
        planned_.plan->run(first.bytes(), narrow_bytes() ? narrow : out.bytes(), second.bytes(), workspace);
        if (narrow_bytes()) queue_widen(planned_.result, out.shape().elements(), narrow, data<float>(out));
        queue_column_sums(second, reinterpret_cast<float*>(workspace + plan_bytes()), data<float>(a.out[1]));
        return;
    }
    if (bias) queue_add_bias(out, bias);
  }

 private:
  bool is_weights() const { return problem_.op.kind == OpKind::conv_backward_weights; }
  int64_t narrow_bytes() const {
    if (!is_weights() || planned_.result == problem_.out[0].dtype) return 0;
    return (problem_.out[0].shape.elements() * size_of(planned_.result) + 255) / 256 * 256;
  }
  int64_t plan_bytes() const { return (planned_.plan->workspace() + 255) / 256 * 256; }
  Problem problem_;
  const Planned& planned_;
};

std::unique_ptr<Prepared> prepare(const Problem& p) {
  return std::make_unique<CudnnConv>(p);
}

}  // namespace

std::vector<KernelPtr> conv_cudnn_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_weights})
    list.push_back(kernel("cudnn", kind, supports, prepare));
  return list;
}

}  // namespace convoy
