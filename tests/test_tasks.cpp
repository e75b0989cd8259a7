// What the tasks of a trainer measure: losses of a validation, the accuracy of a training step.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/common/climate_task.h"
#include "apps/common/cosmoflow_task.h"
#include "io/file.h"
#include "io/tfrecord.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/small_climate.h"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;
using convoy::testing::small_climate;
using convoy::testing::TemporaryFolder;

namespace {

/// Of small_climate().
constexpr ImageShape image{32, 48, 16};

/// Values of the events of an MLPerf log.
std::map<std::string, nlohmann::json> events_of(const std::string& path) {
  std::map<std::string, nlohmann::json> events;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::json::parse(line.substr(line.find('{')));
    events[event.at("key").get<std::string>()] = event.at("value");
  }
  return events;
}

}  // namespace

TEST_CASE("the loss of a validation is the mean over its images", "[apps]") {
  const TemporaryFolder folder;
  const auto pixels = static_cast<size_t>(image.height * image.width);
  ClimateReading reading;
  for (const char* name : {"data-2106-01-01-00-0.h5", "data-2106-01-02-00-0.h5"}) {
    const bool second = name[14] == '2';
    std::vector<float> values(pixels * size_t{image.channels});
    for (size_t i = 0; i < values.size(); ++i) values[i] = float((second ? 3 * i : i) % 97);
    write_climate_file(folder / name, image, values, std::vector<uint8_t>(pixels, second ? 2 : 0), {});
    if (!second) reading.stats = image_stats(values, image.channels);
  }
  const std::vector<ClimateRef> images = images_below(folder.path());
  REQUIRE(images.size() == 2);
  Program program(plan_program(small_climate(), kernel_list()), small_climate(), 1);
  const auto loss_of = [&](const std::vector<ClimateRef>& some) {
    return evaluate_climate(program, std::make_shared<ClimateSource>(some, reading), {}).loss;
  };
  const double first = loss_of({images[0]}), second = loss_of({images[1]});
  CHECK(std::abs(first - second) > 1e-3 * first);
  CHECK(loss_of(images) == Approx((first + second) / 2).epsilon(1e-6));
}

TEST_CASE("the accuracy of a training step takes the largest logit of every pixel", "[apps]") {
  const TemporaryFolder folder;
  Program program(plan_program(small_climate(), kernel_list()), small_climate(), 1);
  const Tensor logits = program.step().tensor("logits"), target = program.step().tensor("target");
  REQUIRE(logits.dtype() == DType::f32);
  const int64_t pixels = logits.shape().h() * logits.shape().w();
  // Three bands of classes; a quarter of the middle one is taken for the last class.
  for (int64_t i = 0; i < pixels; ++i) {
    const int64_t truth = 3 * i / pixels, found = truth == 1 && 12 * i < 5 * pixels ? 2 : truth;
    target.data<uint8_t>()[i] = static_cast<uint8_t>(truth);
    for (int64_t k = 0; k < 3; ++k) logits.data<float>()[i * 3 + k] = k == found ? 2.f : -1.f - float(k);
  }
  MlLog log;
  log.open(folder / "mlperf.log");
  ClimateTask({}).log_training(log, program.step(), nullptr, {});
  // IoU of the classes: 1, 3/4 and 4/5.
  CHECK(events_of(folder / "mlperf.log").at("train_accuracy").get<double>() ==
        Approx((1 + 0.75 + 0.8) / 3).epsilon(1e-6));
}

TEST_CASE("a validation's loss is in the units of training's", "[apps]") {
  const TemporaryFolder folder;
  CosmoflowOptions o;
  o.model.size = 16, o.model.fc1_size = 16, o.model.fc2_size = 8;
  const std::vector<std::byte> voxels(16 * 16 * 16 * 4 * sizeof(int16_t));
  write_file(folder / "univ_0.tfrecord", encode_tfrecord(voxels, std::vector<float>{0.5f, -0.25f, 0.75f, 0.1f}));
  CosmoflowTask::Settings settings;
  settings.reading.expected = {16, 4, 4, DType::i16};
  settings.reading.target_scale = 3;
  const std::vector<SampleRef> samples = samples_below(folder.path(), settings.reading.read);
  Program program(plan_program(o, kernel_list()), o, 1);
  for (const Loss loss : {Loss::mse, Loss::l1}) {
    settings.loss = loss;
    CosmoflowTask task(samples, samples, settings);
    const Quality quality = task.validate(program, nullptr, {});
    const Predictions& p = task.last_validation();
    // Both in the labels' units.
    double squares = 0, magnitudes = 0;
    for (size_t i = 0; i < p.truth.size(); ++i) {
      const double difference = double(p.predicted[i]) - double(p.truth[i]);
      squares += difference * difference, magnitudes += std::abs(difference);
    }
    const auto count = double(p.truth.size());
    CHECK(p.truth[0] == Approx(0.5f));
    CHECK(quality.metric == Approx(magnitudes / count));
    CHECK(quality.loss == Approx(loss == Loss::mse ? 9 * squares / count : 3 * magnitudes / count));
  }
}
