// Published recipes: what settings that nobody gives become, and what single flags make of them.
#include <cmath>
#include <thread>

#include "apps/common/climate_setup.h"
#include "apps/common/cosmoflow_setup.h"
#include "apps/common/early_stop.h"
#include "apps/common/iou.h"
#include "apps/common/optimizer_setup.h"
#include "dist/local.h"
#include "tests/catch.hpp"

using namespace convoy;
using namespace convoy::apps;

namespace {

OptionTable read_flags(OptionTable table, std::vector<std::string> words) {
  words.insert(words.begin(), "trainer");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  table.read(static_cast<int>(argv.size()), argv.data(), "");
  return table;
}

OptionTable climate(const std::vector<std::string>& words) {
  OptionTable table = read_flags(OptionTable(climate_training_options()), words);
  fill_climate_defaults(table);
  return table;
}

OptionTable cosmology(const std::vector<std::string>& words) {
  OptionTable table = read_flags(OptionTable(training_options()), words);
  fill_cosmoflow_defaults(table);
  return table;
}

}  // namespace

TEST_CASE("the climate networks' defaults are those of their codes", "[apps][recipes]") {
  for (const auto& [model, batch_norm, momentum, dropout, epsilon, decay] :
       {std::tuple{"deepcam", "on", 0.1, 0.0, 1e-6, 1e-6},
        {"deeplab", "off", 0.0003, 0.0, 1e-8, 0.0},
        {"tiramisu", "off", 0.01, 0.2, 1e-8, 0.0}}) {
    INFO(model);
    const OptionTable o = climate({"--model", model});
    CHECK(o.text("batch-norm") == batch_norm);
    CHECK(o.number("batch-norm-momentum") == momentum);
    CHECK(o.number("dropout") == dropout);
    CHECK(o.number("adam-eps") == epsilon);
    CHECK(o.number("weight-decay") == decay);
  }
}

TEST_CASE("class weights are the benchmarks'", "[apps][recipes]") {
  const auto weights = [](const std::string& model) { return pixel_loss_config(climate({"--model", model})).weights; };
  // Frequencies of the official training set to the power of -1/8: background, cyclones, rivers.
  const double mlperf[] = {1.0017, 2.6146, 1.7164}, gordon_bell[] = {0.0218, 0.8120, 0.1662};
  for (size_t k = 0; k < 3; ++k) {
    CHECK(weights("deepcam")[k] == Approx(mlperf[k]).epsilon(1e-4));
    for (const char* model : {"deeplab", "tiramisu"}) {
      CHECK(weights(model)[k] == gordon_bell[k]);
      CHECK(pixel_loss_config(climate({"--model", model, "--loss-type", "focal"})).weights[k] == 1);
    }
  }
  CHECK(pixel_loss_config(climate({"--loss-type", "focal"})).weights[0] == Approx(mlperf[0]).epsilon(1e-4));
}

TEST_CASE("AdamW's decay stands beside the gradient, Adam's in it", "[apps][recipes]") {
  const auto adam = [](const char* name) {
    return optimizer_config(climate({"--optimizer", name, "--weight-decay", "0.1"})).adam;
  };
  CHECK(adam("AdamW").weight_decay == 0.1);
  CHECK(adam("AdamW").l2 == 0);
  CHECK(adam("Adam").weight_decay == 0);
  CHECK(adam("Adam").l2 == 0.1);
  for (const char* name : {"LARC-SGD", "LARC-Adam"}) {
    const TrainingOptions t = optimizer_config(climate({"--optimizer", name, "--larc-eta", "0.03"}));
    CHECK((t.optimizer == OptimizerKind::sgd ? t.sgd.larc : t.adam.larc) == 0.03);
  }
}

TEST_CASE("rates grow with the samples of a step", "[apps][recipes]") {
  const auto rate = [](const char* scaling, int64_t samples) {
    return step_schedule(climate({"--start-lr", "0.001", "--lr-scaling", scaling, "--base-batch-size", "2"}), 100,
                         samples)
        .base_rate;
  };
  CHECK(rate("linear", 8) == Approx(0.004));
  CHECK(rate("sqrt", 8) == Approx(0.002));
  CHECK(step_schedule(climate({"--start-lr", "0.001"}), 100, 8).base_rate == 0.001);
}

TEST_CASE("the paper of 2018 divides counts by their mean and scales labels to unit variance", "[apps][recipes]") {
  const OptionTable o = cosmology({"--model", "sc18"});
  const SampleShape shape{128, 1, 3, DType::i16};
  CHECK(program_options(o, shape).normalisation == Normalisation::mean);
  CHECK(reading_options(o, shape).target_scale == Approx(std::sqrt(3.0)));
  const OptionTable mlperf = cosmology({});
  CHECK(program_options(mlperf, {128, 4, 4, DType::i16}).normalisation == Normalisation::log1p);
  CHECK(reading_options(mlperf, {128, 4, 4, DType::i16}).target_scale == 1);
}

TEST_CASE("errors of predictions have the standard error of their mean", "[apps][recipes]") {
  Predictions p;
  p.targets = 1;
  p.predicted = {1, 2, 3}, p.truth = {0, 0, 0};
  CHECK(p.mae(0) == 2);
  CHECK(p.mae_error(0) == Approx(1 / std::sqrt(3.0)));
}

TEST_CASE("patience counts epochs in a row, and slow progress as progress", "[apps][recipes]") {
  const auto stops = [](std::vector<double> losses) {  // behind which epoch
    EarlyStop stop(2);
    for (size_t i = 0; i < losses.size(); ++i)
      if (stop.counts(losses[i])) return static_cast<int>(i) + 1;
    return 0;
  };
  CHECK(stops({1, 2, 0.5, 0.6}) == 0);
  CHECK(stops({1, 2, 0.5, 0.6, 0.7}) == 5);
  CHECK(stops({1, 1 - 4e-6, 1 - 8e-6}) == 3);
  CHECK(stops({1, 1 - 6e-6, 1 - 1.2e-5, 1 - 1.3e-5}) == 0);
}

TEST_CASE("scores of ranks become that of all their samples", "[iou][recipes]") {
  const std::vector<uint8_t> truth{0, 1, 2, 0, 1, 1}, found{0, 1, 1, 2, 0, 1};
  SegmentationScore all;
  std::array<SegmentationScore, 2> parts;
  for (size_t i = 0; i < 3; ++i) {
    const std::span<const uint8_t> t(truth.data() + 2 * i, 2), f(found.data() + 2 * i, 2);
    all.add(t, f), parts[i % 2].add(t, f);
  }
  const auto ranks = make_thread_communicators(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) threads.emplace_back([&, r] { parts[r].add_ranks(*ranks[r]); });
  for (std::thread& thread : threads) thread.join();
  for (const SegmentationScore& part : parts) {
    CHECK(part.mlperf() == Approx(all.mlperf()));
    for (int t = 0; t < 3; ++t)
      for (int p = 0; p < 3; ++p) CHECK(part.pooled.count(t, p) == all.pooled.count(t, p));
  }
}
