// Weights as PyTorch's modules hold them: what is written is told by the layer, not by extents that happen to be 1.
#include <cstring>
#include <map>

#include "apps/common/trained_state.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "models/program.h"
#include "tests/catch.hpp"
#include "tests/small_climate.h"
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

/// Adds an array behind all others of a safetensors file, whose offsets are counted for it.
void append_array(const std::string& path, const std::string& name, const std::string& type, const std::string& shape,
                  size_t bytes) {
  std::vector<std::byte> file = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  std::string header(reinterpret_cast<const char*>(file.data()) + 8, length);
  const size_t held = file.size() - 8 - length;
  header.resize(header.rfind('}'));
  header += ",\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
            std::to_string(held) + "," + std::to_string(held + bytes) + "]}}";
  std::vector<std::byte> longer(8 + header.size());
  length = header.size();
  std::memcpy(longer.data(), &length, 8);
  std::memcpy(longer.data() + 8, header.data(), length);
  longer.insert(longer.end(), file.end() - static_cast<std::ptrdiff_t>(held), file.end());
  longer.resize(longer.size() + bytes);
  write_file(path, longer);
}

ConvOptions points(int64_t channels) {
  return {.channels = channels, .kernel = {1, 1, 1}};
}

}  // namespace

TEST_CASE("tensors of a safetensors file begin at a multiple of eight bytes", "[safetensors]") {
  const testing::TemporaryFolder folder;
  const Tensor value = Tensor::zeros(Shape::vector(3), DType::f32);
  for (size_t length = 1; length <= 8; ++length) {  // of names, and so of headers
    write_safetensors(folder / "w.safetensors", {to_torch(std::string(length, 'b'), value)});
    uint64_t header = 0;
    std::memcpy(&header, read_file(folder / "w.safetensors").data(), 8);
    CHECK(header % 8 == 0);
  }
}

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
  ClimateOptions o = testing::small_climate();
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

TEST_CASE("PyTorch's counters of batches are passed over, other integers are not", "[safetensors]") {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "torch.safetensors";
  ClimateOptions o = testing::small_climate();
  Program program(plan_program(o, kernel_list()), o, 5), again(plan_program(o, kernel_list()), o, 6);
  apps::save_weights(path, program);
  const std::vector<std::byte> plain = read_file(path);
  const size_t arrays = read_safetensors(path).size();
  for (const auto& [type, bytes] : {std::pair("I64", 8), {"BOOL", 1}, {"I32", 4}}) {
    append_array(path, std::string("norm") + type + ".num_batches_tracked", type, "[]", size_t(bytes));
    append_array(path, std::string("more") + type + ".num_batches_tracked", type, "[3]", 3 * size_t(bytes));
  }
  CHECK(read_safetensors(path).size() == arrays + 2);  // those of I32
  apps::load_weights(path, again, apps::Needed::all);
  for (const std::string& name : program.parameters())
    CHECK(to_torch(name, program.store().get(name)).data == to_torch(name, again.store().get(name)).data);

  const auto refused = [&](const std::string& name, const std::string& type, size_t bytes, const std::string& message) {
    write_file(path, plain);
    append_array(path, name, type, "[]", bytes);
    CHECK_THROWS_WITH(read_safetensors(path), Catch::Contains("torch.safetensors: tensor " + name + ": " + message));
  };
  const std::string types = "expected a dtype of F64, F32, BF16, F16, I32, I16, U8, found ";
  refused("steps", "I64", 8, types + "I64");
  refused("num_batches_tracked.weight", "I64", 8, types + "I64");
  refused("norm.num_batches_tracked", "F8_E4M3", 1, types + "F8_E4M3");
  refused("norm.num_batches_tracked", "I64", 4, "shape [] needs 8 bytes");
}
