// Which samples of a data set are trained on and which validate, by the folders that it has.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "io/dataset.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using convoy::testing::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

/// Records of universes from `first` on, ahead of `last`, which are listed and not read.
void add_universes(const std::string& folder, int first, int last) {
  fs::create_directories(folder);
  for (int u = first; u < last; ++u) write_text(folder + "/univ_" + std::to_string(u) + "_000.tfrecord", "");
}

DataSplit split(const std::string& folder) {
  return split_samples(
      folder, [](const std::string& path, int64_t) { return samples_below(path, {}); }, 0.25, 5);
}

std::set<std::string> paths(const std::vector<SampleRef>& samples) {
  std::set<std::string> found;
  for (const SampleRef& ref : samples) found.insert(ref.path);
  return found;
}

}  // namespace

TEST_CASE("without a folder validation, samples for a test are neither trained on nor drawn", "[dataset]") {
  const TemporaryFolder folder;
  const std::string set = folder / "set";
  add_universes(set + "/train", 0, 8), add_universes(set + "/test", 8, 16), add_universes(set + "/valid", 16, 24);
  const DataSplit drawn = split(set), alone = split(set + "/train");
  CHECK(drawn.train.size() == 6);
  CHECK(drawn.validation.size() == 2);
  CHECK(paths(drawn.train) == paths(alone.train));
  CHECK(paths(drawn.validation) == paths(alone.validation));
  add_universes(set + "/validation", 24, 27);
  const DataSplit given = split(set);
  CHECK(given.train.size() == 8);
  CHECK(given.validation.size() == 3);
}

TEST_CASE("a data set with samples for validation or for a test alone is refused", "[dataset]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& set) {
    try {
      split(folder / set);
      return std::string();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::data);
      return std::string(error.what());
    }
  };
  const std::string expected = ": expected folders train and validation, or train alone, found ";
  add_universes(folder / "a/validation", 0, 4), add_universes(folder / "a/training", 4, 8);
  CHECK(refusal("a") == folder / "a" + expected + "validation");
  add_universes(folder / "b/test", 0, 4), add_universes(folder / "b", 4, 8);
  CHECK(refusal("b") == folder / "b" + expected + "test");
  add_universes(folder / "b/validation", 8, 12);
  CHECK(refusal("b") == folder / "b" + expected + "validation and test");
  CHECK(split(folder / "b/test").train.size() == 3);  // whose samples somebody asks for
}

TEST_CASE("outputs may lie beside the folders of samples, not among them", "[io]") {
  const TemporaryFolder folder;
  add_universes(folder / "set/train", 0, 1), add_universes(folder / "set/test", 1, 2);
  const auto check = [&](const std::string& output) {
    refuse_among_samples(folder / "set", folder / output, "--output-dir");
  };
  CHECK_NOTHROW(check("set/run"));
  for (const char* part : {"set/train/run", "set/test/run"})
    CHECK_THROWS_WITH(check(part), Catch::Contains("which is read, or lies in it"));
  fs::remove_all(folder / "set/test"), fs::rename(folder / "set/train", folder / "set/universes");
  CHECK_THROWS_WITH(check("set/run"), Catch::Contains("which is read, or lies in it"));
}

TEST_CASE("a data set of which one folder cannot be made leaves the others as they were", "[io]") {
  const TemporaryFolder folder;
  const std::set<std::string> folders{folder / "train", folder / "validation"};
  write_text(folder / "validation", "");
  const auto refused = [&] {
    CHECK_THROWS_WITH(NewDataSet(folders), Catch::Contains("validation: cannot make the folder: "));
  };
  refused();
  CHECK_FALSE(fs::exists(folder / "train"));
  fs::create_directory(folder / "train");
  refused();
  CHECK(fs::is_empty(folder / "train"));
  fs::remove(folder / "validation");
  NewDataSet(folders).complete();
  CHECK(fs::is_empty(folder / "validation"));
}

TEST_CASE("files behind the first samples are not opened", "[dataset]") {
  std::vector<std::string> files;
  for (int i = 0; i < 100; ++i) files.push_back(std::to_string(i));
  int opened = 0, empty = 0;
  const auto open = [&](std::span<const std::string> some) {
    std::vector<SampleRef> refs;
    for (const std::string& file : some) {
      CHECK(file == std::to_string(opened));
      for (int64_t i = 0; i < 2 && opened >= empty; ++i) refs.push_back({file, FileFormat::sharded, i, {}});
      ++opened;
    }
    return refs;
  };
  CHECK(first_samples(files, 0, open).size() == 200);
  CHECK(opened == 100);
  opened = 0;
  const std::vector<SampleRef> refs = first_samples(files, 50, open);
  CHECK(refs.size() == 50);
  CHECK(opened == 25);
  CHECK(refs.back().path == "24");
  opened = 0, empty = 40;
  CHECK(first_samples(files, 10, open).size() >= 10);
  CHECK(opened < 100);
  opened = 0;
  CHECK(first_samples(files, 1000, open).size() == 120);
  CHECK(opened == 100);

  if (!has_hdf5()) return;
  const TemporaryFolder folder;
  const std::vector<int64_t> cube{2, 2, 2, 1}, two{2};
  const std::vector<std::byte> voxels(8 * sizeof(int16_t));
  for (const char* part : {"train", "validation"}) {
    fs::create_directory(folder / part);
    for (int i = 10; i < 40; ++i) write_text(folder / part + "/" + std::to_string(i) + ".hdf5", "");
    for (int i = 10; i < 29; ++i) {
      Hdf5File file(folder / part + "/" + std::to_string(i) + ".hdf5", Hdf5File::Mode::create);
      const std::vector<float> y{float(i), 1};
      file.write("x", DType::i16, cube, voxels);
      file.write("y", DType::f32, two, std::as_bytes(std::span(y)));
    }
  }
  const ListSamples list = [](const std::string& path, int64_t most) { return samples_below(path, {1, 2}, most); };
  const DataSplit found = split_samples(folder.path(), list, 0.3, 5, {18, 2});
  CHECK(found.train.size() == 18);
  CHECK(found.validation.size() == 2);
  CHECK_THROWS_WITH(split_samples(folder.path(), list, 0.3, 5), Catch::Contains("29.hdf5"));
}
