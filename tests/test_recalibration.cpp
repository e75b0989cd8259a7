// Running statistics taken from whole images: what they are, and that ranks make no difference.
#include <thread>

#include "apps/common/recalibration.h"
#include "dist/local.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/host_device.h"
#include "tests/noise_images.h"
#include "tests/small_climate.h"

using namespace convoy;
using namespace convoy::apps;

namespace {

constexpr int64_t images = 5;
using Noise = convoy::testing::NoiseImages;

ClimateOptions options(int64_t batch) {
  ClimateOptions o = convoy::testing::small_climate();
  o.evaluation_batch = batch;
  o.statistics_pass = true;
  return o;
}

Program program(int64_t batch) {
  return Program(plan_program(options(batch), kernel_list()), options(batch), 5);
}

std::vector<float> statistics(Program& p) {
  std::vector<float> all;
  for (const std::string& name : p.statistics()) {
    const auto values = p.store().get(name).span<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace

TEST_CASE("recalibrated statistics are those of the images together", "[climate]") {
  const auto source = std::make_shared<Noise>(images);
  const LoaderOptions order{.seed = 7};
  Program one_by_one = program(1);
  const std::vector<float> before = statistics(one_by_one);
  renew_statistics(one_by_one, source, 3, order, nullptr);
  const std::vector<float> after = statistics(one_by_one);
  CHECK(after != before);
  // Again, from other statistics: the same.
  renew_statistics(one_by_one, source, 3, order, nullptr);
  CHECK(statistics(one_by_one) == after);

  // The first layer's input depends on no statistics: the moments of one batch of all three images.
  Program together = program(3);
  Executor& pass = *together.statistics_pass();
  pass.refresh();
  const Tensor x = pass.tensor("x");
  const std::vector<int64_t> drawn = epoch_order(images, order.seed, 0);
  for (int64_t n = 0; n < 3; ++n)
    source->load(drawn[static_cast<size_t>(n)], 0, x.bytes() + n * source->input_bytes(), nullptr);
  pass.run();
  for (size_t which : {0, 1}) {  // mean, variance
    const std::string& name = together.statistics()[which];
    REQUIRE(name == one_by_one.statistics()[which]);
    REQUIRE(name.ends_with(which == 0 ? "running_mean" : "running_var"));
    const auto expected = together.store().get(name).span<float>(), found = one_by_one.store().get(name).span<float>();
    for (size_t c = 0; c < expected.size(); ++c) {
      INFO(name << " of channel " << c);
      CHECK(found[c] == Approx(expected[c]).epsilon(4e-3));  // unbiased over 384 or 1152 pixels
    }
  }
}

TEST_CASE("ranks recalibrate by the same images as one", "[climate]") {
  const auto source = std::make_shared<Noise>(images);
  Program alone = program(1);
  renew_statistics(alone, source, 4, {.seed = 7}, nullptr);
  const std::vector<float> expected = statistics(alone);
  constexpr int ranks = 3;  // which get two, one and one
  const auto communicators = make_thread_communicators(ranks);
  std::vector<Program> programs;
  for (int r = 0; r < ranks; ++r) programs.push_back(program(1));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      renew_statistics(programs[size_t(r)], source, 4, {.seed = 7, .rank = r, .ranks = ranks},
                       communicators[size_t(r)].get());
    });
  for (std::thread& t : threads) t.join();
  for (Program& p : programs) {
    const std::vector<float> found = statistics(p);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-7));
  }
}

TEST_CASE("statistics of images that overflow are training's in f16, and an error elsewhere", "[climate]") {
  const auto source = std::make_shared<Noise>(images, 1e38F);
  for (DType compute : {DType::f32, DType::f16}) {
    ClimateOptions o = options(1);
    o.compute = compute;
    Program p(plan_program(o, kernel_list()), o, 5);
    const std::vector<float> before = statistics(p);
    if (compute == DType::f16) {
      renew_statistics(p, source, 2, {.seed = 7}, nullptr);
      CHECK(statistics(p) == before);
    } else {
      CHECK_THROWS_WITH(renew_statistics(p, source, 2, {.seed = 7}, nullptr), Catch::Contains("finite on none of 2"));
      CHECK(statistics(p) == before);
    }
  }
}

TEST_CASE("a device recalibrates as the CPU", "[climate]") {
  const auto source = std::make_shared<Noise>(images);
  Program cpu = program(1);
  Program there(plan_program(options(1), kernel_list()), options(1), 5, std::make_shared<testing::HostDevice>());
  for (Program* p : {&cpu, &there}) renew_statistics(*p, source, 3, {.seed = 7}, nullptr);
  CHECK(statistics(there) == statistics(cpu));
  // The device evaluates by them, too.
  for (Program* p : {&cpu, &there}) {
    const Tensor x = p->evaluate().tensor("x");
    source->load(1, 0, x.bytes(), nullptr);
    p->evaluate().refresh();
    p->evaluate().run();
  }
  const auto logits = [](Program& p) {
    const auto values = p.evaluate().tensor("logits").span<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  CHECK(logits(there) == logits(cpu));
}
