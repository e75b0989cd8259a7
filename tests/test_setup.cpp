// What CosmoFlow's settings become, where several decide one thing or the data does.
#include "apps/common/cosmoflow_setup.h"
#include "apps/common/physical_scale.h"
#include "io/file.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;

namespace {

/// The trainer's settings from a YAML file, if any, and flags.
OptionTable settings(const std::string& yaml, std::vector<std::string> words = {}) {
  if (!yaml.empty()) words.insert(words.begin(), yaml);
  words.insert(words.begin(), "cosmoflow_train");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  OptionTable table(training_options());
  OptionTable::YamlFile file{yaml_refusals(), ""};
  table.read(static_cast<int>(argv.size()), argv.data(), "", &file);
  fill_cosmoflow_defaults(table);
  return table;
}

}  // namespace

TEST_CASE("counts are asked for where files hold none", "[apps]") {
  const testing::TemporaryFolder folder;
  const std::string yaml = folder / "cosmo.yaml";
  write_text(yaml, "data:\n  data_dir: floats\n  apply_log: True\n");
  const SampleShape floats{16, 4, 4, DType::f32};
  CHECK_THROWS_WITH(program_options(settings(yaml), floats),
                    Catch::Contains("cosmo.yaml:3: data.apply_log: expected counts, found 16x16x16x4 f32"));
  CHECK_NOTHROW(program_options(settings(yaml, {"--data", "dummy"}), floats));
}

TEST_CASE("of two names of one setting the later source counts", "[apps]") {
  const testing::TemporaryFolder folder;
  const std::string yaml = folder / "cosmo.yaml";
  write_text(yaml, "data:\n  sample_shape: [32, 32, 32, 2]\n  target_shape: 3\n");
  const CosmoflowConfig c = model_config(settings(yaml, {"--size", "16", "--targets", "2"}));
  CHECK(c.size == 16);
  CHECK(c.channels == 2);
  CHECK(c.targets == 2);
  CHECK_THROWS_WITH(model_config(settings(yaml, {"--size", "16", "--sample-shape", "32,32,32,4"})),
                    Catch::Contains("--size 16 and --sample-shape 32,32,32,4 name one setting and differ"));
  CHECK_THROWS_WITH(model_config(settings(yaml, {"--targets", "3", "--target-shape", "4"})),
                    Catch::Contains("--target-shape 4 and --targets 3 name one setting and differ"));
  // A resumed run has both from its checkpoint, and knows which one counted.
  OptionTable resumed = settings(yaml, {"--size", "16"});
  resumed.set("size", "16", "checkpoint"), resumed.set("sample-shape", "32,32,32,2", "default");
  CHECK(model_config(resumed).size == 16);
}

TEST_CASE("of a file, counts of none and values of null mean what the reference means", "[apps]") {
  const testing::TemporaryFolder folder;
  const std::string yaml = folder / "cosmo.yaml";
  const auto set_to = [&](const std::string& section, const std::string& value) {
    write_text(yaml, section + ":\n  " + value + "\n");
    return settings(yaml);
  };
  for (const char* key : {"n_train", "n_valid"}) {
    const std::string what = std::string("cosmo.yaml:2: data.") + key;
    CHECK_THROWS_WITH(set_to("data", std::string(key) + ": 0"),
                      Catch::Contains(what + ": expected 1 or more, found 0: the reference takes 0 for none"));
    CHECK_THROWS_WITH(set_to("data", std::string(key) + ": null"),
                      Catch::Contains(what + ": expected a value, found none"));
  }
  CHECK(set_to("data", "n_valid: 3").integer("n-valid") == 3);
  CHECK(settings("", {"--n-valid", "0"}).integer("n-valid") == 0);  // all
  for (const char* none : {"null", "~", ""})
    CHECK(set_to("train", std::string("early_stopping_patience: ") + none).integer("early-stopping") == 0);
  CHECK_FALSE(set_to("train", "early_stopping_patience: null").is_set("early-stopping"));
  CHECK(set_to("model", "l2: null").number("l2") == 0);
  // A default that asks for something is no value of null.
  CHECK_THROWS_WITH(set_to("data", "n_epochs: null"), Catch::Contains("data.n_epochs: expected a value, found none"));
  CHECK_THROWS_WITH(settings((write_text(yaml, "seed: null\n"), yaml)),
                    Catch::Contains("seed: expected a value, found none"));
}

TEST_CASE("widths that nobody chose are those of the network", "[apps]") {
  CosmoflowConfig c = model_config(settings(""));
  CHECK((c.conv_size == 32 && c.most_channels == 512 && c.fc1_size == 128 && c.fc2_size == 64 && !c.batch_norm));
  c = model_config(settings("", {"--model", "lbann", "--fc2-size", "32", "--use-batchnorm"}));
  CHECK((c.conv_size == 16 && c.most_channels == 256 && c.fc1_size == 2048 && c.fc2_size == 32 && c.batch_norm));
  CHECK(c.variant == CosmoflowVariant::lbann);
  // MLPerf's reference doubles them in every block; only blocks that nobody counted end at what 128^3 has.
  const auto most = [](std::vector<std::string> flags) { return model_config(settings("", flags)).most_channels; };
  CHECK(most({"--conv-size", "64"}) == 1024);
  CHECK(most({"--conv-size", "16"}) == 512);
  CHECK(most({"--conv-layers", "6"}) == 1024);
  CHECK(most({"--conv-layers", "4"}) == 256);
  CHECK(most({"--conv-layers", "64"}) == int64_t{32} << 31);
  CHECK(most({"--model", "lbann", "--conv-size", "32", "--conv-layers", "6"}) == 256);
}

TEST_CASE("physical parameters lie on the line through those of the samples, wherever its centre is", "[apps]") {
  const std::vector<float> labels{-1, 0.5f, 0, 0.5f, 0.5f, 0.5f};
  const std::vector<std::vector<float>> physical{{0.2f, 61}, {0.3f, 62}, {0.35f, 63}};
  const auto scales = physical_scales(labels, 2, physical);
  CHECK(scales[0].centre == Approx(0.3));
  CHECK(scales[0].slope == Approx(0.1));
  CHECK(physical_scales(labels, 2, {{10, 1}, {20, 1}, {25, 1}})[0](-0.5) == Approx(15));
  CHECK(scales[1](1) == Approx(0.88));  // one label: the official line
  CHECK(physical_scales(labels, 2, {{}, {}, {}})[0](1) == Approx(0.33));
}
