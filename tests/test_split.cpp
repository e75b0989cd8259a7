// Which samples of a data set are trained on and which validate, by the folders that it has.
#include <filesystem>
#include <set>
#include <string>

#include "io/dataset.h"
#include "io/file.h"
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
      folder, [](const std::string& path) { return samples_below(path, {}); }, 0.25, 5);
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
