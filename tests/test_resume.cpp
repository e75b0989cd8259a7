// What a resumed run asks of the settings that its checkpoint holds, and which validations a run counts.
#include <algorithm>
#include <cstddef>

#include "apps/common/cosmoflow_setup.h"
#include "apps/common/options.h"
#include "apps/common/run_settings.h"
#include "apps/common/trainer.h"
#include "io/hdf5.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/small_climate.h"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;

namespace {

/// Two samples an epoch of what the trainer makes up, and nothing to validate.
class NoData : public Task {
 public:
  int64_t training_samples() const override { return 2; }
  int64_t validation_samples() const override { return 0; }
  std::shared_ptr<const SampleSource> training() const override { return nullptr; }
  Quality validate(Program&, Communicator*, const StopPoint&) override { return {}; }
  bool reached(const Quality&) const override { return false; }
  std::optional<double> target() const override { return std::nullopt; }
  std::string metric() const override { return "MAE"; }
  void fill_dummy(const Tensor& x, const Tensor& labels, uint64_t) const override {
    std::fill(x.span<float>().begin(), x.span<float>().end(), 1.0f);
    std::fill(labels.span<uint8_t>().begin(), labels.span<uint8_t>().end(), uint8_t{0});
  }
  void log_start(MlLog&, int64_t, int64_t) const override {}
  void log_quality(MlLog&, const Quality&, const MlLog::Json&) const override {}
};

/// Two images of ones.
class Ones final : public SampleSource {
 public:
  int64_t size() const override { return 2; }
  int64_t input_bytes() const override { return 32 * 48 * 16 * int64_t(sizeof(float)); }
  int64_t target_bytes() const override { return 32 * 48; }
  void load(int64_t, int64_t, std::byte* input, std::byte* target) const override {
    std::fill_n(reinterpret_cast<float*>(input), 32 * 48 * 16, 1.0f);
    std::fill_n(target, 32 * 48, std::byte{0});
  }
};

/// The same images, and validations that are not finite.
class NoQuality final : public NoData {
 public:
  int64_t validation_samples() const override { return 1; }
  std::shared_ptr<const SampleSource> training() const override { return std::make_shared<Ones>(); }
};

/// The same images, and validations that are cut off or reach the target.
class Judged final : public NoData {
 public:
  explicit Judged(bool cut_off) : cut_off_(cut_off) {}
  int64_t validation_samples() const override { return 1; }
  std::shared_ptr<const SampleSource> training() const override { return std::make_shared<Ones>(); }
  Quality validate(Program&, Communicator*, const StopPoint&) override {
    if (cut_off_) fail_runtime("cut off");
    return {.loss = 0.5, .metric = 0.5};
  }
  bool reached(const Quality&) const override { return true; }
  std::optional<double> target() const override { return 0.5; }

 private:
  bool cut_off_;
};

Outcome train(TrainerOptions o, const OptionTable& settings, Task&& task = NoData(), DType compute = DType::f32) {
  OptionTable table(rank_options());
  Ranks ranks(table);
  ClimateOptions shape = testing::small_climate();
  shape.compute = compute;
  Program program(plan_program(shape, kernel_list()), shape, 5);
  o.agrees = [&](const std::string& setting, const std::string* saved) {
    return means_the_same(settings, setting, saved);
  };
  if (o.config.is_null()) o.config = nlohmann::json::object();
  o.continues = o.resume;
  if (o.resume) o.checkpoint = newest_checkpoint(o.output_dir);
  o.rate = [](int64_t, int64_t) { return 1e-3; };
  return Trainer(program, task, ranks, std::move(o)).run();
}

}  // namespace

TEST_CASE("a checkpoint without a newer setting means the setting's default", "[apps]") {
  if (!has_hdf5()) return;
  const testing::TemporaryFolder folder;
  OptionTable settings(
      {{"rate", "", "1.0", "", Option::Kind::number}, {"newer", "", "true", "", Option::Kind::toggle}});
  TrainerOptions o;
  o.output_dir = folder.path();
  o.identity = {{"rate", "1.0"}};
  CHECK(train(o, settings) == Outcome::finished);

  o.resume = true, o.epochs = 2;
  o.identity = {{"rate", "1"}, {"newer", "on"}};  // other texts of the same values
  settings.set("rate", "1", "flag"), settings.set("newer", "on", "flag");
  CHECK(train(o, settings) == Outcome::finished);

  o.identity["newest"] = "1";  // which no flag explains
  CHECK_THROWS_WITH(train(o, settings), Catch::Contains("setting newest: expected null, found \"1\""));
}

TEST_CASE("a setting that the identity did not name yet is the one that the run had", "[apps]") {
  if (!has_hdf5()) return;
  const testing::TemporaryFolder folder;
  OptionTable settings({{"measure", "", "mlperf", ""}});
  TrainerOptions o;
  o.output_dir = folder.path();
  o.identity = {{"rate", "1.0"}}, o.config = {{"measure", "pooled"}};
  CHECK(train(o, settings) == Outcome::finished);
  o.resume = true, o.epochs = 2;
  o.identity["measure"] = "mlperf";
  CHECK_THROWS_WITH(train(o, settings), Catch::Contains("setting measure: expected \"pooled\", found \"mlperf\""));
  o.identity["measure"] = "pooled";
  CHECK(train(o, settings) == Outcome::finished);
}

TEST_CASE("sc18 trained on l1 where nobody chose a loss, whatever its checkpoint says", "[apps]") {
  const auto loss = [](const char* text) {
    nlohmann::json meta = nlohmann::json::parse(text);
    correct_losses(meta);
    return meta["identity"]["loss"].get<std::string>();
  };
  CHECK(loss(R"({"identity": {"model": "sc18", "loss": "mse"}, "given": {}})") == "l1");
  CHECK(loss(R"({"identity": {"model": "sc18", "loss": "mse"}})") == "l1");
  CHECK(loss(R"({"identity": {"model": "sc18", "loss": "mse"}, "given": {"loss": "mse"}})") == "mse");
  CHECK(loss(R"({"identity": {"model": "mlperf", "loss": "mse"}, "given": {}})") == "mse");
}

TEST_CASE("validation's losses without the penalty are not compared with those that hold it", "[apps]") {
  const auto corrected = [](const char* identity) {
    nlohmann::json meta{{"identity", nlohmann::json::parse(identity)},
                        {"history", nlohmann::json::parse("[[0, 0.1, 9.0, 0.3, 0.4, 2.0]]")}};
    correct_losses(meta);
    return meta;
  };
  const nlohmann::json older = corrected(R"({"l2": "0.01"})");
  CHECK(older["history"][0].dump() == "[0,0.1,9.0,null,0.4,2.0]");
  CHECK(older["identity"][penalty_in_validation] == true);
  for (const char* kept : {R"({"l2": "0.01", "validation_penalty": true})", R"({"l2": "0"})", "{}"})
    CHECK(corrected(kept)["history"][0][3] == 0.3);
}

TEST_CASE("a run that was cut off in its last validation is judged when it goes on", "[apps]") {
  if (!has_hdf5()) return;
  const testing::TemporaryFolder folder;
  const OptionTable settings({});
  TrainerOptions o;
  o.output_dir = folder.path();
  o.identity = nlohmann::json::object();
  o.epochs = 3, o.max_steps = 2;  // an epoch
  CHECK_THROWS_WITH(train(o, settings, Judged(true)), Catch::Contains("cut off"));
  o.resume = true;  // with the same limit
  CHECK(train(o, settings, Judged(false)) == Outcome::target_reached);
}

TEST_CASE("a validation that counts for nothing is no reason to stop early", "[apps]") {
  const testing::TemporaryFolder folder;
  const OptionTable settings({});
  TrainerOptions o;
  o.output_dir = folder.path();
  o.identity = nlohmann::json::object();
  o.epochs = 4, o.early_stopping = 2;
  CHECK(train(o, settings, NoQuality(), DType::f16) == Outcome::finished);
}

TEST_CASE("a newer setting that is not at its default needs another run", "[apps]") {
  if (!has_hdf5()) return;
  const testing::TemporaryFolder folder;
  OptionTable settings({{"newer", "", "true", "", Option::Kind::toggle}});
  TrainerOptions o;
  o.output_dir = folder.path();
  o.identity = {{"rate", "1.0"}};
  CHECK(train(o, settings) == Outcome::finished);
  o.resume = true, o.epochs = 2;
  o.identity["newer"] = "off";
  settings.set("newer", "off", "flag");
  CHECK_THROWS_WITH(train(o, settings), Catch::Contains("setting newer: expected null, found \"off\""));
}
