// Looks into data sets, checks them, and converts between the formats without changing a voxel.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "apps/common/attempts.h"
#include "apps/common/climate_data.h"
#include "apps/common/first_of.h"
#include "apps/common/options.h"
#include "apps/common/ranks.h"
#include "apps/common/say.h"
#include "apps/common/version.h"
#include "core/parallel.h"
#include "io/crc32c.h"
#include "io/dataset.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/tfrecord.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;

/// Throws Error(usage) for the first of these options that was given.
void refuse_given(const CLI::App& sub, const std::vector<std::string>& flags, const std::string& where) {
  for (const std::string& flag : flags)
    if (const CLI::Option* option = sub.get_option_no_throw(flag); option && option->count() > 0)
      fail_usage(fmt::format("{} has no effect on {}", flag, where));
}

/// Throws Error(usage) for options about formats that none of the samples has.
void refuse_other_formats(const CLI::App& sub, const std::vector<SampleRef>& refs) {
  const auto none = [&](FileFormat format) {
    return std::none_of(refs.begin(), refs.end(), [&](const SampleRef& ref) { return ref.format == format; });
  };
  if (none(FileFormat::tfrecord)) refuse_given(sub, {"--channels"}, "data without TFRecords: other files say them");
  if (none(FileFormat::raw_hdf5)) refuse_given(sub, {"--crop"}, "data without raw files: no others are cut");
}

/// Of a sample's voxels: particle counts, or values in f32. Sums of counts are exact.
struct Voxels {
  double sum = 0, largest = -INFINITY;
};
Voxels voxels_of(const Sample& s) {
  Voxels all;
  const auto add = [&](auto zero) {
    const auto* v = reinterpret_cast<const decltype(zero)*>(s.voxels.data());
    for (int64_t i = 0; i < s.shape.elements(); ++i)
      all.sum += double(v[i]), all.largest = std::max(all.largest, double(v[i]));
  };
  s.shape.dtype == DType::i16 ? add(int16_t{}) : add(0.0f);
  return all;
}

/// Without `totals` no files are opened but those of the samples that are shown.
int inspect(const std::string& path, const ReadOptions& read, int64_t limit, bool totals, const CLI::App& sub) {
  std::vector<SampleRef> refs;
  if (totals) {
    refs = samples_below(path, read);
    refuse_other_formats(sub, refs);
    std::set<std::string> names;
    for (const SampleRef& r : refs) names.insert(universe_of(r));
    say("{} samples, {} universes\n", refs.size(), names.size());
  } else {
    const std::vector<std::string> files = sample_files(path);
    refs = first_of(files, limit, [&](const std::string& file) { return samples_in(file, read); });
    if (refs.empty()) fail_data(path + ": expected .tfrecord, .hdf5 or .h5 files, found none");
    if (refs.back().path == files.back()) refuse_other_formats(sub, refs);  // files behind may be of any format
    say("first {} samples, of {} files\n", refs.size(), files.size());
  }
  for (size_t i = 0; i < refs.size() && static_cast<int64_t>(i) < limit; ++i) {
    const Sample s = read_sample(refs[i], read);
    const Voxels v = voxels_of(s);
    std::string labels;
    for (float t : s.target) labels += fmt::format(" {:.6g}", t);
    say("{}[{}] {} {}  {} sum {:.15g}  largest {:.9g}  mean {:.6f}  labels{}  crc32c {:08x}\n", refs[i].path,
        refs[i].index, name_of(refs[i].format), s.shape.str(), s.shape.dtype == DType::i16 ? "count" : "value", v.sum,
        v.largest, v.sum / double(s.shape.elements()), labels, crc32c(s.voxels));
  }
  return 0;
}

/// Reads everything; reports every bad sample and ends with the data exit code when there was one.
int verify(const std::string& path, const ReadOptions& read, int threads, const CLI::App& sub) {
  std::vector<SampleRef> refs;
  double sum = 0;
  // A file that does not open is one bad sample; the others are read all the same.
  Attempts attempts;
  const std::vector<std::string> files = sample_files(path, BrokenLinks::listed);
  attempts.all(
      files.size(), threads, [&](size_t i) { return files[i]; }, [&](size_t i) { return samples_in(files[i], read); },
      [&](size_t, std::vector<SampleRef> found) { std::move(found.begin(), found.end(), std::back_inserter(refs)); });
  if (refs.empty())
    fail_data(fmt::format("{}: expected samples, found none that can be read ({} bad)", path, attempts.bad()));
  if (attempts.bad() == 0) refuse_other_formats(sub, refs);  // what does not open may be of any format
  float low = INFINITY, high = -INFINITY;
  std::optional<SampleShape> shape;
  struct Found {
    SampleShape shape;
    double sum;
    std::vector<float> labels;
  };
  attempts.all(
      refs.size(), threads, [&](size_t i) { return refs[i].path; },
      [&](size_t i) {
        Sample s = read_sample(refs[i], read);
        return Found{s.shape, voxels_of(s).sum, std::move(s.target)};
      },
      [&](size_t i, const Found& s) {
        if (!shape) shape = s.shape;
        if (!(s.shape == *shape))
          fail_data(refs[i].path + ": expected " + shape->str() + " like the files before, found " + s.shape.str());
        sum += s.sum;
        for (float t : s.labels) low = std::min(low, t), high = std::max(high, t);
      });
  say("{} samples, {} bad", refs.size(), attempts.bad());
  if (shape)
    say("; {}; {} sum {:.15g}, labels from {:.6g} to {:.6g}", shape->str(),
        shape->dtype == DType::i16 ? "count" : "value", sum, low, high);
  say("\n");
  return attempts.bad() ? static_cast<int>(ErrorKind::data) : 0;
}

/// Names for files of one sample each, in the order of `refs`. Samples of a universe are numbered behind its name,
/// which is all that TFRecords have to tell universes by; samples of a TFRecord keep the name that they have.
std::vector<std::string> sample_names(const std::vector<SampleRef>& refs) {
  const auto unnumbered = [](const SampleRef& ref) { return universe_of({ref.path, ref.format, ref.index}); };
  std::map<std::string, std::set<std::string>> sharing;  // universes by what their files' names have ahead of a number
  for (const SampleRef& ref : refs) sharing[unnumbered(ref)].insert(ref.universe);
  struct Universe {
    std::string name;
    int64_t samples = 0;
  };
  std::map<std::string, Universe> universes;
  std::vector<std::string> names;
  for (const SampleRef& ref : refs) {
    const std::string stem = stem_of(ref), ahead = unnumbered(ref);
    if (ref.universe.empty()) {
      names.push_back(ahead == stem ? stem + "_000" : stem);
      continue;
    }
    Universe& universe = universes[ref.universe];
    if (universe.name.empty()) {
      if (ref.format == FileFormat::sharded)  // whose files are called after no universe
        universe.name = fmt::format("universe-{:05d}", universes.size() - 1);
      else
        universe.name = sharing[ahead].size() == 1 ? ahead : stem;
    }
    names.push_back(fmt::format("{}_{:03d}", universe.name, universe.samples++));
  }
  return names;
}

class Writer {
 public:
  Writer(std::string format, bool gzip, int64_t shard) : format_(std::move(format)), gzip_(gzip), shard_(shard) {}

  /// Where a sample of this name goes, in formats of a file each.
  std::string file_of(const std::string& name, const std::string& folder) const {
    return (fs::path(folder) / name).string() + (format_ == "tfrecord" ? ".tfrecord" : ".hdf5");
  }
  bool shards() const { return format_ == "sharded-hdf5"; }

  /// What may be made of a sample on any thread.
  struct Prepared {
    Sample sample;
    std::vector<std::byte> record;  ///< the whole file, of TFRecords
  };
  Prepared prepare(const SampleRef& ref, Sample sample) const {
    Prepared p{std::move(sample), {}};
    if ((format_ == "tfrecord" || format_ == "raw-hdf5") && p.sample.shape.dtype != DType::i16)
      fail_data(ref.path + ": " + format_ + " holds i16 counts, found " + p.sample.shape.str());
    if (format_ != "tfrecord") return p;
    p.record = encode_tfrecord(p.sample.voxels, p.sample.target);
    if (gzip_) p.record = gzip_compress(p.record, 6);
    return p;
  }

  void add(const SampleRef& ref, Prepared prepared, const std::string& name, const std::string& folder) {
    Sample& sample = prepared.sample;
    if (folder != folder_) flush(), folder_ = folder;
    if (!shards() && !written_files_.insert(file_of(name, folder)).second)
      fail_data(file_of(name, folder) + ": written already, from another file than " + ref.path);
    if (format_ == "tfrecord") {
      write_file(file_of(name, folder), prepared.record);
    } else if (format_ == "split-hdf5" || format_ == "raw-hdf5") {
      write_single(file_of(name, folder), sample, format_ == "split-hdf5" ? "x" : "full",
                   format_ == "split-hdf5" ? "y" : "unitPar");
    } else {
      // A reader takes all shards of a folder together.
      const SampleShape& first = shape_of_.emplace(folder, sample.shape).first->second;
      if (!(sample.shape == first))
        fail_data(ref.path + ": expected " + first.str() + " like the samples before, found " + sample.shape.str());
      // A shard has physical parameters of all its samples or of none.
      if (!pending_.empty() && pending_.front().physical.empty() != sample.physical.empty()) flush();
      pending_.push_back(std::move(sample));
      if (static_cast<int64_t>(pending_.size()) == shard_) flush();
    }
    ++written_;
  }

  void flush() {
    if (pending_.empty()) return;
    const SampleShape& s = pending_[0].shape;
    const std::string path = next_shard(folder_, next_[folder_]);
    write_atomically(path, [&](const std::string& temporary) {
      Hdf5File file(temporary, Hdf5File::Mode::create);
      const auto n = static_cast<int64_t>(pending_.size());
      const int64_t extents[] = {n, s.size, s.size, s.size, s.channels},
                    one[] = {1, s.size, s.size, s.size, s.channels}, labels[] = {n, s.targets};
      const auto cube = cube_chunk(s.size, s.channels);
      const int64_t chunk[] = {1, cube[0], cube[1], cube[2], cube[3]};
      file.create("voxels", s.dtype, extents, chunk, gzip_ ? 4 : 0);
      std::vector<float> unit, physical;
      for (int64_t i = 0; i < n; ++i) {
        const Sample& sample = pending_[static_cast<size_t>(i)];
        const int64_t start[] = {i, 0, 0, 0, 0};
        file.write_box("voxels", s.dtype, start, one, sample.voxels);
        unit.insert(unit.end(), sample.target.begin(), sample.target.end());
        physical.insert(physical.end(), sample.physical.begin(), sample.physical.end());
      }
      file.write("unitPar", DType::f32, labels, std::as_bytes(std::span(unit)));
      if (!physical.empty()) file.write("physPar", DType::f32, labels, std::as_bytes(std::span(physical)));
      file.write_text("format", "convoy-cosmoflow-1");
      file.close();
    });
    pending_.clear();
  }
  int64_t written() const { return written_; }

 private:
  void write_single(const std::string& path, const Sample& sample, const char* voxels, const char* labels) const {
    write_atomically(path, [&](const std::string& temporary) {
      Hdf5File file(temporary, Hdf5File::Mode::create);
      const SampleShape& s = sample.shape;
      const auto chunk = cube_chunk(s.size, s.channels);
      const int64_t extents[] = {s.size, s.size, s.size, s.channels}, count[] = {s.targets};
      file.write(voxels, s.dtype, extents, sample.voxels,
                 gzip_ ? std::span<const int64_t>(chunk) : std::span<const int64_t>(), gzip_ ? 4 : 0);
      file.write(labels, DType::f32, count, std::as_bytes(std::span(sample.target)));
      if (!sample.physical.empty()) file.write("physPar", DType::f32, count, std::as_bytes(std::span(sample.physical)));
      file.close();
    });
  }

  std::set<std::string> written_files_;
  std::string format_, folder_;  ///< folder_: where the pending shard goes
  bool gzip_;
  int64_t shard_, written_ = 0;
  std::map<std::string, int64_t> next_;          ///< number of the next shard per folder, which may come back
  std::map<std::string, SampleShape> shape_of_;  ///< of the first sample per folder
  std::vector<Sample> pending_;
};

int data_main(int argc, char** argv) {
  CLI::App app(
      "Inspects, verifies and converts CosmoFlow and climate data. Exit codes: 0 good, 1 run-time error, 2 usage, 3 "
      "bad data.");
  app.set_version_flag("--version", long_version_text());
  app.require_subcommand(1);
  ReadOptions read;
  std::string path, out, format = "tfrecord", stats;
  int64_t limit = 10, shard = 64;
  bool gzip = true;
  const auto common = [&](CLI::App* sub) {
    sub->add_option("path", path, "file or folder")->required();
    sub->add_option("--channels", read.channels, "channels per voxel of TFRecords, which do not say")
        ->capture_default_str();
    sub->add_option("--crop", read.crop, "extent of the cubes cut out of raw files")->capture_default_str();
    return sub;
  };
  common(app.add_subcommand("inspect", "shapes, count sums, labels, CRCs"))
      ->add_option("--limit", limit,
                   "samples shown; where it is given and not 0, no file behind them is opened or counted")
      ->capture_default_str();
  int threads = default_threads();
  const auto parallel = [&](CLI::App* sub) {
    sub->add_option("--threads", threads, "0 = OMP_NUM_THREADS or all cores")->capture_default_str();
    return sub;
  };
  parallel(common(app.add_subcommand("verify", "reads every sample and checks CRCs, shapes and values")));
  CLI::App* convert =
      parallel(common(app.add_subcommand("convert", "writes the samples in another format, voxels bit-identical")));
  convert->add_option("--out", out, "folder to write into")->required();
  convert
      ->add_option("--format", format,
                   "tfrecord, raw-hdf5, split-hdf5 or sharded-hdf5; climate images become half-precision shards")
      ->check(CLI::IsMember({"tfrecord", "raw-hdf5", "split-hdf5", "sharded-hdf5"}))
      ->capture_default_str();
  convert->add_flag("--gzip,!--no-gzip", gzip, "compress");
  convert->add_option("--shard", shard, "samples per shard")->capture_default_str();
  convert->add_option("--stats", stats, "climate: statistics file (default: stats.h5 in the folder or above it)");
  CLI::App* statistics = app.add_subcommand("stats", "climate: statistics of all images, for --stats of climseg_train");
  statistics->add_option("path", path, "file or folder")->required();
  statistics->add_option("--out", out, "file to write")->required();
  parallel(statistics);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    fail_usage(error.what());
  }
  if (app.got_subcommand("convert") || app.got_subcommand("stats")) expect_single_task();
  for (const auto& [flag, found] :
       {std::pair{"--shard", shard}, std::pair{"--crop", read.crop}, std::pair{"--channels", read.channels}})
    if (found < 1) fail_usage(fmt::format("{}: expected 1 or more, found {}", flag, found));
  for (const char* flag : {"convert", "stats"})
    if (app.got_subcommand(flag) && out.empty()) fail_usage("--out: expected a name, found none");
  if (limit < 0) fail_usage(fmt::format("--limit: expected 0 or more, found {}", limit));
  if (threads == 0) threads = default_threads();
  const CLI::App& chosen = *app.get_subcommands().front();
  if (const CLI::Option* given = chosen.get_option_no_throw("--threads");
      given && (threads < 1 || threads > most_threads))
    fail_usage(fmt::format("{}: expected 1 to {}, found {}", given->count() ? "--threads" : "OMP_NUM_THREADS",
                           most_threads, threads));
  if (!fs::exists(path)) fail_data(path + ": no such file or folder");
  if (app.got_subcommand("stats")) return write_climate_stats(path, out, threads);
  const bool totals = limit == 0 || app.get_subcommand("inspect")->count("--limit") == 0;
  if (holds_climate(path)) {
    const std::string where = "climate images";
    refuse_given(chosen, {"--crop", "--channels", gzip ? "--gzip" : "--no-gzip"}, where);
    if (format != "sharded-hdf5") refuse_given(chosen, {"--format"}, where + ", which become shards");
    if (app.got_subcommand("inspect")) return inspect_climate(path, limit, totals);
    if (app.got_subcommand("verify")) return verify_climate(path, threads);
    return shard_climate(path, out, stats, shard, threads);
  }
  if (app.got_subcommand("inspect")) return inspect(path, read, limit, totals, chosen);
  if (app.got_subcommand("verify")) return verify(path, read, threads, chosen);
  const std::vector<SampleRef> refs = samples_below(path, read);
  refuse_other_formats(chosen, refs);
  refuse_given(chosen, {"--stats"}, "CosmoFlow samples");
  if (format != "sharded-hdf5") refuse_given(chosen, {"--shard"}, "--format " + format + ", a file for each sample");
  std::vector<std::string> paths;
  for (const SampleRef& ref : refs) paths.push_back(ref.path);
  NewDataSet data_set(target_folders(path, paths, out));
  Writer writer(format, gzip, shard);
  const std::vector<std::string> names = sample_names(refs);
  read_in_order(
      refs.size(), threads, threads, [&](size_t i) { return writer.prepare(refs[i], read_sample(refs[i], read)); },
      [&](size_t i, Writer::Prepared sample) {
        writer.add(refs[i], std::move(sample), names[i], target_folder(path, refs[i].path, out));
      });
  writer.flush();
  data_set.complete();
  say("wrote {} samples as {} to {}\n", writer.written(), format, out);
  return 0;
}

}  // namespace
}  // namespace convoy::apps

int main(int argc, char** argv) {
  return convoy::apps::run_program("convoy_data", convoy::apps::data_main, argc, argv);
}
