// Images of a climate model with a class per pixel, in the layouts of the climate benchmarks, and their statistics.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/file.h"

namespace convoy {

class Hdf5File;

enum class ClimateFormat : uint8_t {
  deepcam,         ///< MLPerf HPC: climate/data f32 (H,W,C), climate/labels_0 and labels_1 (H,W); one time step a file
  gordon_bell,     ///< climate/data (C,H,W), climate/labels (2,H,W)
  channels_first,  ///< climate-seg-benchmark: climate/data (C,H,W), climate/labels_0 and labels_1 (H,W)
  sharded,         ///< ours: data f16 (N,H,W,C) normalised, labels u8 (N,H,W), attribute format = convoy-climate-1
};
std::string_view name_of(ClimateFormat format);
inline constexpr const char* climate_shard_format = "convoy-climate-1";

/// Names of the 16 channels, in order.
inline constexpr const char* climate_channels[] = {"TMQ",  "U850", "V850",  "UBOT", "VBOT",   "QREFHT", "PS",   "PSL",
                                                   "T200", "T500", "PRECT", "TS",   "TREFHT", "Z1000",  "Z200", "ZBOT"};
enum class ClimateClass : uint8_t { background, cyclone, river };

struct ImageShape {
  int64_t height = 0, width = 0, channels = 0;
  bool operator==(const ImageShape&) const = default;
  std::string str() const {
    return std::to_string(height) + "x" + std::to_string(width) + "x" + std::to_string(channels);
  }
};

/// One image inside one file.
struct ClimateRef {
  std::string path;
  ClimateFormat format = ClimateFormat::deepcam;
  int64_t index = 0;  ///< row of a shard
  ImageShape shape;
  std::array<bool, 2> label_sets{true, true};  ///< which the file holds
  bool labelled() const { return label_sets[0] || label_sets[1]; }
};
/// Shards hold normalised values, all other files physical ones.
inline bool is_normalised(const ClimateRef& ref) {
  return ref.format == ClimateFormat::sharded;
}

/// Images of one file. Throws Error(data) for files of no known layout and for labels of another size than the image,
/// naming what was expected and found.
std::vector<ClimateRef> images_in(const std::string& path);
std::vector<ClimateRef> images_in(const Hdf5File& file);
/// Climate files of a folder in name order, statistics files left out, or the one file that `path` is.
std::vector<std::string> climate_files(const std::string& path, BrokenLinks broken = BrokenLinks::refused);
/// Images of these files, in their order: one of each at least.
std::vector<ClimateRef> images_of(const std::vector<std::string>& files);
/// All images of climate_files; throws Error(data) when there are none.
std::vector<ClimateRef> images_below(const std::string& path);

/// "data-2106-03-04-02-1.h5" -> "2106-03-04": images of a day look alike and must not be split. Other names stand for
/// themselves.
std::string day_of(const std::string& path);
inline std::string day_of(const ClimateRef& ref) {
  return day_of(ref.path);
}

struct ClimateSplit {
  std::vector<ClimateRef> train, validation;
};
/// So many of the first images are wanted; 0: all. Files behind so many are not opened: each holds one image at least.
struct ClimateLimits {
  int64_t train = 0, validation = 0;
};
/// How images are found: climate_files and images_of, or the same some other way.
struct ImageListing {
  std::function<std::vector<std::string>(const std::string& path)> files;
  std::function<std::vector<ClimateRef>(const std::vector<std::string>& files)> open;
};
ImageListing own_listing();
/// `folder/train` and `folder/validation` when both exist; else the images of `folder/train` or, without that, of
/// `folder`, split by day: about `validation_share` of the days, drawn from `seed`, validate. Of shards more images
/// than `limits` says may come back. Throws what sample_folders throws, and Error(data) for shards, which name no days,
/// without both folders.
ClimateSplit split_images(const std::string& folder, double validation_share, uint64_t seed,
                          const ClimateLimits& limits = {}, const ImageListing& listing = own_listing());

/// A box of an image.
struct ImageBox {
  int64_t top = 0, left = 0, height = 0, width = 0;
};
inline ImageBox whole(const ClimateRef& ref) {
  return {0, 0, ref.shape.height, ref.shape.width};
}
/// Values (h, w, c) of a box as the file has them, in f32; throws Error(data) where one is not finite.
std::vector<float> read_image(const ClimateRef& ref, const ImageBox& box);
/// Throws Error(data) naming the data sets that were looked for, and what was found, where the image has no labels of
/// this set (0 or 1).
void expect_labels(const ClimateRef& ref, int set);
/// A pixel without a class: it counts in no loss and no score.
constexpr uint8_t unlabelled = 255;
/// Classes (h, w) of a box, or of the whole image; `set` is 0 or 1 where the file has two sets of labels (shards have
/// one). Throws Error(data) for what is neither a whole number below `classes` nor `unlabelled`.
std::vector<uint8_t> read_labels(const ClimateRef& ref, int set, int64_t classes, const ImageBox& box);
std::vector<uint8_t> read_labels(const ClimateRef& ref, int set, int64_t classes);
struct LabelledImage {
  std::vector<float> values;
  std::vector<uint8_t> classes;
};
/// What read_image and read_labels give, through one open file: opening one is slow on shared file systems.
LabelledImage read_labelled(const ClimateRef& ref, int set, int64_t classes, const ImageBox& box);
/// read_image and read_labels from the image's file, for whoever has opened it.
std::vector<float> read_image(const Hdf5File& file, const ClimateRef& ref, const ImageBox& box);
std::vector<uint8_t> read_labels(const Hdf5File& file, const ClimateRef& ref, int set, int64_t classes,
                                 const ImageBox& box);

/// Statistics per channel over a data set.
struct ClimateStats {
  int64_t images = 0;
  int64_t pixels = 0;  ///< which weigh what is added; 0 where the statistics come from a file
  std::vector<double> mean, square_mean, minimum, maximum;
  int64_t channels() const { return static_cast<int64_t>(mean.size()); }
  double deviation(size_t channel) const;
  /// By which images are normalised, in f32: (x - low) * factor.
  float low(size_t channel) const { return float(minimum[channel]); }
  float factor(size_t channel) const { return float(1 / (maximum[channel] - minimum[channel])); }
  void add(const ClimateStats& other);
};
/// Statistics of one image, accumulated in double.
ClimateStats image_stats(const std::vector<float>& values, int64_t channels);
/// Normalisation divides by the range: a constant channel gets one of 1, or the least that f32, which files hold, can
/// tell from none.
void widen_constant_channels(ClimateStats& stats);
/// Reads climate/{count,mean,sqmean,minval,maxval} (MLPerf; the first three may lack, and are 0 and NaN then) or
/// climate/stats (C,4) = mean, max, min, deviation. The count is one of images, as MLPerf's script writes it; old files
/// of ours hold pixels there. Nothing depends on it.
ClimateStats read_stats(const std::string& path);
/// The stats.h5 of a data set, which is a folder or a file: in its folder, in the one above, or beside the first of its
/// images that is not normalised. Where none is, the first of these paths.
std::string find_stats(const std::string& path, const std::vector<ClimateRef>& images);
/// Writes both forms into one file.
void write_stats(const std::string& path, const ClimateStats& stats);

/// Writes an image in the MLPerf layout, with its own statistics, climate/data_stats. `labels_1` may be empty: then
/// labels_0 stands for both.
void write_climate_file(const std::string& path, const ImageShape& shape, const std::vector<float>& values,
                        const std::vector<uint8_t>& labels_0, const std::vector<uint8_t>& labels_1);

}  // namespace convoy
