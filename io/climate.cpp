#include "io/climate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>
#include <string>

#include "core/philox.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/layout.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

/// Elements of an image or a part of it; no model has more, so that a damaged header does not become an allocation.
int64_t image_elements(const std::string& path, std::span<const int64_t> extents) {
  const auto elements = checked_elements(extents, int64_t{1} << 32);
  if (!elements) fail_data(path + ": an image of " + extents_text(extents) + ", which no model has");
  return *elements;
}

/// Extents of a data set of `rank` dimensions, each of which some model may have.
std::vector<int64_t> checked_extents(const Hdf5File& file, const std::string& name, size_t rank, const char* expected) {
  const std::vector<int64_t> e = file.extents(name);
  const bool sane = std::all_of(e.begin(), e.end(), [](int64_t n) { return n >= 1 && n <= 1 << 16; });
  if (e.size() != rank || !sane)
    fail_data(file.path() + ": data set " + name + " is " + extents_text(e) + ", expected " + expected);
  return e;
}

template <class T>
std::vector<T> read_box(const Hdf5File& file, const std::string& name, DType type, const std::vector<int64_t>& start,
                        const std::vector<int64_t>& count) {
  const auto elements = static_cast<size_t>(image_elements(file.path(), count));
  file.expect_written(name, start, count);
  std::vector<T> values(elements);
  file.read(name, type, std::as_writable_bytes(std::span(values)), start, count);
  return values;
}

std::vector<double> read_row(const Hdf5File& file, const std::string& name, int64_t expected) {
  const std::vector<int64_t> e = file.extents(name);
  if (checked_elements(e, expected) != expected)
    fail_data(file.path() + ": data set " + name + " is " + extents_text(e) + ", expected " + std::to_string(expected) +
              " channels");
  std::vector<double> row(static_cast<size_t>(expected));
  file.read(name, DType::f64, std::as_writable_bytes(std::span(row)));
  for (double v : row)
    if (!std::isfinite(v)) fail_data(file.path() + ": data set " + name + " holds a value that is not finite");
  return row;
}

void write_stats_file(const std::string& path, const ClimateStats& s) {
  Hdf5File file(path, Hdf5File::Mode::create);
  const int64_t channels = s.channels();
  const auto row = [&](const std::string& name, const std::vector<double>& values) {
    const int64_t extents[] = {static_cast<int64_t>(values.size())};
    const std::vector<float> narrow(values.begin(), values.end());
    file.write(name, DType::f32, extents, std::as_bytes(std::span(narrow)));
  };
  const int64_t one[] = {1};
  const double count[] = {double(s.images)};
  file.write("climate/count", DType::f64, one, std::as_bytes(std::span(count)));
  row("climate/mean", s.mean);
  row("climate/sqmean", s.square_mean);
  row("climate/minval", s.minimum);
  row("climate/maxval", s.maximum);
  std::vector<float> table;
  for (size_t c = 0; c < s.mean.size(); ++c)
    for (double v : {s.mean[c], s.maximum[c], s.minimum[c], s.deviation(c)}) table.push_back(float(v));
  const int64_t extents[] = {channels, 4};
  file.write("climate/stats", DType::f32, extents, std::as_bytes(std::span(table)));
  file.close();
}

/// Data sets that may hold labels; of more than one, each holds a set of its own.
std::vector<std::string> label_keys(ClimateFormat format) {
  if (format == ClimateFormat::sharded) return {"labels"};
  if (format == ClimateFormat::gordon_bell) return {"climate/labels"};
  return {"climate/labels_0", "climate/labels_1"};
}

bool channels_lead(ClimateFormat format) {
  return format == ClimateFormat::gordon_bell || format == ClimateFormat::channels_first;
}

/// The files found at `path`; throws Error(data) when there are none.
std::vector<std::string> expect_files(const std::string& path, std::vector<std::string> files) {
  if (files.empty()) fail_data(path + ": expected .h5 or .hdf5 files, found none");
  return files;
}

/// Those that hold the first `most` images (0: all), one in each at least.
std::vector<std::string> first_files(std::vector<std::string> files, int64_t most) {
  if (most > 0 && most < std::ssize(files)) files.resize(static_cast<size_t>(most));
  return files;
}

/// About a share of the days of these files, drawn from `seed`.
std::set<std::string> validation_days(const std::vector<std::string>& files, double share, uint64_t seed) {
  if (share == 0) return {};
  std::set<std::string> days;
  for (const std::string& file : files) days.insert(day_of(file));
  const PhiloxStream random(seed, hash_name("climate split"));
  return held_out(share, days,
                  [&](const std::string& day) { return random.below(hash_name(day) >> 8, uint64_t{1} << 40); });
}

}  // namespace

std::string_view name_of(ClimateFormat format) {
  constexpr std::string_view names[] = {"deepcam-hdf5", "gordon-bell-hdf5", "channels-first-hdf5",
                                        "sharded-climate-hdf5"};
  return names[static_cast<int>(format)];
}

std::vector<ClimateRef> images_in(const std::string& path) {
  return images_in(Hdf5File(path, Hdf5File::Mode::read));
}

std::vector<ClimateRef> images_in(const Hdf5File& file) {
  const std::string& path = file.path();
  if (file.read_text("format") == climate_shard_format) {
    const auto e = checked_extents(file, "data", 4, "N,H,W,C"), l = checked_extents(file, "labels", 3, "N,H,W");
    if (l[0] != e[0] || l[1] != e[1] || l[2] != e[2])
      fail_data(path + ": labels are " + extents_text(l) + ", data " + extents_text(e));
    image_elements(path, std::span(e).subspan(1));
    std::vector<ClimateRef> refs;
    for (int64_t i = 0; i < e[0]; ++i)
      refs.push_back({path, ClimateFormat::sharded, i, {e[1], e[2], e[3]}, {true, false}});
    return refs;
  }
  if (!file.contains("climate/data")) fail_data(path + ": expected data set climate/data, found none");
  const auto e = checked_extents(file, "climate/data", 3, "H,W,C or C,H,W");
  // Images are larger than channels are many.
  const bool first = e[0] < e[1] && e[0] < e[2];
  const ImageShape shape = first ? ImageShape{e[1], e[2], e[0]} : ImageShape{e[0], e[1], e[2]};
  image_elements(path, e);
  const bool both = first && file.contains("climate/labels");
  const ClimateFormat format = both    ? ClimateFormat::gordon_bell
                               : first ? ClimateFormat::channels_first
                                       : ClimateFormat::deepcam;
  std::array<bool, 2> sets{};
  const std::vector<std::string> keys = label_keys(format);
  for (size_t set = 0; set < keys.size(); ++set) {
    const std::string& name = keys[set];
    if (!file.contains(name)) continue;  // only one set, or none
    sets[set] = true;
    if (both) sets = {true, true};
    const auto l = checked_extents(file, name, both ? 3 : 2, both ? "2,H,W" : "H,W");
    if (l[l.size() - 2] != shape.height || l.back() != shape.width || (both && l[0] != 2))
      fail_data(path + ": data set " + name + " is " + extents_text(l) + ", expected " + (both ? "2," : "") +
                std::to_string(shape.height) + "," + std::to_string(shape.width) + " as data is " + shape.str());
  }
  return {{path, format, 0, shape, sets}};
}

std::vector<std::string> climate_files(const std::string& path, BrokenLinks broken) {
  if (fs::is_regular_file(path)) return {path};
  std::vector<std::string> files = files_below(path, {".h5", ".hdf5"}, broken);
  std::erase_if(files, [](const std::string& file) { return fs::path(file).stem() == "stats"; });
  return files;
}

std::vector<ClimateRef> images_of(const std::vector<std::string>& files) {
  std::vector<ClimateRef> refs;
  for (const std::string& file : files)
    for (ClimateRef& ref : images_in(file)) refs.push_back(std::move(ref));
  return refs;
}

std::vector<ClimateRef> images_below(const std::string& path) {
  return images_of(expect_files(path, climate_files(path)));
}

std::string day_of(const std::string& path) {
  const std::string stem = fs::path(path).stem();
  const bool official = stem.size() >= 15 && stem.starts_with("data-") && stem[9] == '-' && stem[12] == '-';
  return official ? stem.substr(5, 10) : stem;
}

ImageListing own_listing() {
  return {[](const std::string& path) { return climate_files(path); }, images_of};
}

ClimateSplit split_images(const std::string& folder, double validation_share, uint64_t seed,
                          const ClimateLimits& limits, const ImageListing& listing) {
  const SampleFolders folders = sample_folders(folder);
  const auto list = [&](const std::string& path) { return expect_files(path, listing.files(path)); };
  const auto open = [&](std::vector<std::string> files, int64_t most) {
    return listing.open(first_files(std::move(files), most));
  };
  if (!folders.validation.empty())
    return {open(list(folders.train), limits.train), open(list(folders.validation), limits.validation)};
  if (!(validation_share >= 0 && validation_share < 1))
    fail_usage("the validation share must be in [0, 1), found " + std::to_string(validation_share));
  const std::vector<std::string> all = list(folders.train);
  const std::set<std::string> drawn = validation_days(all, validation_share, seed);
  std::vector<std::string> train, validation;
  for (const std::string& file : all) (drawn.count(day_of(file)) ? validation : train).push_back(file);
  ClimateSplit split{open(train, limits.train), open(validation, limits.validation)};
  for (const auto* refs : {&split.train, &split.validation})
    if (std::any_of(refs->begin(), refs->end(), is_normalised))
      fail_data(folder + ": shards do not say which images share a day: expected folders train and validation");
  if (split.train.empty()) fail_data(folders.train + ": one day cannot be split into training and validation");
  return split;
}

std::vector<float> read_image(const Hdf5File& file, const ClimateRef& ref, const ImageBox& box) {
  const int64_t c = ref.shape.channels;
  std::vector<float> values;
  if (ref.format == ClimateFormat::sharded) {
    const auto halves =
        read_box<f16>(file, "data", DType::f16, {ref.index, box.top, box.left, 0}, {1, box.height, box.width, c});
    for (f16 h : halves) values.push_back(float(h));
  } else if (channels_lead(ref.format)) {
    values = read_box<float>(file, "climate/data", DType::f32, {0, box.top, box.left}, {c, box.height, box.width});
    values = to_channels_last<float>(values, c);
  } else {
    values = read_box<float>(file, "climate/data", DType::f32, {box.top, box.left, 0}, {box.height, box.width, c});
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i])) {
      const auto pixel = static_cast<int64_t>(i) / c;
      fail_data(ref.path + ": channel " + std::to_string(static_cast<int64_t>(i) % c) + " at row " +
                std::to_string(box.top + pixel / box.width) + ", column " +
                std::to_string(box.left + pixel % box.width) + ": expected a number, found " +
                std::to_string(values[i]));
    }
  return values;
}

std::vector<uint8_t> read_labels(const Hdf5File& file, const ClimateRef& ref, int set, int64_t classes,
                                 const ImageBox& box) {
  const int64_t w = box.width;
  const auto keys = label_keys(ref.format);
  const auto refuse = [&](size_t i, float found) {
    fail_data(ref.path + ": label at row " + std::to_string(box.top + static_cast<int64_t>(i) / w) + ", column " +
              std::to_string(box.left + static_cast<int64_t>(i) % w) + ": expected a class below " +
              std::to_string(classes) + " or 255 (without label), found " + std::to_string(found));
  };
  expect_labels(ref, set);
  std::string key = keys[0];
  std::vector<int64_t> start{box.top, box.left}, count{box.height, w};
  if (ref.format == ClimateFormat::sharded) {
    start.insert(start.begin(), ref.index), count.insert(count.begin(), 1);
  } else if (ref.format == ClimateFormat::gordon_bell) {
    start.insert(start.begin(), set), count.insert(count.begin(), 1);
  } else {
    key = keys.at(static_cast<size_t>(set));
  }
  // Shards hold bytes: conversion to floating point would take its time under the library's lock.
  if (ref.format == ClimateFormat::sharded && file.holds(key, DType::u8)) {
    std::vector<uint8_t> labels = read_box<uint8_t>(file, key, DType::u8, start, count);
    for (size_t i = 0; i < labels.size(); ++i)
      if (labels[i] >= classes && labels[i] != unlabelled) refuse(i, labels[i]);
    return labels;
  }
  const std::vector<float> raw = read_box<float>(file, key, DType::f32, start, count);
  std::vector<uint8_t> labels(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    const bool is_class = raw[i] >= 0 && raw[i] < float(classes) && raw[i] == std::floor(raw[i]);
    if (!is_class && raw[i] != float(unlabelled)) refuse(i, raw[i]);
    labels[i] = static_cast<uint8_t>(raw[i]);
  }
  return labels;
}

std::vector<float> read_image(const ClimateRef& ref, const ImageBox& box) {
  return read_image(Hdf5File(ref.path, Hdf5File::Mode::read), ref, box);
}

void expect_labels(const ClimateRef& ref, int set) {
  if (ref.format == ClimateFormat::sharded && set != 0)
    fail_data(ref.path + ": expected label set " + std::to_string(set) + ", found one set (0)");
  if (ref.label_sets.at(static_cast<size_t>(set))) return;
  if (ref.labelled()) {
    const std::vector<std::string> keys = label_keys(ref.format);
    fail_data(ref.path + ": expected data set " + keys.at(static_cast<size_t>(set)) + " (label set " +
              std::to_string(set) + "), found " + keys.at(static_cast<size_t>(1 - set)) + " alone");
  }
  // Without labels, two layouts of leading channels look the same.
  const std::string sets = "climate/labels_0 or climate/labels_1";
  fail_data(ref.path + ": expected data set " + (channels_lead(ref.format) ? "climate/labels, " : "") + sets +
            ", found none");
}

std::vector<uint8_t> read_labels(const ClimateRef& ref, int set, int64_t classes) {
  return read_labels(ref, set, classes, whole(ref));
}

std::vector<uint8_t> read_labels(const ClimateRef& ref, int set, int64_t classes, const ImageBox& box) {
  return read_labels(Hdf5File(ref.path, Hdf5File::Mode::read), ref, set, classes, box);
}

LabelledImage read_labelled(const ClimateRef& ref, int set, int64_t classes, const ImageBox& box) {
  const Hdf5File file(ref.path, Hdf5File::Mode::read);
  return {read_image(file, ref, box), read_labels(file, ref, set, classes, box)};
}

double ClimateStats::deviation(size_t channel) const {
  return std::sqrt(std::max(0.0, square_mean[channel] - mean[channel] * mean[channel]));
}

void ClimateStats::add(const ClimateStats& other) {
  if (pixels == 0) {
    *this = other;
    return;
  }
  const double share = double(other.pixels) / double(pixels + other.pixels);
  for (size_t c = 0; c < mean.size(); ++c) {
    mean[c] += share * (other.mean[c] - mean[c]);
    square_mean[c] += share * (other.square_mean[c] - square_mean[c]);
    minimum[c] = std::min(minimum[c], other.minimum[c]);
    maximum[c] = std::max(maximum[c], other.maximum[c]);
  }
  images += other.images, pixels += other.pixels;
}

ClimateStats image_stats(const std::vector<float>& values, int64_t channels) {
  ClimateStats s;
  const auto n = static_cast<size_t>(channels);
  s.images = 1, s.pixels = static_cast<int64_t>(values.size()) / channels;
  s.mean.resize(n), s.square_mean.resize(n);
  s.minimum.assign(n, std::numeric_limits<double>::infinity());
  s.maximum.assign(n, -std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t c = i % n;
    const double v = double(values[i]);
    s.mean[c] += v, s.square_mean[c] += v * v;
    s.minimum[c] = std::min(s.minimum[c], v), s.maximum[c] = std::max(s.maximum[c], v);
  }
  for (size_t c = 0; c < n; ++c) s.mean[c] /= double(s.pixels), s.square_mean[c] /= double(s.pixels);
  return s;
}

void widen_constant_channels(ClimateStats& s) {
  for (size_t c = 0; c < s.mean.size(); ++c)
    if (!(s.maximum[c] > s.minimum[c]))
      s.maximum[c] = std::max(s.minimum[c] + 1, double(std::nextafter(float(s.minimum[c]), INFINITY)));
}

ClimateStats read_stats(const std::string& path) {
  const Hdf5File file(path, Hdf5File::Mode::read);
  ClimateStats s;
  if (file.contains("climate/minval")) {
    // Training asks for the extremes alone, and so does MLPerf's reader: files may have no more.
    const int64_t channels = checked_extents(file, "climate/minval", 1, "a number per channel")[0];
    const auto row_or_nothing = [&](const std::string& key, int64_t count) {
      return file.contains(key) ? read_row(file, key, count) : std::vector<double>(static_cast<size_t>(count), NAN);
    };
    s.minimum = read_row(file, "climate/minval", channels);
    s.maximum = read_row(file, "climate/maxval", channels);
    s.mean = row_or_nothing("climate/mean", channels);
    s.square_mean = row_or_nothing("climate/sqmean", channels);
    if (file.contains("climate/count")) s.images = static_cast<int64_t>(read_row(file, "climate/count", 1)[0]);
  } else if (file.contains("climate/stats")) {
    const auto e = checked_extents(file, "climate/stats", 2, "C,4");
    if (e[1] != 4) fail_data(path + ": data set climate/stats is " + extents_text(e) + ", expected C,4");
    const auto table = read_row(file, "climate/stats", 4 * e[0]);
    for (size_t c = 0; c < static_cast<size_t>(e[0]); ++c) {
      s.mean.push_back(table[4 * c]), s.maximum.push_back(table[4 * c + 1]), s.minimum.push_back(table[4 * c + 2]);
      s.square_mean.push_back(table[4 * c] * table[4 * c] + table[4 * c + 3] * table[4 * c + 3]);
    }
  } else {
    fail_data(path +
              ": expected data sets climate/minval and maxval (beside mean, sqmean and count), or climate/stats; found "
              "neither");
  }
  for (size_t c = 0; c < s.mean.size(); ++c) {
    const std::string channel = path + ": channel " + std::to_string(c);
    if (!(s.maximum[c] > s.minimum[c]))
      fail_data(channel + ": expected a maximum above the minimum, found " + std::to_string(s.maximum[c]) + " and " +
                std::to_string(s.minimum[c]));
    if (!std::isfinite(s.low(c)) || !std::isfinite(s.factor(c))) {
      std::ostringstream found;
      found << s.minimum[c] << " to " << s.maximum[c];
      fail_data(channel + ": expected a range that f32 can normalise by, found " + found.str());
    }
  }
  return s;
}

std::string find_stats(const std::string& path, const std::vector<ClimateRef>& images) {
  const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::absolute(path).parent_path();
  std::vector<fs::path> places{folder, folder_above(folder)};
  if (const auto raw = std::find_if_not(images.begin(), images.end(), is_normalised); raw != images.end())
    places.push_back(fs::path(raw->path).parent_path());
  for (const fs::path& place : places)
    if (fs::exists(place / "stats.h5")) return place / "stats.h5";
  return folder / "stats.h5";
}

void write_stats(const std::string& path, const ClimateStats& s) {
  write_atomically(path, [&](const std::string& temporary) { write_stats_file(temporary, s); });
}

void write_climate_file(const std::string& path, const ImageShape& shape, const std::vector<float>& values,
                        const std::vector<uint8_t>& labels_0, const std::vector<uint8_t>& labels_1) {
  write_atomically(path, [&](const std::string& temporary) {
    Hdf5File file(temporary, Hdf5File::Mode::create);
    const int64_t extents[] = {shape.height, shape.width, shape.channels}, plane[] = {shape.height, shape.width};
    file.write("climate/data", DType::f32, extents, std::as_bytes(std::span(values)));
    const ClimateStats s = image_stats(values, shape.channels);
    std::vector<float> table(s.mean.begin(), s.mean.end());
    table.insert(table.end(), s.maximum.begin(), s.maximum.end());
    table.insert(table.end(), s.minimum.begin(), s.minimum.end());
    for (size_t c = 0; c < s.mean.size(); ++c) table.push_back(float(s.deviation(c)));
    const int64_t four[] = {4, shape.channels};
    file.write("climate/data_stats", DType::f32, four, std::as_bytes(std::span(table)));
    // The official files hold classes as floating point.
    const auto labels = [&](const std::string& name, const std::vector<uint8_t>& classes) {
      const std::vector<float> wide(classes.begin(), classes.end());
      file.write(name, DType::f32, plane, std::as_bytes(std::span(wide)));
    };
    if (!labels_0.empty()) labels("climate/labels_0", labels_0);
    if (!labels_0.empty()) labels("climate/labels_1", labels_1.empty() ? labels_0 : labels_1);
    file.close();
  });
}

}  // namespace convoy
