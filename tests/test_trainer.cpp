// The training loop: on a device, here one that is the CPU itself; with lagged gradients that diverge.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>

#include "apps/common/recalibration.h"
#include "apps/common/options.h"
#include "apps/common/ranks.h"
#include "apps/common/trainer.h"
#include "io/hdf5.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/host_device.h"
#include "tests/noise_images.h"
#include "tests/small_climate.h"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;

namespace {

/// Trains on noise; keeps the labels that the log asked for.
class NoiseTask final : public Task {
 public:
  /// The validations end with the losses given, one after the other; without any there are none.
  explicit NoiseTask(int64_t samples, std::vector<double> validations = {})
      : source_(std::make_shared<testing::NoiseImages>(samples)), validations_(std::move(validations)) {}
  int64_t training_samples() const override { return source_->size(); }
  int64_t validation_samples() const override { return validations_.empty() ? 0 : 1; }
  std::shared_ptr<const SampleSource> training() const override { return source_; }
  Quality validate(Program&, Communicator*, const StopPoint&) override {
    const double value = validations_.at(done_++);
    return {.loss = value, .metric = value};
  }
  bool reached(const Quality&) const override { return false; }
  std::optional<double> target() const override { return std::nullopt; }
  std::string metric() const override { return "IoU"; }
  void fill_dummy(const Tensor&, const Tensor&, uint64_t) const override {}
  void log_start(MlLog&, int64_t, int64_t) const override {}
  void log_training(MlLog&, Executor& step, Communicator*, const MlLog::Json&) const override {
    const auto labels = step.tensor("target").span<uint8_t>();
    logged_.emplace_back(labels.begin(), labels.end());
  }
  void log_quality(MlLog&, const Quality&, const MlLog::Json&) const override {}

  const std::vector<std::vector<uint8_t>>& logged() const { return logged_; }

 private:
  std::shared_ptr<const SampleSource> source_;
  std::vector<double> validations_;
  size_t done_ = 0;
  mutable std::vector<std::vector<uint8_t>> logged_;
};

struct Trained {
  int64_t first_sample = 0;  ///< of the last pass: what dropout counts by
  std::vector<double> losses;
  std::vector<std::vector<uint8_t>> labels;
};

TrainerOptions options_for(const testing::TemporaryFolder& folder) {
  TrainerOptions o;
  o.output_dir = folder.path();
  o.identity = {{"rate", "1.0"}};
  o.config = nlohmann::json::object();
  o.rate = [](int64_t, int64_t step) { return 1e-3 * double(1 + step % 3); };
  return o;
}

/// Two epochs of six steps; every fourth step is logged. On the CPU without `device`.
Trained train(const std::shared_ptr<Device>& device, int64_t accumulation) {
  OptionTable table(rank_options());
  Ranks ranks(table);
  ClimateOptions shape = testing::small_climate();
  shape.training.accumulation = accumulation;
  ProgramPlans plans = plan_program(shape, kernel_list());
  Program program = device ? Program(std::move(plans), shape, 5, device) : Program(std::move(plans), shape, 5);
  NoiseTask task(6 * accumulation);
  const testing::TemporaryFolder folder;
  TrainerOptions o = options_for(folder);
  o.epochs = 2;
  o.log_steps = 4;
  CHECK(Trainer(program, task, ranks, std::move(o)).run() == Outcome::finished);
  Trained result;
  result.first_sample = int64_t(program.store().get(step_state_name).data<double>()[int(StepField::first_sample)]);
  result.labels = task.logged();
  std::ifstream metrics(folder.path() + "/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);)
    result.losses.push_back(nlohmann::json::parse(line)["loss"].get<double>());
  return result;
}

/// Two epochs of two steps with these losses of their validations.
void train_validated(TrainerOptions o, std::vector<double> validations) {
  OptionTable table(rank_options());
  Ranks ranks(table);
  const ClimateOptions shape = testing::small_climate();
  Program program(plan_program(shape, kernel_list()), shape, 5);
  NoiseTask task(2, std::move(validations));
  o.epochs = 2;
  Trainer(program, task, ranks, std::move(o)).run();
}

/// Up to six steps with lagged gradients, behind what `spoil` does to the states: the summary, or, where the run
/// diverges, what it says.
struct Lagged {
  nlohmann::json summary;
  std::string diverged;
};
Lagged train_lagged(TrainerOptions o, const std::function<void(Program&)>& spoil = nullptr) {
  OptionTable table(rank_options());
  Ranks ranks(table);
  ClimateOptions shape = testing::small_climate();
  shape.training.lag = 1;
  Program program(plan_program(shape, kernel_list()), shape, 5);
  NoiseTask task(6);
  if (spoil) spoil(program);
  Trainer trainer(program, task, ranks, std::move(o));
  try {
    const Outcome outcome = trainer.run();
    CHECK(outcome == Outcome::finished);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::diverged);
    return {{}, error.what()};
  }
  return {trainer.summary(), ""};
}

size_t checkpoints_in(const testing::TemporaryFolder& folder) {
  const std::filesystem::directory_iterator files(folder.path());
  return static_cast<size_t>(
      std::ranges::count_if(files, [](const auto& file) { return file.path().extension() == ".h5"; }));
}

}  // namespace

TEST_CASE("a lagged run whose first loss is not finite has diverged, and saves nothing", "[apps]") {
  const testing::TemporaryFolder folder;
  TrainerOptions o = options_for(folder);
  o.max_steps = 1;
  const Lagged run = train_lagged(o, [](Program& program) {
    for (const std::string& name : program.parameters())
      std::ranges::fill(program.store().get(name).span<float>(), NAN);
  });
  CHECK_THAT(run.diverged, Catch::Contains("step 0: not finite") && !Catch::Contains("the gradients"));
  CHECK(checkpoints_in(folder) == 0);
}

TEST_CASE("lagged gradients that are not finite are those of the step before", "[apps]") {
  const testing::TemporaryFolder folder;
  const Lagged run = train_lagged(options_for(folder), [](Program& program) {
    program.store().get(scale_state_name).data<double>()[int(ScaleField::scale)] = INFINITY;
  });
  CHECK_THAT(run.diverged,
             Catch::Contains("step 1: not finite") && Catch::Contains("first at the gradients of step 0"));
}

TEST_CASE("the first step of a lagged run, which has no gradients, skips no update", "[apps]") {
  const testing::TemporaryFolder folder;
  TrainerOptions o = options_for(folder);
  o.max_steps = 4;
  CHECK(train_lagged(o).summary["skipped_updates"] == 0);
  if (!has_hdf5()) return;
  o.max_steps = 0;
  o.resume = o.continues = true;
  o.checkpoint = newest_checkpoint(folder.path());
  const nlohmann::json resumed = train_lagged(o).summary;
  CHECK(resumed["steps"] == 2);
  CHECK(resumed["skipped_updates"] == 0);
}

TEST_CASE("a trainer fills the next inputs while a device works, and trains as on the CPU", "[apps]") {
  for (const int64_t accumulation : {1, 2}) {
    INFO("accumulation " << accumulation);
    const auto device = std::make_shared<testing::HostDevice>();
    const Trained cpu = train(nullptr, accumulation), there = train(device, accumulation);
    REQUIRE(cpu.losses.size() == 12);
    CHECK(cpu.first_sample == 12 * accumulation - 1);  // samples that have been trained on; each drops by its own mask
    CHECK(there.losses == cpu.losses);
    REQUIRE(cpu.labels.size() > 2);
    CHECK(there.labels == cpu.labels);
    // Both inputs were staged between a queued step and the wait for it: behind all steps but the last of each epoch
    // and those that are logged (the fourth, and the eighth).
    size_t ahead = 0;
    for (size_t at = 0; (at = device->order.find("qssf", at)) != std::string::npos; ++at) ++ahead;
    CHECK(ahead == (accumulation == 1 ? 12 - 2 - 2 : 0));
  }
}

TEST_CASE("a log that takes no more lines says so and throws nothing", "[apps]") {
  MlLog log;
  log.open("/dev/full");
  CHECK_FALSE(log.failed());
  log.event("seed", 1);
  CHECK(log.failed());
  CHECK(log.path() == "/dev/full");
}

TEST_CASE("a stop ends validations, and leaves training's statistics", "[apps]") {
  ClimateOptions shape = testing::small_climate();
  shape.statistics_pass = true;
  Program program(plan_program(shape, kernel_list()), shape, 5);
  const auto source = std::make_shared<testing::NoiseImages>(5);
  const auto statistics = [&] {
    std::vector<float> all;
    for (const std::string& name : program.statistics())
      std::ranges::copy(program.store().get(name).span<float>(), std::back_inserter(all));
    return all;
  };
  const std::vector<float> before = statistics();
  int asked = 0;
  const StopPoint third([&] { return ++asked == 3; }, nullptr), never;
  CHECK_THROWS_AS(renew_statistics(program, source, 5, {.seed = 7}, nullptr, third), Interrupted);
  CHECK(asked == 3);
  CHECK(statistics() == before);
  renew_statistics(program, source, 5, {.seed = 7}, nullptr, never);
  CHECK(statistics() != before);
}

TEST_CASE("a checkpoint that can only diverge is set aside for the one before", "[apps]") {
  if (!has_hdf5()) return;
  const testing::TemporaryFolder folder;
  TrainerOptions o = options_for(folder);
  o.keep_checkpoints = 1;
  o.max_steps = 2;
  CHECK(train_lagged(o).diverged.empty());
  const auto sound = newest_checkpoint(folder.path());
  {  // the same, with a scale that is too large for the next gradients
    ClimateOptions shape = testing::small_climate();
    shape.training.lag = 1;
    Program program(plan_program(shape, kernel_list()), shape, 5);
    sound->restore(program.store());
    program.store().get(scale_state_name).data<double>()[int(ScaleField::scale)] = INFINITY;
    save_checkpoint(folder.path(), 2, program.store(), sound->meta(), 1);
  }
  o.max_steps = 0, o.checkpoint_steps = 1;
  o.resume = o.continues = true;
  o.checkpoint = newest_checkpoint(folder.path());
  CHECK_THAT(train_lagged(o).diverged, Catch::Contains("step 3: not finite") && Catch::Contains("gradients of step 2"));
  CHECK(std::filesystem::exists(folder / "checkpoint-000000003.h5.diverged"));
  CHECK(newest_checkpoint(folder.path())->path() == folder / "checkpoint-000000002.h5");
  CHECK(checkpoints_in(folder) == 1);
  // Also one that a run begins with.
  std::filesystem::rename(folder / "checkpoint-000000003.h5.diverged", folder / "checkpoint-000000003.h5");
  o.checkpoint = newest_checkpoint(folder.path());
  CHECK_THAT(train_lagged(o).diverged, Catch::Contains("step 3: not finite"));
  CHECK(std::filesystem::exists(folder / "checkpoint-000000003.h5.diverged"));
  CHECK(checkpoints_in(folder) == 1);

  // Where nothing is left to go on from, it stays: here from another run's checkpoint.
  const testing::TemporaryFolder other;
  o.output_dir = other.path();
  o.resume = false;
  o.checkpoint = newest_checkpoint(folder.path());
  CHECK_THAT(train_lagged(o).diverged, Catch::Contains("step 3: not finite"));
  CHECK(checkpoints_in(other) == 1);
  CHECK(checkpoints_in(folder) == 1);
}

TEST_CASE("a validation that is not finite takes the only checkpoint from nobody", "[apps]") {
  if (!has_hdf5()) return;
  const testing::TemporaryFolder folder;
  const auto newest = [&] {
    const auto found = newest_checkpoint(folder.path());
    REQUIRE(found);
    return found->path();
  };
  TrainerOptions o = options_for(folder);
  CHECK_THROWS_WITH(train_validated(o, {NAN}), Catch::Contains("the validation is not finite"));
  CHECK(newest() == folder / "checkpoint-000000002.h5");
  // A start that begins with the validation did not write what it goes on from.
  o.resume = o.continues = true;
  o.checkpoint = newest_checkpoint(folder.path());
  CHECK_THROWS_WITH(train_validated(o, {NAN}), Catch::Contains("the validation is not finite"));
  CHECK(newest() == folder / "checkpoint-000000002.h5");
  // With an older one to go on from it is set aside.
  o.checkpoint = newest_checkpoint(folder.path());
  CHECK_THROWS_WITH(train_validated(o, {0.5, NAN}), Catch::Contains("the validation is not finite"));
  CHECK(newest() == folder / "checkpoint-000000002.h5");
  CHECK(std::filesystem::exists(folder / "checkpoint-000000004.h5.diverged"));
}
