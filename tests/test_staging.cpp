// What staging copies of a data set, and what it takes away again.
#include <filesystem>
#include <string>
#include <vector>

#include "apps/common/cosmoflow_setup.h"
#include "apps/common/ranks.h"
#include "apps/common/staged_data.h"
#include "apps/common/staging.h"
#include "io/dataset.h"
#include "io/file.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;
using convoy::testing::TemporaryFolder;

namespace {

using Names = std::vector<std::string>;

void add_files(const std::string& folder, const Names& names) {
  for (const std::string& name : names) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    make_folders(std::filesystem::path(path).parent_path().string());
    write_text(path, name);
  }
}

Names files_in(const std::string& folder) {
  Names names;
  for (const std::string& path : files_below(folder, {".tfrecord", ".h5"})) names.push_back(name_below(folder, path));
  return names;
}

/// A data set, with what a run beside its samples wrote.
void make_set(const std::string& folder) {
  add_files(folder,
            {"train/univ_0.tfrecord", "train/univ_1.tfrecord", "train/univ_2.tfrecord", "validation/univ_3.tfrecord",
             "validation/univ_4.tfrecord", "test/univ_5.tfrecord", "stats.h5", "run/checkpoint-000000001.h5"});
}

}  // namespace

TEST_CASE("staging copies what training reads of a data set", "[apps]") {
  const TemporaryFolder folder;
  const std::string set = folder / "set", stage = folder / "stage";
  OptionTable table(rank_options());
  Ranks ranks(table);
  make_set(set);
  CHECK(stage_data(set, stage, ranks).files == 6);
  CHECK(files_in(stage) == Names{"stats.h5", "train/univ_0.tfrecord", "train/univ_1.tfrecord", "train/univ_2.tfrecord",
                                 "validation/univ_3.tfrecord", "validation/univ_4.tfrecord"});
  CHECK(stage_data(set, stage, ranks).reused == 6);
  // Another set in its place: a folder without samples would stand for that set's.
  add_files(folder / "other", {"a.tfrecord", "b/test/c.tfrecord"});
  CHECK(stage_data(folder / "other", stage, ranks).files == 2);
  CHECK(files_in(stage) == Names{"a.tfrecord", "b/test/c.tfrecord"});
  CHECK_FALSE(std::filesystem::exists(stage + "/validation"));
  CHECK(sample_folders(stage).train == stage);
}

TEST_CASE("of limited sets staging copies the files of the samples that are left", "[apps]") {
  const TemporaryFolder folder;
  const std::string set = folder / "set", stage_dir = folder / "stage";
  make_set(set);
  OptionTable o(training_options());
  for (const auto& [flag, value] : {std::pair<const char*, std::string>{"data-dir", set},
                                    {"stage-dir", stage_dir},
                                    {"n-train", "2"},
                                    {"n-valid", "1"}})
    o.set(flag, value, "flag");
  Ranks ranks(o);
  CHECK_FALSE(stage(o, ranks));
  CHECK(o.text("data-dir") == set);
  DataSplit split = split_samples(
      set, [](const std::string& path, int64_t) { return samples_below(path, {}); }, 0.2, 5);
  limit(split.train, o, "n-train"), limit(split.validation, o, "n-valid");
  const auto staged = stage_samples(o, ranks, paths_of(split.train), 1, paths_of(split.validation));
  REQUIRE(staged);
  CHECK_FALSE(staged->training);  // every sample, in the order of a run without staging
  const Names expected{"train/univ_0.tfrecord", "train/univ_1.tfrecord", "validation/univ_3.tfrecord"};
  CHECK(files_in(stage_dir) == expected);
  CHECK(split.train.at(1).path == stage_dir + "/" + expected[1]);
  CHECK(split.validation.at(0).path == stage_dir + "/" + expected[2]);
}
