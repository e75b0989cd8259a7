// Networks written as ONNX models: read back, and run node by node as the operators that test_onnx.cpp holds to ONNX'
// own vectors, they predict what the program does.
#include <algorithm>
#include <cmath>
#include <functional>

#include "core/select.h"
#include "io/onnx.h"
#include "models/program.h"
#include "tests/onnx_ops.h"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::testing;

namespace {

int64_t elements(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  return count;
}

OnnxTensor tensor(std::vector<int64_t> dims) {
  OnnxTensor t{{}, std::move(dims), 1, {}};
  t.data.resize(static_cast<size_t>(elements(t.dims)));
  return t;
}

/// Calls f(element, index) in memory order.
void for_each_element(const std::vector<int64_t>& dims,
                      const std::function<void(size_t, const std::vector<int64_t>&)>& f) {
  std::vector<int64_t> index(dims.size(), 0);
  for (size_t i = 0; i < static_cast<size_t>(elements(dims)); ++i) {
    f(i, index);
    for (size_t a = dims.size(); a-- > 0;) {
      if (++index[a] < dims[a]) break;
      index[a] = 0;
    }
  }
}

/// The element of a tensor that is stretched to more axes or along its axes of length 1.
float stretched(const OnnxTensor& t, const std::vector<int64_t>& index) {
  size_t at = 0;
  for (size_t a = 0; a < t.dims.size(); ++a) {
    const int64_t i = index[index.size() - t.dims.size() + a];
    at = at * static_cast<size_t>(t.dims[a]) + static_cast<size_t>(t.dims[a] == 1 ? 0 : i);
  }
  return t.data[at];
}

OnnxTensor channels_first(const Tensor& t, size_t axes) {
  const Shape& s = t.shape();
  const std::vector<int64_t> all{s.n(), s.c(), s.d(), s.h(), s.w()};
  std::vector<int64_t> dims{all[0], all[1]};
  dims.insert(dims.end(), all.end() - static_cast<std::ptrdiff_t>(axes - 2), all.end());
  OnnxTensor out = tensor(dims);
  for_each_element(all, [&](size_t i, const std::vector<int64_t>& at) {
    out.data[i] = static_cast<float>(t.at(at[0], at[2], at[3], at[4], at[1]));
  });
  return out;
}

/// Operators of single numbers, of axes and of extents, which are no ops of ours.
OnnxTensor plain(const OnnxNode& n, const std::vector<OnnxTensor>& in) {
  const OnnxTensor& x = in.at(0);
  const std::map<std::string, std::function<float(float, float)>> binary = {
      {"Add", [](float a, float b) { return a + b; }},
      {"Sub", [](float a, float b) { return a - b; }},
      {"Mul", [](float a, float b) { return a * b; }},
      {"Div", [](float a, float b) { return a / b; }},
  };
  if (const auto found = binary.find(n.op); found != binary.end()) {
    OnnxTensor out = tensor(x.dims);  // the second is the one that is stretched
    for_each_element(x.dims, [&](size_t i, const std::vector<int64_t>& at) {
      out.data[i] = found->second(x.data[i], stretched(in.at(1), at));
    });
    return out;
  }
  if (n.op == "Log" || n.op == "Sqrt") {
    OnnxTensor out = x;
    for (float& v : out.data) v = n.op == "Log" ? std::log(v) : std::sqrt(v);
    return out;
  }
  if (n.op == "Identity" || n.op == "Cast") return x;
  if (n.op == "Shape") {
    OnnxTensor out = tensor({static_cast<int64_t>(x.dims.size())});
    std::copy(x.dims.begin(), x.dims.end(), out.data.begin());
    return out;
  }
  if (n.op == "Flatten") {
    OnnxTensor out = x;
    out.dims = {x.dims[0], elements(x.dims) / x.dims[0]};
    return out;
  }
  if (n.op == "Transpose") {
    const std::vector<int64_t>& order = n.ints.at("perm");
    std::vector<int64_t> dims;
    for (int64_t axis : order) dims.push_back(x.dims[static_cast<size_t>(axis)]);
    OnnxTensor out = tensor(dims);
    for_each_element(dims, [&](size_t i, const std::vector<int64_t>& at) {
      std::vector<int64_t> from(at.size());
      for (size_t a = 0; a < at.size(); ++a) from[static_cast<size_t>(order[a])] = at[a];
      out.data[i] = stretched(x, from);
    });
    return out;
  }
  if (n.op == "ReduceMean") {
    std::vector<int64_t> dims = x.dims;
    for (int64_t axis : n.ints.at("axes")) dims[static_cast<size_t>(axis)] = 1;
    std::vector<double> sums(static_cast<size_t>(elements(dims)));
    OnnxTensor place = tensor(dims);
    for (size_t i = 0; i < place.data.size(); ++i) place.data[i] = static_cast<float>(i);
    for_each_element(x.dims, [&](size_t i, const std::vector<int64_t>& at) {
      sums[static_cast<size_t>(stretched(place, at))] += x.data[i];
    });
    for (size_t i = 0; i < sums.size(); ++i)
      place.data[i] = static_cast<float>(sums[i] * double(sums.size()) / double(x.data.size()));
    return place;
  }
  if (n.op == "Slice" && x.dims.size() == 1) {
    OnnxTensor out = tensor({int64_t(in.at(2).data[0]) - int64_t(in.at(1).data[0])});
    std::copy_n(x.data.begin() + int64_t(in[1].data[0]), out.data.size(), out.data.begin());
    return out;
  }
  if (n.op == "Concat" && x.dims.size() == 1) {
    OnnxTensor out = x;
    out.data.insert(out.data.end(), in.at(1).data.begin(), in.at(1).data.end());
    out.dims = {static_cast<int64_t>(out.data.size())}, out.type = 7;
    return out;
  }
  FAIL("no meaning for " << n.op);
  return x;
}

/// Winograd's roundings would hide what a model gets wrong.
const Selection exact = [] {
  Selection s;
  s.excluded = {"winograd"};
  return s;
}();

/// Runs all nodes; returns every value by its name.
std::map<std::string, OnnxTensor> run(const OnnxModel& model, const OnnxTensor& x) {
  std::map<std::string, OnnxTensor> values;
  for (const OnnxTensor& t : model.initializers) values[t.name] = t;
  values[model.inputs.at(0)] = x;
  for (const OnnxNode& n : model.nodes) {
    INFO(n.op << " " << n.outputs.at(0));
    std::vector<OnnxTensor> in;
    for (const std::string& name : n.inputs) {
      if (name.empty()) continue;
      REQUIRE(values.count(name) == 1);
      // Weights, of millions of numbers, are read once.
      in.push_back(name.ends_with(".weight") && values[name].dims.size() > 1 ? std::move(values[name]) : values[name]);
    }
    OnnxTensor& out = values[n.outputs.at(0)];
    const bool ours = in.at(0).dims.size() > 1 && in.at(0).type == 1;
    const auto found = ours ? translate(n, in) : std::nullopt;
    if (!found) {
      out = plain(n, in);
      continue;
    }
    const Problem p = problem(found->op, [&] {
      std::vector<TensorDesc> descs;
      for (const Tensor& t : found->in) descs.push_back(t.desc());
      return descs;
    }());
    Run r = make_run(p, Fill::integers, 1);
    for (size_t i = 0; i < p.in.size(); ++i) r.in[i].copy_from(found->in[i]);
    execute(*choose_kernel(kernel_list(), p, n.outputs[0], exact).kernel, p, r);
    out = channels_first(r.out[0], in[0].dims.size());
    if (n.op == "ArgMax") out.dims.erase(out.dims.begin() + 1);
  }
  return values;
}

/// Numbers that no network starts with, so that every parameter and every running statistic shows.
void scatter(StateStore& store, uint64_t seed) {
  for (const auto& [name, state] : store.entries()) {
    if (state.dtype() != DType::f32) continue;
    const PhiloxStream random(seed++, 1);
    const bool positive = name.ends_with("running_var") || name.ends_with("bn.weight");
    for (size_t i = 0; i < state.span<float>().size(); ++i) {
      const auto unit = float(random.block(i / 4)[i % 4] >> 8) * 0x1p-24F - 0.5F;
      float& v = state.span<float>()[i];
      v = positive ? 1 + unit : v + 0.1F * unit;
    }
  }
}

/// The largest difference between a program's output, times a factor, and that of its ONNX model, of the largest value.
template <class Options>
double difference(Options o, const std::string& name, double factor = 1) {
  o.evaluation_batch = 2, o.plan.selection = exact;
  Program program(plan_evaluation(o, kernel_list()), o, 3);
  scatter(program.store(), 20);
  Executor& e = program.evaluate();
  e.refresh();
  const Tensor input = e.tensor("x");
  const PhiloxStream random(7, 1);
  const Shape s = input.shape();
  OnnxTensor x =
      tensor(s.d() > 1 ? std::vector{s.n(), s.d(), s.h(), s.w(), s.c()} : std::vector{s.n(), s.h(), s.w(), s.c()});
  OnnxNormalisation normalisation;
  for (int64_t c = 0; c < s.c() && s.d() == 1; ++c)
    normalisation.low.push_back(float(c)), normalisation.factor.push_back(1 / float(2 + c));
  size_t i = 0;
  for_each_index(s, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    x.data[i] = float(random.block(i)[0] >> 26);
    const auto at = static_cast<size_t>(c);
    input.set(n, d, h, w, c, s.d() > 1 ? x.data[i] : (x.data[i] - normalisation.low[at]) * normalisation.factor[at]);
    ++i;
  });
  e.run();
  const TemporaryFolder folder;
  const std::string path = folder / "net.onnx";
  o.evaluation_batch = 1, o.fuse = false;
  write_onnx(path, evaluation_tape(o), program.store(), {{name, factor}}, normalisation, {"net", "1", "values"});
  const auto written = run(onnx::model(path), x);
  const std::vector<double> ours = values(e.tensor(name));
  const OnnxTensor& theirs = written.at(name);
  REQUIRE(theirs.data.size() == ours.size());
  double size = 0, most = 0;
  for (size_t k = 0; k < ours.size(); ++k) {
    size = std::max(size, std::abs(factor * ours[k]));
    most = std::max(most, std::abs(factor * ours[k] - theirs.data[k]));
  }
  CHECK(size > 0);
  return most / size;
}

}  // namespace

TEST_CASE("CosmoFlow as an ONNX model", "[onnx]") {
  CosmoflowOptions o;
  SECTION("MLPerf's") {
    o.model.size = 16;
  }
  SECTION("MLPerf's with batch norm, of counts over their mean") {
    o.model.size = 16, o.model.batch_norm = true, o.normalisation = Normalisation::mean;
  }
  SECTION("LBANN's") {
    o.model = CosmoflowConfig::lbann();
    o.model.size = 32, o.model.layers = 3, o.model.fc1_size = 64;
  }
  CHECK(difference(o, "prediction", 0.75) < 2e-5);
}

TEST_CASE("climate networks as ONNX models", "[onnx]") {
  ClimateOptions o;
  o.model.height = 32, o.model.width = 48, o.model.width_divisor = 16;
  SECTION("DeepCAM, running statistics") {}
  SECTION("DeepCAM, statistics of the batch, the other crop of its transposed convolutions") {
    o.model.batch_statistics = true, o.model.cropping = Cropping::tensorflow, o.model.output_stride = 8;
  }
  SECTION("DeepLabv3+ of the record run") {
    o.model.model = ClimateModel::deeplab, o.model.batch_norm = false;
  }
  SECTION("Tiramisu with batch norm") {
    o.model.model = ClimateModel::tiramisu;
  }
  CHECK(difference(o, "logits") < 5e-5);
}

TEST_CASE("resizes in an ONNX model find the same pixels", "[onnx]") {
  for (Corners corners : {Corners::half_pixel, Corners::aligned, Corners::asymmetric}) {
    Tape tape;
    const ValueId x = tape.input("x", TensorDesc({2, 1, 4, 5, 3}, DType::f32));
    tape.keep(tape.emit({OpKind::resize, ResizeAttrs{corners, {1, 9, 7}}}, "larger", {x}), "y");
    const TemporaryFolder folder;
    write_onnx(folder / "net.onnx", tape, StateStore(), {{"y"}}, {}, {});
    OnnxTensor image = tensor({2, 4, 5, 3});
    for (size_t i = 0; i < image.data.size(); ++i) image.data[i] = float(i * 7 % 11);
    const auto written = run(onnx::model(folder / "net.onnx"), image);
    const Problem p = problem({OpKind::resize, ResizeAttrs{corners, {1, 9, 7}}}, {tape.desc(x)});
    Run r = make_run(p, Fill::integers, 1);
    std::copy(image.data.begin(), image.data.end(), r.in[0].data<float>());
    execute(reference_kernel(p), p, r);
    CHECK(written.at("y").dims == std::vector<int64_t>{2, 9, 7, 3});
    const std::vector<double> expected = values(r.out[0]);
    for (size_t i = 0; i < expected.size(); ++i) CHECK(written.at("y").data[i] == Approx(expected[i]));
  }
}

TEST_CASE("what an ONNX model cannot hold is refused by name", "[onnx]") {
  Tape tape;
  const ValueId x = tape.input("x", TensorDesc({1, 1, 4, 4, 2}, DType::f32));
  tape.keep(tape.emit({OpKind::pad_channels, SliceAttrs{1, 4}}, "wider", {x}), "y");
  CHECK_THROWS_WITH(write_onnx("/dev/null", tape, StateStore(), {{"y"}}, {}, {}),
                    Catch::Contains("wider (pad_channels)"));
}
