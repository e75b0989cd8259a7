#include "io/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "core/philox.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/layout.h"
#include "io/tfrecord.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;
constexpr const char* shard_format = "convoy-cosmoflow-1";
constexpr int64_t most_shard_rows = 1 << 20, most_labels = 16;  // of a damaged header's numbers memory is not asked for

std::vector<float> read_floats(const Hdf5File& file, const std::string& name, std::span<const int64_t> start = {},
                               std::span<const int64_t> count = {}) {
  const std::vector<int64_t> box =
      count.empty() ? file.extents(name) : std::vector<int64_t>(count.begin(), count.end());
  const auto elements = checked_elements(box, most_shard_rows * most_labels);
  if (!elements)
    fail_data(file.path() + ": data set " + name + " is " + extents_text(box) + ", expected a few parameters");
  std::vector<float> values(static_cast<size_t>(*elements));
  file.read(name, DType::f32, std::as_writable_bytes(std::span(values)), start, count);
  return values;
}

/// Extents from a damaged header must not become an allocation.
void check_extents(const Hdf5File& file, const std::string& name, std::span<const int64_t> extents) {
  for (int64_t e : extents)
    if (e < 1 || e > 1 << 14)
      fail_data(file.path() + ": data set " + name + " is " + extents_text(extents) + ", which no simulation has");
}

/// A sample is read at once, so each of its extents being sane is not enough.
void check_voxels(const Hdf5File& file, const std::string& name, std::span<const int64_t> extents) {
  if (!checked_elements(extents, int64_t{1} << 32))
    fail_data(file.path() + ": data set " + name + ": a sample of " + extents_text(extents) +
              ", which no simulation has");
}

std::vector<float> read_parameters(const Hdf5File& file, const std::string& name) {
  const std::vector<int64_t> extents = file.extents(name);
  if (extents.size() != 1)
    fail_data(file.path() + ": data set " + name + " is " + extents_text(extents) + ", expected one row of parameters");
  return read_floats(file, name);
}

/// Empty where the file has none.
std::vector<float> physical_in(const Hdf5File& file, const SampleRef& ref) {
  if (!file.contains("physPar")) return {};
  if (ref.format != FileFormat::sharded) return read_parameters(file, "physPar");
  const std::vector<int64_t> e = file.extents("physPar"), labels = file.extents("unitPar");
  if (e != labels)
    fail_data(ref.path + ": data set physPar is " + extents_text(e) + ", expected " + extents_text(labels) +
              " as unitPar is");
  const int64_t row[] = {ref.index, 0}, width[] = {1, e.back()};
  return read_floats(file, "physPar", row, width);
}

FileFormat identify_hdf5(const Hdf5File& file) {
  if (file.read_text("format") == shard_format) return FileFormat::sharded;
  if (file.contains("full")) return FileFormat::raw_hdf5;
  if (file.contains("x") && file.contains("y")) return FileFormat::split_hdf5;
  std::string found;
  for (const std::string& name : file.datasets()) found += (found.empty() ? "" : ", ") + name;
  fail_data(file.path() + ": expected data sets full+unitPar, x+y, or voxels+unitPar and the attribute format = " +
            std::string(shard_format) + "; found " + (found.empty() ? "none" : found));
}

struct RawLayout {
  int64_t size, channels;
  bool channels_first;
};

RawLayout raw_layout(const Hdf5File& file) {
  const std::vector<int64_t> e = file.extents("full");
  check_extents(file, "full", e);
  if (e.size() == 4 && e[0] == e[1] && e[1] == e[2] && e[3] != e[0]) return {e[0], e[3], false};
  if (e.size() == 4 && e[1] == e[2] && e[2] == e[3] && e[0] != e[1]) return {e[1], e[0], true};
  fail_data(file.path() + ": data set full is " + extents_text(e) + ", expected D,D,D,C or C,D,D,D");
}

/// Counts that a file holds in floating point, as LBANN's splitter writes them by default.
std::vector<std::byte> as_counts(std::span<const std::byte> values, const std::string& path) {
  std::vector<std::byte> counts(values.size() / sizeof(float) * sizeof(int16_t));
  const auto* from = reinterpret_cast<const float*>(values.data());
  auto* to = reinterpret_cast<int16_t*>(counts.data());
  for (size_t i = 0; i < values.size() / sizeof(float); ++i) {
    if (!(from[i] >= 0 && from[i] <= 32767 && from[i] == std::floor(from[i])))
      fail_data(path + ": data set full holds " + std::to_string(from[i]) + ", expected counts from 0 to 32767");
    to[i] = static_cast<int16_t>(from[i]);
  }
  return counts;
}

Sample read_raw(const SampleRef& ref, const ReadOptions& options) {
  const Hdf5File file(ref.path, Hdf5File::Mode::read);
  const RawLayout layout = raw_layout(file);
  const DType held = file.dtype("full");
  if (held != DType::i16 && !is_float(held))
    fail_data(ref.path + ": data set full holds " + std::string(name_of(held)) + ", expected i16 or floating point");
  const DType read = held == DType::i16 ? DType::i16 : DType::f32;
  const int64_t crop = std::min(options.crop, layout.size), per_axis = layout.size / crop;
  const int64_t z = ref.index / (per_axis * per_axis) * crop, y = ref.index / per_axis % per_axis * crop,
                x = ref.index % per_axis * crop;
  Sample sample;
  sample.target = read_parameters(file, "unitPar");
  sample.shape = {crop, layout.channels, static_cast<int64_t>(sample.target.size()), DType::i16};
  sample.physical = physical_in(file, ref);
  check_voxels(file, "full", std::vector<int64_t>{crop, crop, crop, layout.channels});
  const auto fetch = [&](std::span<const int64_t> start, std::span<const int64_t> count) {
    file.expect_written("full", start, count);
    sample.voxels.resize(static_cast<size_t>(sample.shape.elements() * size_of(read)));
    file.read("full", read, sample.voxels, start, count);
    if (read == DType::f32) sample.voxels = as_counts(sample.voxels, ref.path);
  };
  if (layout.channels_first) {
    const int64_t start[] = {0, z, y, x}, count[] = {layout.channels, crop, crop, crop};
    fetch(start, count);
    sample.voxels = to_channels_last<int16_t>(sample.voxels, layout.channels);
  } else {
    const int64_t start[] = {z, y, x, 0}, count[] = {crop, crop, crop, layout.channels};
    fetch(start, count);
  }
  return sample;
}

/// Integers of one or two bytes are counts (i16); floating point is taken as already normalised (f32).
DType voxel_type(const Hdf5File& file, const std::string& name) {
  const DType held = file.dtype(name);
  if (held == DType::i32)  // it might not fit
    fail_data(file.path() + ": data set " + name + " holds wide integers, expected i16 counts or floating point");
  return is_float(held) ? DType::f32 : DType::i16;
}

/// Physical parameters, where a file has them, are as many as the targets.
void check_physical(const Sample& sample, const std::string& path) {
  if (!sample.physical.empty() && sample.physical.size() != sample.target.size())
    fail_data(path + ": data set physPar has " + std::to_string(sample.physical.size()) + " parameters, expected " +
              std::to_string(sample.target.size()));
  for (size_t i = 0; i < sample.physical.size(); ++i)
    if (!std::isfinite(sample.physical[i]))
      fail_data(path + ": data set physPar: parameter " + std::to_string(i) + " is not finite");
}

Sample read_split(const SampleRef& ref) {
  const Hdf5File file(ref.path, Hdf5File::Mode::read);
  const std::vector<int64_t> e = file.extents("x");
  check_extents(file, "x", e);
  if (e.size() != 4 || e[0] != e[1] || e[1] != e[2])
    fail_data(ref.path + ": data set x is " + extents_text(e) + ", expected D,D,D,C");
  check_voxels(file, "x", e);
  Sample sample;
  sample.target = read_parameters(file, "y");
  sample.shape = {e[0], e[3], static_cast<int64_t>(sample.target.size()), voxel_type(file, "x")};
  file.expect_written("x");
  sample.voxels.resize(static_cast<size_t>(sample.shape.bytes()));
  file.read("x", sample.shape.dtype, sample.voxels);
  sample.physical = physical_in(file, ref);
  return sample;
}

Sample read_shard(const SampleRef& ref) {
  const Hdf5File file(ref.path, Hdf5File::Mode::read);
  const std::vector<int64_t> e = file.extents("voxels"), t = file.extents("unitPar");
  if (!e.empty()) check_extents(file, "voxels", std::span(e).subspan(1));
  if (e.size() != 5 || t.size() != 2 || t[0] != e[0] || e[1] != e[2] || e[2] != e[3])
    fail_data(ref.path + ": voxels are " + extents_text(e) + " and unitPar " + extents_text(t) +
              ", expected N,D,D,D,C and N,T");
  check_voxels(file, "voxels", std::span(e).subspan(1));
  Sample sample;
  sample.shape = {e[1], e[4], t[1], voxel_type(file, "voxels")};
  const int64_t start[] = {ref.index, 0, 0, 0, 0}, count[] = {1, e[1], e[2], e[3], e[4]};
  file.expect_written("voxels", start, count);
  sample.voxels.resize(static_cast<size_t>(sample.shape.bytes()));
  file.read("voxels", sample.shape.dtype, sample.voxels, start, count);
  const int64_t row[] = {ref.index, 0}, width[] = {1, t[1]};
  sample.target = read_floats(file, "unitPar", row, width);
  sample.physical = physical_in(file, ref);
  return sample;
}

/// Rows of a shard.
int64_t shard_rows(const Hdf5File& file) {
  const std::vector<int64_t> e = file.extents("voxels"), t = file.extents("unitPar");
  if (e.size() != 5) fail_data(file.path() + ": data set voxels is " + extents_text(e) + ", expected N,D,D,D,C");
  if (t.size() != 2 || t[0] != e[0] || t[0] > most_shard_rows)
    fail_data(file.path() + ": data set unitPar is " + extents_text(t) + ", expected a row for each of " +
              std::to_string(e[0]) + " samples");
  return e[0];
}

/// Samples that carry the same labels come from the same universe, whatever their files are called: a shard has a row
/// of them per sample, other files one row.
void name_universes(const Hdf5File& file, FileFormat format, std::vector<SampleRef>& refs) {
  const char* name = format == FileFormat::split_hdf5 ? "y" : "unitPar";
  const bool rows = format == FileFormat::sharded;
  const std::vector<float> labels = rows ? read_floats(file, name) : read_parameters(file, name);
  const size_t width = rows ? labels.size() / refs.size() : labels.size();
  for (size_t i = 0; i < refs.size(); ++i) {
    refs[i].universe = "labels";
    for (size_t k = 0; k < width; ++k)
      refs[i].universe.append(" ").append(std::to_string(labels[(rows ? i * width : 0) + k]));
  }
}

}  // namespace

std::string_view name_of(FileFormat format) {
  constexpr std::string_view names[] = {"tfrecord", "raw-hdf5", "split-hdf5", "sharded-hdf5"};
  return names[static_cast<int>(format)];
}

std::vector<SampleRef> samples_in(const std::string& path, const ReadOptions& options) {
  const std::string extension = fs::path(path).extension();
  if (extension == ".tfrecord" || extension == ".gz") return {{path, FileFormat::tfrecord, 0, {}}};
  const Hdf5File file(path, Hdf5File::Mode::read);
  const FileFormat format = identify_hdf5(file);
  int64_t count = 1;
  if (format == FileFormat::raw_hdf5) {
    const int64_t size = raw_layout(file).size, crop = std::min(options.crop, size);
    if (size % crop)
      fail_data(path + ": a volume of " + std::to_string(size) + " does not cut into crops of " + std::to_string(crop));
    count = (size / crop) * (size / crop) * (size / crop);
  } else if (format == FileFormat::sharded) {
    count = shard_rows(file);
  }
  std::vector<SampleRef> refs;
  for (int64_t i = 0; i < count; ++i) refs.push_back({path, format, i, {}});
  if (!refs.empty()) name_universes(file, format, refs);
  return refs;
}

std::vector<std::string> sample_files(const std::string& path, BrokenLinks broken) {
  if (fs::is_regular_file(path)) return {path};
  return files_below(path, sample_endings, broken);
}

std::vector<SampleRef> first_samples(
    std::span<const std::string> files, int64_t most,
    const std::function<std::vector<SampleRef>(std::span<const std::string> files)>& open) {
  constexpr int64_t first_look = 16;  // files that tell how many samples the others may hold
  std::vector<SampleRef> refs;
  size_t opened = 0, wanted = most > 0 ? static_cast<size_t>(std::min(most, first_look)) : files.size();
  while (opened < files.size() && wanted > 0) {
    wanted = std::min(wanted, files.size() - opened);
    std::vector<SampleRef> found = open(files.subspan(opened, wanted));
    refs.insert(refs.end(), std::move_iterator(found.begin()), std::move_iterator(found.end()));
    opened += wanted;
    // In files like those before; empty ones say nothing, and twice as many are opened.
    const auto left = static_cast<double>(std::max<int64_t>(0, most - std::ssize(refs)));
    const double more = refs.empty() ? 2.0 * double(opened) : std::ceil(left * double(opened) / double(refs.size()));
    wanted = static_cast<size_t>(std::min(more, double(files.size())));
  }
  return refs;
}

std::vector<SampleRef> samples_below(const std::string& path, const ReadOptions& options, int64_t most) {
  std::vector<SampleRef> refs = first_samples(sample_files(path), most, [&](std::span<const std::string> files) {
    std::vector<SampleRef> found;
    for (const std::string& file : files)
      for (SampleRef& ref : samples_in(file, options)) found.push_back(std::move(ref));
    return found;
  });
  if (refs.empty()) fail_data(path + ": expected .tfrecord, .hdf5 or .h5 files, found none");
  return refs;
}

std::vector<float> read_physical(const SampleRef& ref) {
  if (ref.format == FileFormat::tfrecord) return {};
  return physical_in(Hdf5File(ref.path, Hdf5File::Mode::read), ref);
}

Sample read_sample(const SampleRef& ref, const ReadOptions& options) {
  Sample sample;
  switch (ref.format) {
    case FileFormat::tfrecord:
      sample = decode_tfrecord(read_file(ref.path), ref.path, options.channels);
      break;
    case FileFormat::raw_hdf5:
      sample = read_raw(ref, options);
      break;
    case FileFormat::split_hdf5:
      sample = read_split(ref);
      break;
    case FileFormat::sharded:
      sample = read_shard(ref);
      break;
  }
  check_physical(sample, ref.path);
  for (size_t i = 0; i < sample.target.size(); ++i)
    if (!std::isfinite(sample.target[i])) fail_data(ref.path + ": target " + std::to_string(i) + " is not finite");
  if (sample.shape.dtype == DType::i16) {
    const auto* counts = reinterpret_cast<const int16_t*>(sample.voxels.data());
    const auto* end = counts + sample.shape.elements();
    int16_t signs = 0;  // no early exit: this form runs a vector at a time
    for (const auto* count = counts; count != end; ++count) signs |= *count;
    if (signs < 0) {
      const auto* negative = std::find_if(counts, end, [](int16_t c) { return c < 0; });
      fail_data(ref.path + ": expected particle counts, found " + std::to_string(*negative) + " at voxel " +
                std::to_string(negative - counts));
    }
  } else {
    constexpr uint32_t exponent = 0x7f800000;  // all ones in infinities and NaN
    const auto* values = reinterpret_cast<const uint32_t*>(sample.voxels.data());
    const auto* end = values + sample.shape.elements();
    bool odd = false;  // no early exit here either
    for (const auto* value = values; value != end; ++value) odd |= (*value & exponent) == exponent;
    if (odd) {
      const auto* bad = std::find_if(values, end, [](uint32_t v) { return (v & exponent) == exponent; });
      fail_data(ref.path + ": voxel " + std::to_string(bad - values) + " is not finite");
    }
  }
  return sample;
}

std::string stem_of(const SampleRef& ref) {
  const fs::path name = fs::path(ref.path).filename();
  return name.extension() == ".gz" ? name.stem().stem() : name.stem();
}

std::string universe_of(const SampleRef& ref) {
  if (!ref.universe.empty()) return ref.universe;
  // Files of single cubes are numbered behind their universe's name.
  const std::string stem = stem_of(ref);
  const size_t last = stem.rfind('_');
  const bool numbered = last != std::string::npos &&
                        stem.find_first_not_of("0123456789", last + 1) == std::string::npos && last + 1 < stem.size();
  return numbered ? stem.substr(0, last) : stem;
}

DataSplit split_samples(const std::string& folder, const ListSamples& list, double validation_share, uint64_t seed,
                        const SampleLimits& limits) {
  const SampleFolders folders = sample_folders(folder);
  if (!folders.validation.empty())
    return {list(folders.train, limits.train), list(folders.validation, limits.validation)};
  if (!(validation_share > 0 && validation_share < 1))
    fail_usage("the validation share (--valid-share): expected one above 0 and below 1, found " +
               std::to_string(validation_share));
  const std::vector<SampleRef> all = list(folders.train, 0);
  std::set<std::string> names;
  for (const SampleRef& ref : all) names.insert(universe_of(ref));
  const PhiloxStream random(seed, hash_name("universe split"));
  const std::set<std::string> validation = held_out(
      validation_share, names, [&](const std::string& name) { return random.below(hash_name(name), UINT64_MAX); });
  DataSplit split;
  for (const SampleRef& ref : all) (validation.count(universe_of(ref)) ? split.validation : split.train).push_back(ref);
  if (split.train.empty()) fail_data(folders.train + ": one universe cannot be split into training and validation");
  return split;
}

}  // namespace convoy
