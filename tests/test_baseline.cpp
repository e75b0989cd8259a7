// The yardsticks that networks are compared with.
#include <cstdint>

#include "apps/common/baseline.h"
#include "apps/common/climate_baseline.h"
#include "io/file.h"
#include "io/tfrecord.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;

TEST_CASE("a regression predicts as many labels as the network", "[apps]") {
  const testing::TemporaryFolder folder;
  std::vector<SampleRef> samples;
  for (int16_t i = 0; i < 3; ++i) {
    std::vector<int16_t> counts(8 * 8 * 8 * 4);
    counts[0] = static_cast<int16_t>(10 * (i + 1));
    const float labels[] = {0.1f * float(i), 0.2f, 0.3f, 0.4f};
    samples.push_back({folder / (std::to_string(i) + ".tfrecord"), FileFormat::tfrecord, 0, ""});
    write_file(samples.back().path, encode_tfrecord(std::as_bytes(std::span(counts)), labels));
  }
  for (const int64_t targets : {3, 4}) {
    const Predictions p = variance_regression(samples, samples, ReadOptions(), targets);
    CHECK(p.targets == targets);
    CHECK(p.count() == 3);
    CHECK(p.truth[static_cast<size_t>(targets)] == 0.1f);
    CHECK(p.mae(0) < 1e-4);
  }
  // Training may have left this one out.
  const float few[] = {0.1f, 0.2f, 0.3f};
  write_file(samples[2].path, encode_tfrecord(std::vector<std::byte>(4096), few));
  for (const auto& [train, validation] :
       {std::pair(samples, std::vector(1, samples[0])), std::pair(std::vector(1, samples[0]), samples)})
    CHECK_THROWS_WITH(variance_regression(train, validation, ReadOptions(), 4),
                      Catch::Contains("2.tfrecord: expected 4 targets, found 3"));
}

TEST_CASE("a pixel's regression weighs classes by their pixels and the loss", "[apps]") {
  const testing::TemporaryFolder folder;
  constexpr ImageShape image{128, 160, 16};
  const auto pixels = static_cast<size_t>(image.height * image.width);
  // More background than is drawn. All channels are 1 in 2400 pixels, of which 1000 are storms, elsewhere 0.
  std::vector<uint8_t> labels(pixels, 0);
  std::vector<float> values(pixels * size_t{image.channels}, 0.0f);
  std::fill(labels.begin(), labels.begin() + 2000, uint8_t{1});
  std::fill(values.begin() + 1000 * 16, values.begin() + 3400 * 16, 1.0f);
  write_climate_file(folder / "data-2106-01-01-00-0.h5", image, values, labels, {});
  ClimateReading reading;
  reading.stats = image_stats(values, image.channels);
  const ClimateSource source(images_below(folder.path()), reading);
  const auto storms = [&](double weight) {
    PixelLossAttrs loss;
    loss.weights = {1, weight, 1};
    const ClimateBaselines found = climate_baselines(source, source, loss);
    CHECK(found.background.pooled.iou(1) == 0);
    return found.regression.pooled.iou(1);
  };
  CHECK(storms(1) == 0);  // 1400 of background outweigh them
  CHECK(storms(2) == Approx(1000.0 / 3400));
}
