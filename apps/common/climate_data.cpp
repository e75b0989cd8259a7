#include "apps/common/climate_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>

#include "apps/common/attempts.h"
#include "apps/common/first_of.h"
#include "apps/common/say.h"
#include "core/parallel.h"
#include "io/checkpoint.h"
#include "io/climate_source.h"
#include "io/dataset.h"
#include "io/file.h"
#include "io/hdf5.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;

std::array<int64_t, 3> class_counts(const std::vector<uint8_t>& labels) {
  std::array<int64_t, 3> counts{};
  for (uint8_t label : labels)
    if (label != unlabelled) ++counts[label];
  return counts;
}

/// Class counts of the first set of labels that the image has.
std::array<int64_t, 3> class_counts(const Hdf5File& file, const ClimateRef& ref) {
  return class_counts(read_labels(file, ref, ref.label_sets[0] ? 0 : 1, 3, whole(ref)));
}

/// Images of one folder, written in files of `size`.
class ShardWriter {
 public:
  ShardWriter(std::string folder, int64_t size) : folder_(std::move(folder)), size_(size) {}
  void add(const ClimateRef& ref, const std::vector<float>& values, const std::vector<uint8_t>& labels) {
    if (!count_) shape_ = ref.shape;
    if (!(shape_ == ref.shape))
      fail_data(ref.path + ": images of one shard must agree: " + shape_.str() + " and " + ref.shape.str());
    for (size_t i = 0; i < values.size(); ++i) {
      values_.push_back(f16(values[i]));
      if (!std::isfinite(float(values_.back())))
        fail_data(fmt::format("{}: channel {}: expected normalised values that half precision holds, found {}",
                              ref.path, static_cast<int64_t>(i) % shape_.channels, values[i]));
    }
    labels_.insert(labels_.end(), labels.begin(), labels.end());
    if (++count_ == size_) flush();
  }
  void flush() {
    if (!count_) return;
    write_atomically(next_shard(folder_, files_), [&](const std::string& temporary) {
      Hdf5File file(temporary, Hdf5File::Mode::create);
      const int64_t data[] = {count_, shape_.height, shape_.width, shape_.channels},
                    plane[] = {count_, shape_.height, shape_.width};
      file.write("data", DType::f16, data, std::as_bytes(std::span(values_)));
      file.write("labels", DType::u8, plane, std::as_bytes(std::span(labels_)));
      file.write_text("format", climate_shard_format);
      file.close();
    });
    count_ = 0;
    values_.clear(), labels_.clear();
  }

 private:
  std::string folder_;
  int64_t size_, count_ = 0, files_ = 0;
  ImageShape shape_;
  std::vector<f16> values_;
  std::vector<uint8_t> labels_;
};

/// By its name, as readers find samples.
bool is_sample(const fs::path& file) {
  return file.filename() != "stats.h5" &&
         std::find(sample_endings.begin(), sample_endings.end(), file.extension()) != sample_endings.end();
}

}  // namespace

std::string target_folder(const std::string& path, const std::string& file, const std::string& out) {
  const std::string own = folder_inside(path, file);
  return own == "." ? out : (fs::path(out) / own).lexically_normal().string();
}

std::set<std::string> target_folders(const std::string& path, const std::vector<std::string>& files,
                                     const std::string& out) {
  refuse_inside(path, out);
  std::set<std::string> folders;
  for (const std::string& file : files) folders.insert(target_folder(path, file, out));
  // Of a set in parts, others that lie there would join it; samples beside them are not read by trainers any longer.
  const bool beside = folders.contains(out);
  for (const char* part : {"train", "validation", "test"}) {
    const std::string folder = (fs::path(out) / part).string();
    if (beside && folders.contains(folder))
      fail_usage(
          fmt::format("{}: expected samples in {} or beside it, found both: convert them one by one", path, part));
    if (!beside && !folders.contains(folder)) refuse_used_folder(folder);
  }
  if (beside) return folders;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(out, missing))
    if (entry.is_regular_file() && is_sample(entry.path()))
      fail_usage(fmt::format("{}: expected no samples beside {}, found {}: remove them, or name another folder", out,
                             *folders.begin(), entry.path().filename().string()));
  return folders;
}

std::string next_shard(const std::string& folder, int64_t& number) {
  return fmt::format("{}/shard-{:05d}.h5", folder, number++);
}

bool holds_climate(const std::string& path) {
  std::vector<std::string> files;
  if (fs::is_directory(path)) {
    files = climate_files(path, BrokenLinks::listed);
  } else if (path.ends_with(".h5") || path.ends_with(".hdf5")) {
    files.push_back(path);
  }
  if (!has_hdf5()) return false;
  for (const std::string& name : files) try {
      const Hdf5File file(name, Hdf5File::Mode::read);
      return file.contains("climate") || file.read_text("format") == climate_shard_format;
    } catch (const Error&) {  // says nothing; whoever reads it says why
    }
  return false;
}

int inspect_climate(const std::string& path, int64_t limit, bool totals) {
  std::vector<ClimateRef> refs;
  if (totals) {
    refs = images_below(path);
    say("{} images\n", refs.size());
  } else {
    const std::vector<std::string> files = climate_files(path);
    refs = first_of(files, limit, [](const std::string& file) { return images_in(file); });
    say("first {} images, of {} files\n", refs.size(), files.size());
  }
  for (size_t i = 0; i < refs.size() && static_cast<int64_t>(i) < limit; ++i) {
    const ClimateRef& ref = refs[i];
    const Hdf5File file(ref.path, Hdf5File::Mode::read);
    const ClimateStats s = image_stats(read_image(file, ref, whole(ref)), ref.shape.channels);
    std::string classes = "no labels";
    if (ref.labelled()) {
      const auto counts = class_counts(file, ref);
      const double pixels = double(ref.shape.height * ref.shape.width);
      classes = fmt::format("background {:.3f} %, cyclones {:.4f} %, rivers {:.3f} %", 100 * double(counts[0]) / pixels,
                            100 * double(counts[1]) / pixels, 100 * double(counts[2]) / pixels);
    }
    say("{}[{}] {} {}  {}  channel 0 from {:.5g} to {:.5g}, mean {:.5g}\n", ref.path, ref.index, name_of(ref.format),
        ref.shape.str(), classes, s.minimum[0], s.maximum[0], s.mean[0]);
  }
  return 0;
}

int verify_climate(const std::string& path, int threads) {
  std::vector<ClimateRef> refs;
  // A file that does not open is one bad image; the others are read all the same.
  Attempts attempts;
  const std::vector<std::string> files = climate_files(path, BrokenLinks::listed);
  attempts.all(
      files.size(), threads, [&](size_t i) { return files[i]; }, [&](size_t i) { return images_in(files[i]); },
      [&](size_t, std::vector<ClimateRef> found) { std::move(found.begin(), found.end(), std::back_inserter(refs)); });
  if (refs.empty())
    fail_data(fmt::format("{}: expected climate images, found none that can be read ({} bad)", path, attempts.bad()));
  std::array<int64_t, 3> sum{};
  int64_t unlabelled = 0;
  attempts.all(
      refs.size(), threads, [&](size_t i) { return refs[i].path; },
      [&](size_t i) {
        const ClimateRef& ref = refs[i];
        if (!(ref.shape == refs[0].shape))
          fail_data(ref.path + ": expected " + refs[0].shape.str() + " like the files before, found " +
                    ref.shape.str());
        const Hdf5File file(ref.path, Hdf5File::Mode::read);
        read_image(file, ref, whole(ref));
        if (!ref.labelled()) return std::array<int64_t, 3>{};
        const auto counts = class_counts(file, ref);
        if (ref.label_sets[0] && ref.label_sets[1]) read_labels(file, ref, 1, 3, whole(ref));
        return counts;
      },
      [&](size_t i, const std::array<int64_t, 3>& counts) {
        unlabelled += !refs[i].labelled();
        for (size_t k = 0; k < 3; ++k) sum[k] += counts[k];
      });
  say("{} images read, {} bad; {}; pixels: background {}, cyclones {}, rivers {}; {} images without labels\n",
      refs.size(), attempts.bad(), refs[0].shape.str(), sum[0], sum[1], sum[2], unlabelled);
  return attempts.bad() ? static_cast<int>(ErrorKind::data) : 0;
}

int write_climate_stats(const std::string& path, const std::string& out, int threads) {
  const std::vector<std::string> files = climate_files(path);
  if (files.empty()) fail_data(path + ": expected .h5 or .hdf5 files, found none");
  InputFiles(files).refuse(out);
  const fs::path name = fs::path(out).filename();
  if (named_like_checkpoint(name.string())) fail_usage("--out: " + out + ": expected another name than a checkpoint's");
  // Readers take any other .h5 file of a data set for images.
  if (name != "stats.h5" && (name.extension() == ".h5" || name.extension() == ".hdf5")) refuse_inside(path, out);
  if (const fs::path folder = fs::absolute(out).parent_path(); !fs::is_directory(folder) || fs::is_directory(out))
    fail_usage("--out: " + out + ": expected a file in a folder that exists, found " +
               (fs::is_directory(out) ? "a folder" : "no folder " + folder.string()));
  const int64_t channels = images_in(files[0]).at(0).shape.channels;
  std::vector<ClimateStats> each(files.size());
  parallel_units(std::ssize(files), threads, [&](int64_t i) {
    const Hdf5File file(files[static_cast<size_t>(i)], Hdf5File::Mode::read);
    const ClimateRef ref = images_in(file).at(0);  // shards alone hold more
    if (is_normalised(ref)) fail_data(ref.path + ": is normalised already");
    if (ref.shape.channels != channels)
      fail_data(fmt::format("{}: expected {} channels like the files before, found {}", ref.path, channels,
                            ref.shape.channels));
    each[static_cast<size_t>(i)] = image_stats(read_image(file, ref, whole(ref)), ref.shape.channels);
  });
  ClimateStats all;
  for (const ClimateStats& s : each) all.add(s);
  widen_constant_channels(all);
  write_stats(out, all);
  for (int64_t c = 0; c < all.channels(); ++c) {
    const auto k = static_cast<size_t>(c);
    say("{:>2} {:<7} from {:>12.5g} to {:>12.5g}, mean {:>12.5g}\n", c, c < 16 ? climate_channels[c] : "",
        all.minimum[k], all.maximum[k], all.mean[k]);
  }
  say("wrote statistics of {} images to {}\n", files.size(), out);
  return 0;
}

int shard_climate(const std::string& path, const std::string& out, const std::string& wanted_stats, int64_t images,
                  int threads) {
  std::vector<ClimateRef> refs = images_below(path);
  // Of a folder one after another, which need not be so by name: the shard that is not full yet is all that memory
  // holds.
  std::stable_sort(refs.begin(), refs.end(), [](const ClimateRef& a, const ClimateRef& b) {
    return fs::path(a.path).parent_path() < fs::path(b.path).parent_path();
  });
  for (const ClimateRef& ref : refs) expect_labels(ref, 0);
  std::optional<ShardWriter> writer;
  std::string current;
  ClimateStats stats;
  const std::string stats_path = wanted_stats.empty() ? find_stats(path, refs) : wanted_stats;
  if (!std::all_of(refs.begin(), refs.end(), is_normalised))
    stats = read_stats(stats_path);
  else if (!wanted_stats.empty())
    fail_usage("--stats has no effect on shards, which are normalised already");
  std::vector<std::string> files;
  for (const ClimateRef& ref : refs) files.push_back(ref.path);
  NewDataSet data_set(target_folders(path, files, out));
  if (stats.channels() > 0) say("normalises by {}\n", stats_path);
  read_in_order(
      refs.size(), threads, threads,
      [&](size_t i) {
        const ClimateRef& ref = refs[i];
        if (!is_normalised(ref) && stats.channels() != ref.shape.channels)
          fail_data(fmt::format("{}: expected {} channels as {} has, found {}", ref.path, stats.channels(), stats_path,
                                ref.shape.channels));
        LabelledImage image = read_labelled(ref, 0, 3, whole(ref));
        if (!is_normalised(ref)) normalise(image.values, stats);
        return image;
      },
      [&](size_t i, const LabelledImage& image) {
        const std::string folder = target_folder(path, refs[i].path, out);
        if (!writer || folder != current) {
          if (writer) writer->flush();
          writer.emplace(folder, images);
          current = folder;
        }
        writer->add(refs[i], image.values, image.classes);
      });
  writer->flush();
  data_set.complete();
  say("wrote {} images in half precision to {}\n", refs.size(), out);
  return 0;
}

}  // namespace convoy::apps
