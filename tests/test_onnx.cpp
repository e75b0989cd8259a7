// The operator vectors of Debian's libonnx-testdata that our ops cover, through every kernel that takes them. An
// outside oracle: values computed by other frameworks.
#include <filesystem>

#include "tests/onnx_ops.h"
#include "tests/worse.h"

using namespace convoy;
using namespace convoy::testing;
namespace fs = std::filesystem;

namespace {

/// Runs one folder; returns how many kernels were compared and counts the vector by its operator.
int run_folder(const fs::path& folder, std::map<std::string, int>& operators) {
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
  const OnnxTensor output = onnx::tensor(onnx::read((folder / "test_data_set_0" / "output_0.pb").string()));
  // Classes per pixel have no axis of channels.
  const Tensor expected = found->op.kind == OpKind::arg_max ? vector(output) : channels_last(output);
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
      worst = worse(worst, std::abs(run.out[0].at(at...) - flat_expected.at(at...)));
      size = std::max(size, std::abs(flat_expected.at(at...)));
    });
    INFO(kernel->name());
    CHECK(worst <= 1e-5 * size);
    ++ran;
  }
  operators[model.nodes[0].op] += ran > 0;
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
  std::map<std::string, int> operators;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().filename() != "model.onnx") continue;
    const int ran = run_folder(entry.path().parent_path(), operators);
    (ran ? vectors : others) += 1;
    kernels += ran;
  }
  WARN(vectors << " vectors through " << kernels << " kernels; " << others << " are of other operators or settings");
  CHECK(vectors >= 100);
  for (const char* name :
       {"Conv", "ConvTranspose", "Gemm", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "LeakyRelu", "Tanh",
        "BatchNormalization", "Resize", "Add", "Concat", "Slice", "ArgMax", "SoftmaxCrossEntropyLoss"}) {
    INFO(name);
    CHECK(operators[name] > 0);
  }
}
