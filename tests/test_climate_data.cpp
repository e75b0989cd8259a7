// Climate files in every layout, their damage, statistics, crops; IoU as the benchmark defines it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "apps/common/climate_data.h"
#include "apps/common/iou.h"
#include "core/philox.h"
#include "io/climate_source.h"
#include "io/hdf5.h"
#include "io/netcdf.h"
#include "layers/schedule.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::testing;

namespace {

constexpr ImageShape shape{24, 36, 4};

std::vector<float> image(uint64_t seed) {
  const PhiloxStream random(seed, 1);
  std::vector<float> values(static_cast<size_t>(shape.height * shape.width * shape.channels));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 100 * float(i % 4) + random.uniform(i);
  return values;
}

std::vector<uint8_t> labels(int64_t row) {
  std::vector<uint8_t> classes(static_cast<size_t>(shape.height * shape.width));
  for (int64_t w = 3; w < 9; ++w) classes[static_cast<size_t>(row * shape.width + w)] = 2;
  classes[static_cast<size_t>((row + 4) * shape.width + 30)] = 1;
  return classes;
}

/// The same image in the Gordon-Bell layout.
void write_channels_first(const std::string& path, const std::vector<float>& values,
                          const std::vector<uint8_t>& classes) {
  Hdf5File file(path, Hdf5File::Mode::create);
  std::vector<float> turned;
  for (int64_t c = 0; c < shape.channels; ++c)
    for (size_t i = static_cast<size_t>(c); i < values.size(); i += 4) turned.push_back(values[i]);
  const int64_t data[] = {shape.channels, shape.height, shape.width}, two[] = {2, shape.height, shape.width};
  file.write("climate/data", DType::f32, data, std::as_bytes(std::span(turned)));
  std::vector<float> twice(classes.begin(), classes.end());
  twice.insert(twice.end(), classes.begin(), classes.end());
  file.write("climate/labels", DType::f32, two, std::as_bytes(std::span(twice)));
}

/// Channels first with a data set for each set of labels, as the climate-seg-benchmark has it.
void write_benchmark(const std::string& path, const std::vector<float>& values, std::vector<std::vector<uint8_t>> sets,
                     int first_set = 0) {
  Hdf5File file(path, Hdf5File::Mode::create);
  std::vector<float> turned;
  for (int64_t c = 0; c < shape.channels; ++c)
    for (size_t i = static_cast<size_t>(c); i < values.size(); i += 4) turned.push_back(values[i]);
  const int64_t data[] = {shape.channels, shape.height, shape.width}, plane[] = {shape.height, shape.width};
  file.write("climate/data", DType::f32, data, std::as_bytes(std::span(turned)));
  for (const std::vector<uint8_t>& classes : sets)
    file.write("climate/labels_" + std::to_string(first_set++), DType::u8, plane, std::as_bytes(std::span(classes)));
  file.close();
}

/// Already normalised, in half precision.
void write_shard(const std::string& path, const std::vector<float>& values, const std::vector<uint8_t>& classes) {
  Hdf5File file(path, Hdf5File::Mode::create);
  std::vector<f16> halves;
  for (float v : values) halves.push_back(f16(v));
  const int64_t data[] = {1, shape.height, shape.width, shape.channels}, plane[] = {1, shape.height, shape.width};
  file.write("data", DType::f16, data, std::as_bytes(std::span(halves)));
  file.write("labels", DType::u8, plane, std::as_bytes(std::span(classes)));
  file.write_text("format", climate_shard_format);
}

}  // namespace

TEST_CASE("all layouts hold the same image", "[climate][io]") {
  const TemporaryFolder folder;
  const auto values = image(1);
  const auto classes = labels(10);
  write_climate_file(folder / "data-2106-01-01-00-0.h5", shape, values, classes, {});
  write_channels_first(folder / "first.h5", values, classes);
  const ClimateRef official = images_in(folder / "data-2106-01-01-00-0.h5").at(0),
                   first = images_in(folder / "first.h5").at(0);
  CHECK(official.format == ClimateFormat::deepcam);
  CHECK(first.format == ClimateFormat::gordon_bell);
  for (const ClimateRef& ref : {official, first}) {
    CHECK(ref.shape == shape);
    CHECK(read_image(ref, {0, 0, 24, 36}) == values);
    CHECK(read_labels(ref, 1, 3) == classes);
    const auto box = read_image(ref, {5, 7, 2, 3});
    CHECK(box[4] == values[static_cast<size_t>((5 * 36 + 8) * 4)]);
    const LabelledImage both = read_labelled(ref, 1, 3, {9, 7, 2, 3});
    CHECK(both.values == read_image(ref, {9, 7, 2, 3}));
    CHECK(both.classes == read_labels(ref, 1, 3, {9, 7, 2, 3}));
    CHECK(both.classes.at(3) == 2);
  }
  std::vector<float> small(values.size());
  for (size_t i = 0; i < small.size(); ++i) small[i] = float(i % 64) / 64;  // exact in half precision
  write_shard(folder / "shard.h5", small, classes);
  const ClimateRef shard = images_in(folder / "shard.h5").at(0);
  CHECK(shard.format == ClimateFormat::sharded);
  CHECK(read_image(shard, {0, 0, 24, 36}) == small);
  CHECK(read_labels(shard, 0, 3) == classes);
  CHECK(day_of(official) == "2106-01-01");
  CHECK(day_of(first) == "first");
}

TEST_CASE("an image is written with its own statistics", "[climate][io]") {
  const TemporaryFolder folder;
  const auto values = image(6);
  write_climate_file(folder / "image.h5", shape, values, {}, {});
  const Hdf5File file(folder / "image.h5", Hdf5File::Mode::read);
  REQUIRE(file.extents("climate/data_stats") == std::vector<int64_t>{4, 4});
  std::vector<float> table(16);
  file.read("climate/data_stats", DType::f32, std::as_writable_bytes(std::span(table)));
  for (size_t c = 0; c < 4; ++c) {
    double sum = 0, squares = 0;
    float least = INFINITY, most = -INFINITY;
    for (size_t i = c; i < values.size(); i += 4)
      sum += double(values[i]), least = std::min(least, values[i]), most = std::max(most, values[i]);
    const double mean = sum / double(values.size() / 4);
    for (size_t i = c; i < values.size(); i += 4) squares += std::pow(double(values[i]) - mean, 2);
    CHECK(table[c] == float(mean));
    CHECK(table[4 + c] == most);
    CHECK(table[8 + c] == least);
    CHECK(double(table[12 + c]) == Approx(std::sqrt(squares / double(values.size() / 4))).epsilon(1e-4));
  }
}

TEST_CASE("channels first go with labels of one set each, too", "[climate][io]") {
  const TemporaryFolder folder;
  const auto values = image(5);
  write_benchmark(folder / "both.h5", values, {labels(2), labels(12)});
  const ClimateRef both = images_in(folder / "both.h5").at(0);
  CHECK(both.format == ClimateFormat::channels_first);
  CHECK(both.shape == shape);
  CHECK(read_image(both, whole(both)) == values);
  for (int set : {0, 1}) {
    const Hdf5File file(both.path, Hdf5File::Mode::read);
    expect_labels(both, set);
    CHECK(read_labels(file, both, set, 3, whole(both)) == labels(set ? 12 : 2));
    CHECK(read_labels(both, set, 3) == labels(set ? 12 : 2));
  }
  CHECK(read_labels(both, 1, 3, {12, 3, 1, 2}) == std::vector<uint8_t>{2, 2});
  write_benchmark(folder / "second.h5", values, {labels(7)}, 1);
  const ClimateRef second = images_in(folder / "second.h5").at(0);
  CHECK(second.labelled());
  expect_labels(second, 1);
  CHECK_THROWS_WITH(expect_labels(second, 0), Catch::Contains("second.h5: expected data set climate/labels_0 (label "
                                                              "set 0), found climate/labels_1 alone"));
  CHECK_THROWS_WITH(read_labels(second, 0, 3), Catch::Contains("second.h5: expected data set climate/labels_0"));
  write_benchmark(folder / "none.h5", values, {});
  const ClimateRef none = images_in(folder / "none.h5").at(0);
  CHECK_FALSE(none.labelled());
  CHECK_THROWS_WITH(
      expect_labels(none, 0),
      Catch::Contains("none.h5: expected data set climate/labels, climate/labels_0 or climate/labels_1, found none"));
  write_benchmark(folder / "short.h5", values, {});
  {
    Hdf5File file(folder / "short.h5", Hdf5File::Mode::create);
    const int64_t data[] = {4, 24, 36}, plane[] = {24, 35};
    file.write("climate/data", DType::f32, data, std::as_bytes(std::span(values)));
    file.write("climate/labels_1", DType::u8, plane, std::vector<std::byte>(24 * 35));
  }
  CHECK_THROWS_WITH(images_in(folder / "short.h5"), Catch::Contains("climate/labels_1 is 24x35, expected 24,36"));
}

TEST_CASE("an image that no model has is refused ahead of its allocation", "[climate][io]") {
  const TemporaryFolder folder;
  {
    Hdf5File file(folder / "huge.h5", Hdf5File::Mode::create);
    const int64_t extents[] = {1 << 16, 1 << 16, 1 << 16}, chunk[] = {1, 64, 64};
    file.create("climate/data", DType::f32, extents, chunk, 1);
  }
  CHECK_THROWS_WITH(images_in(folder / "huge.h5"), Catch::Contains("huge.h5: an image of 65536x65536x65536"));
}

TEST_CASE("damaged climate files are named", "[climate][io]") {
  const TemporaryFolder folder;
  auto values = image(2);
  auto classes = labels(3);
  classes[5] = 7;
  write_climate_file(folder / "class.h5", shape, values, classes, {});
  CHECK_THROWS_WITH(read_labels(images_in(folder / "class.h5").at(0), 0, 3),
                    Catch::Contains("class.h5") && Catch::Contains("column 5") && Catch::Contains("found 7"));
  write_shard(folder / "shard.h5", values, classes);  // classes as bytes, with the same error
  const ClimateRef shard = images_in(folder / "shard.h5").at(0);
  CHECK_THROWS_WITH(
      read_labels(shard, 0, 3),
      Catch::Contains(
          "shard.h5: label at row 0, column 5: expected a class below 3 or 255 (without label), found 7.000000"));
  CHECK_THROWS_WITH(read_labels(shard, 0, 7, {0, 4, 2, 3}), Catch::Contains("row 0, column 5: expected a class below"));
  CHECK(read_labels(shard, 0, 8) == classes);
  const std::vector<float> halves(classes.size(), 1.5f);  // official files hold classes as floating point
  const int64_t data[] = {shape.height, shape.width, shape.channels};
  Hdf5File half(folder / "half.h5", Hdf5File::Mode::create);
  half.write("climate/data", DType::f32, data, std::as_bytes(std::span(values)));
  half.write("climate/labels_0", DType::f32, std::span(data).first(2), std::as_bytes(std::span(halves)));
  half.close();
  CHECK_THROWS_WITH(read_labels(images_in(folder / "half.h5").at(0), 0, 3),
                    Catch::Contains("row 0, column 0: expected a class below 3") && Catch::Contains("found 1.5"));
  classes[5] = unlabelled;  // no class, and no damage
  write_climate_file(folder / "unlabelled.h5", shape, values, classes, {});
  CHECK(read_labels(images_in(folder / "unlabelled.h5").at(0), 0, 3) == classes);
  write_shard(folder / "unlabelled-shard.h5", values, classes);
  CHECK(read_labels(images_in(folder / "unlabelled-shard.h5").at(0), 0, 3) == classes);
  values[4 * 36 * 4 + 2] = NAN;
  write_climate_file(folder / "nan.h5", shape, values, labels(3), {});
  CHECK_THROWS_WITH(read_image(images_in(folder / "nan.h5").at(0), {3, 0, 4, 36}),
                    Catch::Contains("nan.h5") && Catch::Contains("channel 2") && Catch::Contains("row 4"));
  { Hdf5File empty(folder / "empty.h5", Hdf5File::Mode::create); }
  CHECK_THROWS_WITH(images_in(folder / "empty.h5"), Catch::Contains("climate/data"));
  CHECK_THROWS_WITH(read_stats(folder / "empty.h5"), Catch::Contains("minval"));
  CHECK_THROWS_WITH(images_below(folder / "nowhere"), Catch::Contains("no such folder"));
}

TEST_CASE("statistics of other channels are refused", "[climate][io]") {
  ClimateStats stats;
  stats.mean = stats.minimum = {0, 0, 0}, stats.maximum = {1, 1, 1};
  std::vector<float> values(8);
  CHECK_THROWS_WITH(normalise(values, stats), Catch::Contains("found 3"));
}

TEST_CASE("statistics merge, and both forms read back", "[climate][io]") {
  const TemporaryFolder folder;
  const auto a = image(3), b = image(4);
  ClimateStats merged = image_stats(a, 4);
  merged.add(image_stats(b, 4));
  auto both = a;
  both.insert(both.end(), b.begin(), b.end());
  const ClimateStats whole = image_stats(both, 4);
  for (size_t c = 0; c < 4; ++c) {
    CHECK(merged.mean[c] == Approx(whole.mean[c]));
    CHECK(merged.square_mean[c] == Approx(whole.square_mean[c]));
    CHECK(merged.minimum[c] == whole.minimum[c]);
  }
  write_stats(folder / "stats.h5", merged);
  const ClimateStats read = read_stats(folder / "stats.h5");
  CHECK(read.images == 2);  // as MLPerf's script counts, whatever their pixels
  CHECK(merged.pixels == 2 * shape.height * shape.width);
  CHECK(read.maximum[3] == Approx(merged.maximum[3]));
  {
    Hdf5File file(folder / "gb.h5", Hdf5File::Mode::create);
    const float table[] = {1, 3, -1, 2, 5, 9, 4, 0.5f};
    const int64_t extents[] = {2, 4};
    file.write("climate/stats", DType::f32, extents, std::as_bytes(std::span(table)));
  }
  {  // all that training, and MLPerf's reader, ask for
    Hdf5File file(folder / "extremes.h5", Hdf5File::Mode::create);
    const double least[] = {-1, 4}, most[] = {3, 9};
    const int64_t extents[] = {2};
    file.write("climate/minval", DType::f64, extents, std::as_bytes(std::span(least)));
    file.write("climate/maxval", DType::f64, extents, std::as_bytes(std::span(most)));
  }
  const ClimateStats extremes = read_stats(folder / "extremes.h5");
  CHECK(extremes.channels() == 2);
  CHECK(extremes.maximum == std::vector<double>{3, 9});
  CHECK(extremes.minimum == std::vector<double>{-1, 4});
  const ClimateStats gb = read_stats(folder / "gb.h5");
  CHECK(gb.maximum == std::vector<double>{3, 9});
  CHECK(gb.minimum == std::vector<double>{-1, 4});
  CHECK(gb.square_mean[0] == Approx(5));
}

TEST_CASE("images of other channels end statistics, ahead of their file", "[climate][io]") {
  const TemporaryFolder folder, results;
  write_climate_file(folder / "a.h5", shape, image(1), {}, {});
  write_climate_file(folder / "b.h5", {24, 48, 3}, image(2), {}, {});
  const std::string out = results / "stats.h5";
  CHECK_THROWS_WITH(apps::write_climate_stats(folder.path(), out, 2),
                    Catch::Contains("b.h5: expected 4 channels like the files before, found 3"));
  CHECK_FALSE(std::filesystem::exists(out));
  std::filesystem::remove(folder / "b.h5");
  CHECK(apps::write_climate_stats(folder.path(), out, 2) == 0);
  CHECK(read_stats(out).channels() == 4);
}

TEST_CASE("statistics of constant channels read back, however large the constant", "[climate][io]") {
  const TemporaryFolder folder;
  std::vector<float> values;
  for (int i = 0; i < 6; ++i)
    for (float v : {3.0f, -2e7f, 1e9f, 1e18f}) values.push_back(v);
  ClimateStats stats = image_stats(values, 4);
  widen_constant_channels(stats);
  write_stats(folder / "stats.h5", stats);
  const ClimateStats read = read_stats(folder / "stats.h5");
  CHECK(read.maximum[0] == 4);
  CHECK(read.minimum[2] == 1e9);
}

TEST_CASE("values that half precision does not hold are refused by file and channel", "[climate][io]") {
  const TemporaryFolder folder;
  auto values = image(1);
  values[4 * 7 + 2] = 1e6f;
  write_climate_file(folder / "large.h5", shape, values, labels(3), {});
  ClimateStats stats;
  stats.images = 1, stats.mean = stats.square_mean = stats.minimum = {0, 0, 0, 0}, stats.maximum = {1, 1, 1, 1};
  write_stats(folder / "stats.h5", stats);
  CHECK_THROWS_WITH(apps::shard_climate(folder / "large.h5", folder / "out", "", 4, 2),
                    Catch::Contains("large.h5: channel 2: expected normalised values") && Catch::Contains("1000000"));
}

TEST_CASE("statistics are found in a data set's folder, above it, and beside its images", "[climate][io]") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  fs::create_directories(folder / "sky/train");
  const std::string image_path = folder / "sky/train/a.h5", above = folder / "sky/stats.h5",
                    beside = folder / "sky/train/stats.h5";
  write_climate_file(image_path, shape, image(1), {}, {});
  const std::vector<ClimateRef> images = images_below(image_path);  // one file is a data set, too
  CHECK(find_stats(folder / "sky", images) == above);
  CHECK(find_stats(image_path, images) == beside);
  ClimateStats stats = image_stats(image(1), 4);
  write_stats(beside, stats);
  CHECK(find_stats(folder / "sky", images) == beside);
  write_stats(above, stats), fs::remove(beside);
  for (const std::string& path : {folder / "sky", folder / "sky/train", image_path})
    CHECK(find_stats(path, images) == above);
}

TEST_CASE("crops are normalised, repeatable and find storms", "[climate][io]") {
  const TemporaryFolder folder;
  ClimateStats stats;
  for (int i = 0; i < 3; ++i) {
    write_climate_file(folder / ("data-2106-01-0" + std::to_string(i + 1) + "-00-0.h5"), shape, image(uint64_t(i)),
                       labels(4 + 5 * i), {});
    stats.add(image_stats(image(uint64_t(i)), 4));
  }
  ClimateReading reading;
  reading.stats = stats;
  reading.height = 8, reading.width = 8, reading.crops = 20;
  const auto refs = images_below(folder.path());
  const auto load = [&](const ClimateReading& r, int64_t sample, int64_t epoch) {
    const ClimateSource source(refs, r);
    std::vector<float> x(static_cast<size_t>(source.input_bytes()) / 4);
    std::vector<uint8_t> y(static_cast<size_t>(source.target_bytes()));
    source.load(sample, epoch, reinterpret_cast<std::byte*>(x.data()), reinterpret_cast<std::byte*>(y.data()));
    return std::pair{x, y};
  };
  CHECK(ClimateSource(refs, reading).size() == 60);
  CHECK(load(reading, 7, 1) == load(reading, 7, 1));
  CHECK(load(reading, 7, 1) != load(reading, 7, 2));
  const auto storms = [&](double balance) {
    ClimateReading r = reading;
    r.balance = balance;
    int found = 0;
    for (int64_t s = 0; s < 60; ++s) {
      const auto y = load(r, s, 0).second;
      found += std::any_of(y.begin(), y.end(), [](uint8_t k) { return k > 0; });
    }
    return found;
  };
  CHECK(storms(1) == 60);
  CHECK(storms(0) < 50);
  for (float v : load(reading, 3, 0).first) CHECK((v >= -1e-5f && v <= 1 + 1e-5f));
  reading.step = 2, reading.height = reading.width = 0, reading.crops = 1;
  const auto whole = load(reading, 1, 0);
  CHECK(whole.second.size() == 12 * 18);
  CHECK(whole.second[static_cast<size_t>(2 * 18 + 2)] == labels(9)[4 * 36 + 4]);
  reading.step = 1, reading.height = 40, reading.width = 8;
  CHECK_THROWS_WITH(load(reading, 0, 0), Catch::Contains("40x8") && Catch::Contains("24x36x4"));
}

TEST_CASE("blocks become their first pixel or their mean", "[climate][io]") {
  const TemporaryFolder folder;
  ClimateReading reading;
  reading.stats.minimum = {0, 100, 200, 300}, reading.stats.maximum = {2, 102, 202, 302};
  reading.stats.mean = reading.stats.square_mean = reading.stats.minimum;
  std::vector<uint8_t> classes(static_cast<size_t>(shape.height * shape.width));
  for (size_t i = 0; i < classes.size(); ++i) classes[i] = static_cast<uint8_t>(i % 3 + (i / 36) % 2) % 3;
  const auto values = image(8);
  write_climate_file(folder / "a.h5", shape, values, classes, {});
  const auto refs = images_below(folder.path());
  const auto load = [&](Downsampling mode, int64_t step) {
    reading.step = step, reading.downsampling = mode;
    const ClimateSource source(refs, reading);
    std::vector<float> x(static_cast<size_t>(source.input_bytes()) / 4);
    std::vector<uint8_t> y(static_cast<size_t>(source.target_bytes()));
    source.load(0, 0, reinterpret_cast<std::byte*>(x.data()), reinterpret_cast<std::byte*>(y.data()));
    return std::pair{x, y};
  };
  const auto [every, every_class] = load(Downsampling::pick, 1);
  CHECK(every_class == classes);
  for (int64_t step : {2, 3, 5}) {
    const auto [picked, picked_class] = load(Downsampling::pick, step);
    const auto [mean, mean_class] = load(Downsampling::mean, step);
    const int64_t rows = shape.height / step, columns = shape.width / step;
    REQUIRE(mean.size() == static_cast<size_t>(rows * columns * 4));
    for (int64_t h = 0; h < rows; ++h)
      for (int64_t w = 0; w < columns; ++w) {
        const auto at = static_cast<size_t>(h * columns + w);
        const auto pixel = [&](int64_t i, int64_t j) {
          return static_cast<size_t>((h * step + i) * shape.width + w * step + j);
        };
        CHECK(picked_class[at] == classes[pixel(0, 0)]);
        CHECK(mean_class[at] == classes[pixel((step - 1) / 2, (step - 1) / 2)]);
        for (size_t c = 0; c < 4; ++c) {
          CHECK(picked[at * 4 + c] == every[pixel(0, 0) * 4 + c]);
          double sum = 0;
          for (int64_t i = 0; i < step * step; ++i) sum += double(every[pixel(i / step, i % step) * 4 + c]);
          CHECK(double(mean[at * 4 + c]) == Approx(sum / double(step * step)));
        }
      }
  }
}

TEST_CASE("regridding is exact on linear fields, closes the circle and keeps holes", "[climate][io]") {
  GriddedField f;
  for (int i = 0; i < 19; ++i) f.latitude.push_back(-90 + 10 * i);
  for (int i = 0; i < 36; ++i) f.longitude.push_back(10 * i);
  for (double lat : f.latitude)
    for (double lon : f.longitude) f.values.push_back(float(lat + 2 * std::min(lon, 360 - lon)));
  const auto out = regrid(f, 36, 72);
  for (int64_t h = 0; h < 36; ++h)
    for (int64_t w = 0; w < 72; ++w) {
      const double lat = -90 + 5 * (double(h) + 0.5), lon = 5 * double(w);
      CHECK(double(out[static_cast<size_t>(h * 72 + w)]) == Approx(lat + 2 * std::min(lon, 360 - lon)).margin(1e-3));
    }
  // Rounded coordinates: a position that is on the grid has no part of its neighbour.
  GriddedField rounded = f;
  for (double& lon : rounded.longitude) lon += 1.5e-5;
  for (size_t i = 0; i < 19; ++i) rounded.values[i * 36 + 3] = NAN;
  const auto beside = regrid(rounded, 36, 72);
  CHECK(std::isfinite(beside[18 * 72 + 8]));
  CHECK(std::isnan(beside[18 * 72 + 6]));
  f.values[static_cast<size_t>(9 * 36 + 18)] = NAN;
  auto holed = regrid(f, 36, 72);
  CHECK(std::count_if(holed.begin(), holed.end(), [](float v) { return std::isnan(v); }) == 4 * 3);
  CHECK(fill_missing(holed, 36, 72, "field") == 12);
  CHECK(std::all_of(holed.begin(), holed.end(), [](float v) { return std::isfinite(v); }));
  std::vector<float> empty(8, NAN);
  CHECK_THROWS_WITH(fill_missing(empty, 2, 4, "a.nc: variable x"), Catch::Contains("a.nc: variable x"));
}

TEST_CASE("a stretched grid has no gaps, its poles take the nearest row", "[climate][io]") {
  GriddedField f;
  for (double lat = -75; lat <= 75; lat += std::abs(lat) < 15 ? 0.5 : 2.5) f.latitude.push_back(lat);
  for (int i = 0; i < 36; ++i) f.longitude.push_back(10 * i);
  for (double lat : f.latitude)
    for (size_t i = 0; i < f.longitude.size(); ++i) f.values.push_back(float(lat));
  auto out = regrid(f, 180, 36);
  const auto value = [&](int64_t row) { return double(out[static_cast<size_t>(row * 36 + 7)]); };
  for (int64_t row = 15; row < 165; ++row) CHECK(value(row) == Approx(double(row) - 89.5).margin(1e-3));
  CHECK(std::isnan(value(0)));
  fill_missing(out, 180, 36, "field");
  CHECK(value(0) == Approx(-75));
  CHECK(value(179) == Approx(75));
  // One step that is larger than both beside it is a hole.
  const auto hole = std::find(f.latitude.begin(), f.latitude.end(), 0.0);
  REQUIRE(hole != f.latitude.end());
  const auto row = hole - f.latitude.begin();
  f.latitude.erase(hole), f.values.erase(f.values.begin() + row * 36, f.values.begin() + (row + 1) * 36);
  out = regrid(f, 1800, 36);
  CHECK(std::isnan(value(900)));         // 0.05 degrees north
  CHECK(std::isfinite(value(900 + 3)));  // 0.35
}

TEST_CASE("holes beside each other are holes, a single meridian is no globe", "[climate][io]") {
  GriddedField f;
  for (double lat : {-83., -81., -79., -77., -75., -73., -71., -29., 11., 13., 15., 17., 19., 21., 23.})
    f.latitude.push_back(lat);
  for (int i = 0; i < 36; ++i) f.longitude.push_back(10 * i);
  f.values.assign(f.latitude.size() * f.longitude.size(), 1);
  const auto out = regrid(f, 180, 36);
  const auto there = [&](int64_t row) { return std::isfinite(out[static_cast<size_t>(row * 36)]); };
  CHECK(there(17));  // -72.5
  for (int64_t row : {40, 55, 66, 80, 95}) CHECK_FALSE(there(row));
  CHECK(there(60));  // -29.5, half a step from the row between the holes
  CHECK(there(103));
  f.longitude = {30}, f.values.assign(f.latitude.size(), 1);
  const auto line = regrid(f, 180, 36);
  CHECK(std::isfinite(line[static_cast<size_t>(10 * 36 + 3)]));
  CHECK_FALSE(std::isfinite(line[static_cast<size_t>(10 * 36 + 4)]));
}

TEST_CASE("a regional grid across Greenwich fills its region alone", "[climate][io]") {
  GriddedField f;
  for (int i = 0; i < 19; ++i) f.latitude.push_back(-90 + 10 * i);
  for (double lon : {0., 5., 10., 350., 355.}) f.longitude.push_back(lon);
  f.values.assign(19 * 5, 3.0f);
  const auto out = regrid(f, 18, 72);
  for (int64_t w = 0; w < 72; ++w) CHECK(std::isfinite(out[static_cast<size_t>(9 * 72 + w)]) == (w <= 2 || w >= 70));
}

TEST_CASE("days stay together in a split", "[climate][io]") {
  const TemporaryFolder folder;
  for (int day = 1; day <= 5; ++day)
    for (int step = 0; step < 2; ++step)
      write_climate_file(folder / ("data-2106-01-0" + std::to_string(day) + "-0" + std::to_string(step) + "-0.h5"),
                         shape, image(1), labels(3), {});
  const ClimateSplit split = split_images(folder.path(), 0.4, 3);
  CHECK(split.validation.size() == 4);
  for (const ClimateRef& v : split.validation)
    for (const ClimateRef& t : split.train) CHECK(day_of(v) != day_of(t));
}

namespace {

/// Images of days of January 2106, one each.
void write_days(const std::string& folder, int first, int last) {
  std::filesystem::create_directories(folder);
  for (int day = first; day <= last; ++day)
    write_climate_file(folder + "/data-2106-01-0" + std::to_string(day) + "-00-0.h5", shape, image(1), labels(3), {});
}

std::vector<std::string> paths(const std::vector<ClimateRef>& images) {
  std::vector<std::string> found;
  for (const ClimateRef& ref : images) found.push_back(ref.path);
  return found;
}

/// The first so many.
std::vector<std::string> paths(const std::vector<ClimateRef>& images, size_t count) {
  std::vector<std::string> found = paths(images);
  found.resize(count);
  return found;
}

}  // namespace

TEST_CASE("without a folder validation, days for a test are neither trained on nor drawn", "[climate][io]") {
  const TemporaryFolder folder;
  write_days(folder / "train", 1, 5), write_days(folder / "test", 6, 9);
  const ClimateSplit split = split_images(folder.path(), 0.4, 3), alone = split_images(folder / "train", 0.4, 3);
  CHECK(split.train.size() == 3);
  CHECK(paths(split.train) == paths(alone.train));
  CHECK(paths(split.validation) == paths(alone.validation));
  std::filesystem::remove_all(folder / "train");
  CHECK_THROWS_WITH(split_images(folder.path(), 0.4, 3),
                    folder.path() + ": expected folders train and validation, or train alone, found test");
}

TEST_CASE("files behind the images that are wanted are not opened", "[climate][io]") {
  const TemporaryFolder folder;
  write_days(folder / "train", 1, 4), write_days(folder / "validation", 5, 6);
  const auto damage = [](const ClimateRef& ref) { std::filesystem::resize_file(ref.path, 100); };
  const ClimateSplit all = split_images(folder.path(), 0.5, 3);
  damage(all.validation.back());
  CHECK_THROWS_WITH(split_images(folder.path(), 0.5, 3), Catch::Contains("data-2106-01-06"));
  const ClimateSplit few = split_images(folder.path(), 0.5, 3, {2, 1});
  CHECK(paths(few.train) == paths(all.train, 2));
  CHECK(paths(few.validation) == paths(all.validation, 1));
  CHECK(split_images(folder.path(), 0.5, 3, {9, 1}).train.size() == 4);
  // The same where days are drawn: by names, ahead of the limits.
  const ClimateSplit drawn = split_images(folder / "train", 0.5, 3);
  damage(drawn.train.back());
  CHECK_THROWS_WITH(split_images(folder / "train", 0.5, 3), Catch::Contains(drawn.train.back().path));
  const ClimateSplit one = split_images(folder / "train", 0.5, 3, {1, 0});
  CHECK(paths(one.train) == paths(drawn.train, 1));
  CHECK(paths(one.validation) == paths(drawn.validation));
  // Shards are refused there, however few images are wanted.
  std::filesystem::create_directory(folder / "shards");
  const std::vector<float> half(static_cast<size_t>(shape.height * shape.width * shape.channels), 0.5f);
  for (const char* name : {"a.h5", "b.h5"}) write_shard(folder / "shards/" + name, half, labels(3));
  CHECK_THROWS_WITH(split_images(folder / "shards", 0.5, 3, {1, 1}), Catch::Contains("shards do not say which"));
}

TEST_CASE("IoU per sample counts empty classes as 1, pooled does not", "[climate][iou]") {
  apps::SegmentationScore score;
  score.add(std::vector<uint8_t>{0, 0, 2, 2}, std::vector<uint8_t>{0, 2, 2, 2});
  CHECK(score.per_sample(0) == Approx(0.5));
  CHECK(score.per_sample(1) == 1);  // neither there nor predicted
  CHECK(score.per_sample(2) == Approx(2.0 / 3));
  score.add(std::vector<uint8_t>{1, 1, 0, 255}, std::vector<uint8_t>{0, 1, 0, 2});
  CHECK(score.per_sample(1) == Approx(0.75));
  CHECK(score.pooled.iou(1) == Approx(0.5));
  CHECK(score.pooled.iou(0) == Approx(2.0 / 4));
  const double both = (0.5 * (0.5 + 0.5) + 0.5 * (1 + 0.5) + 0.5 * (2.0 / 3 + 1)) / 3;
  CHECK(score.mlperf() == Approx(both));
  score.add(std::vector<uint8_t>{255, 255, 255}, std::vector<uint8_t>{0, 1, 2});  // says nothing of any class
  CHECK(score.samples == 2);
  CHECK(score.mlperf() == Approx(both));
}

TEST_CASE("learning rates per step", "[schedule]") {
  StepSchedule s;
  s.base_rate = 0.1, s.warmup_steps = 10, s.warmup_factor = 4;
  // Steps count from 0: MLPerf HPC DeepCAM's schedulers.py.
  CHECK(s.rate(0) == Approx(0.1));
  CHECK(s.rate(5) == Approx(0.1 * (1 + 3 * 0.5)));
  CHECK(s.rate(10) == Approx(0.4));
  s.kind = StepSchedule::Kind::multistep;
  s.milestones = {5, 20};
  CHECK(s.rate(15) == Approx(0.4));
  CHECK(s.rate(16) == Approx(0.04));
  CHECK(s.rate(30) == Approx(0.04));
  CHECK(s.rate(31) == Approx(0.004));
  StepSchedule plain = s;
  plain.warmup_steps = 0, plain.warmup_factor = 1;
  CHECK(plain.rate(4) == Approx(0.1));
  CHECK(plain.rate(5) == Approx(0.01));
  plain.warmup_steps = 4;
  CHECK(plain.rate(0) == 0);
  CHECK(plain.rate(1) == Approx(0.025));
  s.kind = StepSchedule::Kind::cosine;
  s.length = 100, s.eta_min = 0.01;
  CHECK(s.rate(10) == Approx(0.4));
  CHECK(s.rate(60) == Approx(0.01 + 0.39 / 2));
  CHECK(s.rate(110) == Approx(0.01));
  CHECK(s.rate(160) == Approx(0.01 + 0.39 / 2));  // rises again
  s.kind = StepSchedule::Kind::polynomial;
  s.power = 2;
  CHECK(s.rate(500) == Approx(0.01));
  CHECK(s.rate(60) == Approx(0.01 + 0.39 / 4));
}
