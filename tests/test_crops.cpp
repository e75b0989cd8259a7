// Where crops that are centred on storms lie.
#include <algorithm>
#include <cmath>
#include <set>

#include "io/climate_source.h"
#include "io/hdf5.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using convoy::testing::TemporaryFolder;

namespace {

constexpr ImageShape striped{96, 80, 4};
constexpr int64_t crop_extent = 8, crop_count = 60;

/// Crops of an image with these classes, each centred on a storm: top rows and labels.
std::vector<std::pair<int64_t, std::vector<uint8_t>>> centred_crops(const std::vector<uint8_t>& classes) {
  const TemporaryFolder folder;
  std::vector<float> values(classes.size() * 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i / 4 / size_t(striped.width));  // the row
  write_climate_file(folder / "data-2106-01-01-00-0.h5", striped, values, classes, {});
  ClimateReading reading;
  reading.stats.minimum = {0, 0, 0, 0}, reading.stats.maximum = {100, 100, 100, 100};
  reading.stats.mean = reading.stats.square_mean = reading.stats.minimum;
  reading.height = reading.width = crop_extent, reading.crops = crop_count, reading.balance = 1;
  const ClimateSource source(images_below(folder.path()), reading);
  std::vector<std::pair<int64_t, std::vector<uint8_t>>> all;
  for (int64_t sample = 0; sample < crop_count; ++sample) {
    std::vector<float> x(static_cast<size_t>(source.input_bytes()) / 4);
    std::vector<uint8_t> y(static_cast<size_t>(source.target_bytes()));
    source.load(sample, 0, reinterpret_cast<std::byte*>(x.data()), reinterpret_cast<std::byte*>(y.data()));
    all.emplace_back(std::lround(x[0] * 100), std::move(y));
  }
  return all;
}

size_t pixel_at(int64_t row, int64_t column) {
  return static_cast<size_t>(row * striped.width + column);
}

std::vector<uint8_t> no_storms() {
  return std::vector<uint8_t>(static_cast<size_t>(striped.height * striped.width));
}

}  // namespace

TEST_CASE("a storm lies in the middle of its crop", "[climate][crops]") {
  std::vector<uint8_t> classes = no_storms();
  classes[pixel_at(40, 50)] = 1;
  for (const auto& [top, labels] : centred_crops(classes)) {
    CHECK(top == 40 - crop_extent / 2);
    CHECK(labels[static_cast<size_t>(crop_extent / 2 * crop_extent + crop_extent / 2)] == 1);
  }
}

TEST_CASE("storms of every class centre crops, and all of a large one", "[climate][crops]") {
  std::vector<uint8_t> classes = no_storms();
  classes[pixel_at(20, 20)] = 1, classes[pixel_at(70, 60)] = 2;
  std::set<uint8_t> met;
  for (const auto& [top, labels] : centred_crops(classes)) met.insert(*std::max_element(labels.begin(), labels.end()));
  CHECK(met == std::set<uint8_t>{1, 2});

  classes = no_storms();
  for (int64_t row = 8; row < 88; ++row) std::fill_n(classes.begin() + int64_t(pixel_at(row, 5)), 70, uint8_t{2});
  int64_t north = 0, south = 0;
  for (const auto& [top, labels] : centred_crops(classes))
    north += top + crop_extent / 2 < 28, south += top + crop_extent / 2 >= 68;
  CHECK(north > crop_count / 10);  // a quarter of the storm's rows each
  CHECK(south > crop_count / 10);
}
