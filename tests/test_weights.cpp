// Weights as PyTorch's modules hold them: what is written is told by the layer, not by extents that happen to be 1.
#include <map>

#include "apps/common/run.h"
#include "io/safetensors.h"
#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "models/program.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;

namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes torch_shapes(const Tape& tape) {
  StateStore store;
  store.initialise(tape, 1);
  Shapes shapes;
  for (const auto& [name, tensor] : store.entries()) shapes[name] = to_torch(name, tensor, store.rank(name)).shape;
  return shapes;
}

ConvOptions points(int64_t channels) {
  return {.channels = channels, .kernel = {1, 1, 1}};
}

}  // namespace

TEST_CASE("convolutions of one tap keep their axes, dense layers stay matrices", "[safetensors]") {
  Tape image;
  ValueId x = image.input("x", TensorDesc({1, 1, 8, 8, 4}, DType::f32));
  x = conv(image, "points", x, points(6));
  x = deconv(image, "up", x, points(5));
  x = conv(image, "class", x, points(1));
  dense(image, "out", x, {.units = 1});
  CHECK(torch_shapes(image) == Shapes{{"points.weight", {6, 4, 1, 1}},
                                      {"points.bias", {6}},
                                      {"up.weight", {6, 5, 1, 1}},
                                      {"up.bias", {5}},
                                      {"class.weight", {1, 5, 1, 1}},
                                      {"class.bias", {1}},
                                      {"out.weight", {1, 64}},
                                      {"out.bias", {1}}});
  // Volumes that have become points are volumes.
  Tape volume;
  x = volume.input("x", TensorDesc({1, 4, 4, 4, 2}, DType::f32));
  x = conv(volume, "whole", x, {.channels = 3, .kernel = {4, 4, 4}, .padding = Padding::valid});
  conv(volume, "point", x, points(7));
  const Shapes shapes = torch_shapes(volume);
  CHECK(shapes.at("whole.weight") == std::vector<int64_t>{3, 2, 4, 4, 4});
  CHECK(shapes.at("point.weight") == std::vector<int64_t>{7, 3, 1, 1, 1});
}

TEST_CASE("saved networks hold 4-D convolutions, and read back from matrices too", "[safetensors]") {
  const testing::TemporaryFolder folder;
  ClimateOptions o;
  o.model.width_divisor = 16, o.model.height = 32, o.model.width = 48;
  o.compute = DType::bf16;
  Program program(plan_program(o, kernel_list()), o, 5);
  apps::save_weights(folder / "w.safetensors", program);
  std::vector<NamedArray> arrays = read_safetensors(folder / "w.safetensors");
  int images = 0, points = 0;
  for (NamedArray& a : arrays) {
    CHECK((a.shape.size() == 1 || a.shape.size() == 4));
    images += a.shape.size() == 4;
    if (a.shape.size() != 4 || a.shape[2] != 1) continue;
    ++points;
    a.shape.resize(2);
  }
  CHECK(points > 20);
  CHECK(images > points);
  write_safetensors(folder / "matrices.safetensors", arrays);
  Program again(plan_program(o, kernel_list()), o, 6);
  apps::load_weights(folder / "matrices.safetensors", again, apps::Needed::all);
  for (const std::string& name : program.parameters())
    CHECK(to_torch(name, program.store().get(name)).data == to_torch(name, again.store().get(name)).data);
}
