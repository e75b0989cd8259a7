// Which samples an epoch meets, in what order and how turned; what is kept; whose checkpoint it is.
#include <array>
#include <cstring>
#include <set>

#include "io/checkpoint.h"
#include "io/cosmoflow_source.h"
#include "io/dataset.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/loader.h"
#include "io/tfrecord.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using convoy::testing::TemporaryFolder;

namespace {

constexpr std::array<float, 4> four_labels{0.5f, -0.25f, 0.125f, -1.0f};

/// Counts of which no two are alike.
std::vector<std::byte> numbered(int64_t elements) {
  std::vector<std::byte> bytes(static_cast<size_t>(elements) * 2);
  for (int64_t i = 0; i < elements; ++i) {
    const auto value = static_cast<int16_t>(i);
    std::memcpy(&bytes[static_cast<size_t>(i) * 2], &value, 2);
  }
  return bytes;
}

std::vector<std::byte> loaded(const CosmoflowSource& source, int64_t sample, int64_t epoch) {
  std::vector<std::byte> voxels(static_cast<size_t>(source.input_bytes()));
  std::array<float, 4> target{};
  source.load(sample, epoch, voxels.data(), reinterpret_cast<std::byte*>(target.data()));
  return voxels;
}

}  // namespace

TEST_CASE("every epoch and every seed has an order of its own", "[loader]") {
  CHECK(epoch_order(50, 3, 0) != epoch_order(50, 3, 1));
  CHECK(epoch_order(50, 3, 0) != epoch_order(50, 4, 0));
}

TEST_CASE("a sample is turned in all ways of a cube, epoch by epoch", "[loader]") {
  const TemporaryFolder folder;
  write_file(folder / "u_0_000.tfrecord", encode_tfrecord(numbered(4 * 4 * 4 * 4), four_labels));
  CosmoflowReading reading;
  reading.read = {4, 4};
  reading.expected = {4, 4, 4, DType::i16};
  reading.augment = Augment::cube;
  const CosmoflowSource source(samples_below(folder.path(), {4, 4}), reading);
  std::set<std::vector<std::byte>> ways;
  for (int64_t epoch = 0; epoch < 600; ++epoch) ways.insert(loaded(source, 0, epoch));
  CHECK(ways.size() == 48);
}

TEST_CASE("crops of one file are kept apart", "[loader]") {
  if (!has_hdf5()) return;
  const TemporaryFolder folder;
  {
    Hdf5File file(folder / "univ_0.hdf5", Hdf5File::Mode::create);
    const int64_t extents[] = {8, 8, 8, 4}, four[] = {4};
    file.write("full", DType::i16, extents, numbered(8 * 8 * 8 * 4));
    file.write("unitPar", DType::f32, four, std::as_bytes(std::span(four_labels)));
  }
  CosmoflowReading reading;
  reading.read = {4, 4};
  reading.expected = {4, 4, 4, DType::i16};
  const auto refs = samples_below(folder.path(), {4, 4});
  REQUIRE(refs.size() == 8);
  const CosmoflowSource read(refs, reading);
  reading.cache = std::make_shared<SampleCache>();
  const CosmoflowSource keeps(refs, reading);
  for (int64_t epoch = 0; epoch < 2; ++epoch)
    for (int64_t i = 0; i < 8; ++i) CHECK(loaded(keeps, i, epoch) == loaded(read, i, epoch));
}

TEST_CASE("a seed decides which universes validate", "[dataset]") {
  const TemporaryFolder folder;
  for (int universe = 0; universe < 10; ++universe)
    write_file(folder / ("univ_" + std::to_string(universe) + "_000.tfrecord"),
               encode_tfrecord(numbered(4 * 4 * 4 * 4), four_labels));
  std::set<std::string> sets;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    std::string set;
    const ListSamples list = [](const std::string& path, int64_t most) { return samples_below(path, {4, 4}, most); };
    for (const SampleRef& ref : split_samples(folder.path(), list, 0.3, seed).validation) set += ref.path + " ";
    sets.insert(set);
  }
  CHECK(sets.size() > 1);
}

TEST_CASE("a checkpoint's cursors are guarded, too", "[checkpoint]") {
  if (!has_hdf5()) return;
  const TemporaryFolder folder;
  Tape tape;
  tape.parameter("weight", Shape::vector(5), {StateInit::Kind::constant, 0.5, 0, 0});
  StateStore store;
  store.initialise(tape, 1);
  const std::string meta = R"({"step_in_epoch":4711})";
  const std::string path = save_checkpoint(folder.path(), 1, store, meta, 1);
  CHECK(Checkpoint(path).meta() == meta);
  std::vector<std::byte> data = read_file(path);
  const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
  const size_t at = text.find("4711");
  REQUIRE(at != std::string_view::npos);
  data[at] = std::byte{'5'};
  write_file(path, data);
  CHECK_THROWS_AS(Checkpoint(path), Error);
}
