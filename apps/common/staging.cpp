#include "apps/common/staging.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <set>

#include "apps/common/fingerprint.h"
#include "apps/common/listing.h"
#include "apps/common/stage_lock.h"
#include "io/crc32c.h"
#include "io/dataset.h"
#include "io/file.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* manifest_name = ".convoy-stage.json";
constexpr const char* node_name = ".convoy-stage.node";

struct Entry {
  std::string path;                ///< below the data folder
  int64_t bytes = 0, changed = 0;  ///< size, time of the last change in nanoseconds
};

/// What training reads of a data set: no samples for a test, and nothing that runs write beside its folders.
std::vector<std::string> training_files(const std::string& folder) {
  const SampleFolders folders = sample_folders(folder);
  std::vector<std::string> paths = files_below(folders.train, sample_endings);
  if (!folders.validation.empty()) {
    const std::vector<std::string> more = files_below(folders.validation, sample_endings);
    paths.insert(paths.end(), more.begin(), more.end());
  }
  const fs::path statistics = fs::path(folder) / "stats.h5";
  if (folders.train != folder && fs::is_regular_file(statistics)) paths.push_back(statistics);
  return paths;
}

/// Names below the folder of the files that are wanted or, where none are named, of all that training reads of it.
std::vector<std::string> staged_names(const std::string& folder, const std::vector<WantedFile>& wanted) {
  std::vector<std::string> names;
  for (const WantedFile& file : wanted) names.push_back(file.name);
  if (wanted.empty())
    for (const std::string& path : training_files(folder)) names.push_back(name_below(folder, path));
  if (names.empty()) fail_data(folder + ": nothing to stage: expected .tfrecord, .hdf5 or .h5 files, found none");
  return names;
}

/// Size and time of change.
Json describe_size_and_time(const std::string& path) {
  struct stat s {};
  if (stat(path.c_str(), &s) != 0) fail_data(path + ": cannot read its size");
  return {s.st_size, s.st_mtim.tv_sec * 1000000000LL + s.st_mtim.tv_nsec};
}

class Staging {
 public:
  Staging(std::string from, std::string to, Ranks& ranks, const std::vector<WantedFile>& files)
      : from_(std::move(from)), to_(std::move(to)), ranks_(ranks), nodes_(ranks_of_nodes(ranks)), requested_(files) {
    node_ = static_cast<size_t>(ranks.node());
  }

  StagingReport run() {
    const auto start = Clock::now();
    find_files();
    share_out();
    lock_folder();
    if (shares()) expect_own_folder();
    read_manifest();
    clear_leftovers();
    find_missing();
    if (leads() && missing_here()) lock_->write();
    check_space();
    plan_manifest();
    crc_.assign(files_.size(), 0);
    read_ahead(0);
    for (size_t i = 0; i < files_.size(); ++i) copy(i);
    write_manifest();
    if (leads()) lock_->read();
    std::vector<double> totals{double(read_), double(written_)};
    ranks_.world().all_reduce_sum(std::span(totals));
    StagingReport report;
    report.files = static_cast<int64_t>(files_.size());
    for (size_t i = 0; i < files_.size(); ++i) report.reused += !missing_anywhere(i);
    std::vector<int64_t> of_node(nodes_.size());
    for (size_t i = 0; i < files_.size(); ++i)
      for (size_t n = 0; n < nodes_.size(); ++n) of_node[n] += wanted(i, n);
    const auto [fewest, most] = std::minmax_element(of_node.begin(), of_node.end());
    report.fewest = *fewest, report.most = *most;
    report.bytes_read = static_cast<int64_t>(totals[0]), report.bytes_written = static_cast<int64_t>(totals[1]);
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
  }

 private:
  void find_files() {
    Json own = Json::array();
    if (ranks_.root()) {
      ranks_.set_busy(true);
      for (const std::string& name : staged_names(from_, requested_)) {
        expect_text((fs::path(from_) / name).string());
        own.push_back(name);
      }
      ranks_.set_busy(false);
    }
    const Json names = Json::parse(ranks_.broadcast_text(own.dump()));
    const Json found = find_in_turn(names.size(), ranks_, [&](size_t i) {
      return describe_size_and_time((fs::path(from_) / names[i].get<std::string>()).string());
    });
    for (size_t i = 0; i < names.size(); ++i) files_.push_back({names[i], found[i][0], found[i][1]});
  }

  /// Who wants the files, and who reads them.
  void share_out() {
    owners_.resize(files_.size());
    for (size_t i = 0; i < files_.size(); ++i) owners_[i] = static_cast<int>(i % static_cast<size_t>(ranks_.size()));
    if (!shares()) return;
    wanted_.assign(files_.size() * nodes_.size(), false);
    std::vector<size_t> turn(nodes_.size(), 0);
    for (size_t i = 0; i < requested_.size(); ++i) {
      const std::vector<int>& takers = requested_[i].nodes;
      for (size_t n = 0; takers.empty() && n < nodes_.size(); ++n) wanted_[i * nodes_.size() + n] = true;
      for (const int n : takers) wanted_[i * nodes_.size() + static_cast<size_t>(n)] = true;
      if (takers.empty()) continue;
      const auto first = static_cast<size_t>(takers[0]);
      owners_[i] = nodes_[first][turn[first]++ % nodes_[first].size()];
    }
  }
  /// Whether nodes want different files.
  bool shares() const {
    return std::any_of(requested_.begin(), requested_.end(), [](const WantedFile& f) { return !f.nodes.empty(); });
  }
  bool wanted(size_t file, size_t node) const { return wanted_.empty() || wanted_[file * nodes_.size() + node]; }
  int owner(size_t file) const { return owners_[file]; }
  /// Who writes a file on a node: its reader where that is at home there, else the node's ranks in turn.
  int writer(size_t file, size_t node) const {
    const std::vector<int>& local = nodes_[node];
    if (std::find(local.begin(), local.end(), owner(file)) != local.end()) return owner(file);
    return local[file % local.size()];
  }
  /// The rank of a node that keeps its folder in order.
  bool leads() const { return nodes_[node_][0] == ranks_.rank(); }
  void lock_folder() {
    if (leads()) lock_.emplace(to_);
    ranks_.world().barrier();  // nobody looks at files that are being replaced
  }
  /// Where locks do nothing, nodes that share a folder would remove each other's files.
  void expect_own_folder() {
    const std::string path = (fs::path(to_) / node_name).string(), number = std::to_string(node_);
    if (leads()) std::ofstream(path) << number;  // not atomically: the last one stays
    ranks_.world().barrier();
    std::string found;
    if (std::ifstream in(path); leads() && (!(in >> found) || found != number))
      fail_usage("--stage-dir " + to_ + " is that of several nodes: write {node} for a node's number");
    ranks_.world().barrier();
    if (leads()) fs::remove(path);
  }
  bool missing_here() const {
    bool any = false;
    for (size_t i = 0; i < files_.size(); ++i) any = any || missing(i, node_);
    return any;
  }
  bool missing(size_t file, size_t node) const { return missing_[file * nodes_.size() + node]; }
  std::string target(size_t file) const { return (fs::path(to_) / files_[file].path).string(); }

  void read_manifest() {
    std::ifstream in(fs::path(to_) / manifest_name);
    manifest_ = in ? Json::parse(in, nullptr, false) : Json::object();
    if (!manifest_.is_object()) manifest_ = Json::object();
  }

  bool valid(size_t file) const {
    const Entry& e = files_[file];
    const Json known = manifest_.value(e.path, Json::array());
    std::error_code none;
    if (known.size() != 3 || known[0] != e.bytes || known[1] != e.changed ||
        static_cast<int64_t>(fs::file_size(target(file), none)) != e.bytes || none || !known[2].is_number())
      return false;
    return crc32c(read_file(target(file))) == known[2].get<uint32_t>();
  }

  /// Training reads the whole folder: what an earlier staging left there and this one does not want must go.
  void clear_leftovers() {
    if (!leads()) return;
    std::set<std::string> wanted;
    for (size_t i = 0; i < files_.size(); ++i)
      if (this->wanted(i, node_)) wanted.insert(files_[i].path);
    for (const std::string& path : files_below(to_, sample_endings)) {
      const std::string name = name_below(to_, path);
      if (wanted.count(name)) continue;
      if (!manifest_.contains(name)) fail_data(path + ": is no staged file, and training would read it");
      lock_->write();
      fs::remove(path);
      manifest_changes_ = true;
    }
    for (auto entry = manifest_.begin(); entry != manifest_.end();) {
      if (wanted.count(entry.key())) {
        ++entry;
        continue;
      }
      std::error_code absent;
      fs::remove(fs::path(to_) / (entry.key() + ".tmp"), absent);  // of a copy that was broken off
      remove_emptied(entry.key());
      entry = manifest_.erase(entry), manifest_changes_ = true;
    }
  }

  /// Folders that a removed file leaves empty: an empty one called validation would stand for a data set's.
  void remove_emptied(const std::string& name) const {
    for (fs::path folder = fs::path(name).parent_path(); !folder.empty(); folder = folder.parent_path())
      if (rmdir((fs::path(to_) / folder).c_str()) != 0) return;
  }

  /// Names of the files to come, without the digests by which they count: a staging that is broken off leaves them.
  void plan_manifest() {
    if (!leads() || !missing_here()) return;
    for (size_t i = 0; i < files_.size(); ++i)
      if (missing(i, node_)) manifest_[files_[i].path] = {files_[i].bytes, files_[i].changed, nullptr};
    save_manifest();
  }

  /// Sums count in whole numbers below 2^24, which floats hold: `bits` nodes share a number, a bit each. Whole sets of
  /// files would not fit beside each other for hundreds of nodes: a block of them at a time.
  void find_missing() {
    constexpr size_t bits = 24, block = 1 << 14;
    const size_t words = (nodes_.size() + bits - 1) / bits;
    missing_.assign(files_.size() * nodes_.size(), false);
    std::vector<float> sums;
    for (size_t first = 0; first < files_.size(); first += block) {
      const size_t last = std::min(files_.size(), first + block);
      sums.assign((last - first) * words, 0);
      ranks_.set_busy(true);
      for (size_t i = first; i < last; ++i)
        if (wanted(i, node_) && writer(i, node_) == ranks_.rank() && !valid(i))
          sums[(i - first) * words + node_ / bits] = float(1 << node_ % bits);
      ranks_.set_busy(false);
      ranks_.world().all_reduce_sum(std::span(sums));
      for (size_t i = first; i < last; ++i)
        for (size_t n = 0; n < nodes_.size(); ++n) {
          const auto word = static_cast<uint32_t>(sums[(i - first) * words + n / bits]);
          missing_[i * nodes_.size() + n] = (word >> n % bits & 1) != 0;
        }
    }
  }

  void check_space() {
    int64_t needed = 0;
    for (size_t i = 0; i < files_.size(); ++i)
      if (missing(i, node_)) needed += files_[i].bytes;
    if (leads()) {
      std::error_code failed;
      const fs::space_info space = fs::space(to_, failed);
      if (failed) fail_runtime(to_ + ": cannot stage there: " + failed.message());
      if (static_cast<int64_t>(space.available) < needed)
        fail_runtime(fmt::format("{}: staging needs {:.1f} MiB, found {:.1f} MiB free", to_, double(needed) / (1 << 20),
                                 double(space.available) / (1 << 20)));
    }
    ranks_.world().barrier();  // nobody writes before every node has room
  }

  bool missing_anywhere(size_t file) const {
    bool anywhere = false;
    for (size_t n = 0; n < nodes_.size(); ++n) anywhere = anywhere || missing(file, n);
    return anywhere;
  }

  /// Starts to read this rank's next file, `file` or a later one, while others' files travel.
  void read_ahead(size_t file) {
    for (; file < files_.size(); ++file)
      if (owner(file) == ranks_.rank() && missing_anywhere(file)) {
        ahead_ = std::async(std::launch::async, read_file, (fs::path(from_) / files_[file].path).string());
        return;
      }
  }

  void copy(size_t file) {
    std::vector<int> takers{owner(file)};
    for (size_t n = 0; n < nodes_.size(); ++n)
      if (const int w = writer(file, n); missing(file, n) && w != owner(file)) takers.push_back(w);
    const bool here = missing(file, node_) && writer(file, node_) == ranks_.rank();
    const bool reads = owner(file) == ranks_.rank() && missing_anywhere(file);
    if (!reads && !here) return;
    const Entry& e = files_[file];
    std::vector<std::byte> data;
    uint32_t crc = 0;
    if (reads) {
      const std::string path = (fs::path(from_) / e.path).string();
      ranks_.set_busy(true);
      data = ahead_.valid() ? ahead_.get() : read_file(path);
      ranks_.set_busy(false);
      read_ahead(file + 1);
      if (static_cast<int64_t>(data.size()) != e.bytes)
        fail_data(
            fmt::format("{}: expected {} bytes, found {}: it changes while it is staged", path, e.bytes, data.size()));
      crc = crc32c(data);
      crc_[file] = double(crc);
      read_ += e.bytes;
    }
    data.resize(static_cast<size_t>(e.bytes));
    std::sort(takers.begin(), takers.end());
    if (takers.size() > 1) {
      ranks_.world().broadcast_among(takers, owner(file), std::as_writable_bytes(std::span(&crc, 1)));
      ranks_.world().broadcast_among(takers, owner(file), data);
    }
    if (here) write(file, data, crc);
  }

  void write(size_t file, std::span<const std::byte> data, uint32_t crc) {
    ranks_.set_busy(true);
    const std::string path = target(file);
    make_folders(fs::path(path).parent_path());
    write_file(path, data);
    if (const uint32_t found = crc32c(read_file(path)); found != crc)
      fail_runtime(fmt::format("{}: the copy differs: CRC expected {:08x}, found {:08x}", path, crc, found));
    written_ += static_cast<int64_t>(data.size());
    ranks_.set_busy(false);
  }

  void save_manifest() const { write_text((fs::path(to_) / manifest_name).string(), manifest_.dump()); }

  void write_manifest() {
    ranks_.world().all_reduce_sum(std::span(crc_));  // the reader of a file alone contributes; f64 holds 32 bits
    if (leads() && (manifest_changes_ || missing_here())) {
      for (size_t i = 0; i < files_.size(); ++i)
        if (missing(i, node_))
          manifest_[files_[i].path] = {files_[i].bytes, files_[i].changed, static_cast<uint32_t>(crc_[i])};
      save_manifest();
    }
    ranks_.world().barrier();
  }

  /// Of this node's folder, on the rank that leads; its files are read until the process ends.
  static inline std::optional<StageLock> lock_;
  std::string from_, to_;
  Ranks& ranks_;
  std::vector<std::vector<int>> nodes_;
  const std::vector<WantedFile>& requested_;
  size_t node_ = 0;
  std::vector<Entry> files_;
  Json manifest_;
  bool manifest_changes_ = false;
  std::vector<int> owners_;
  std::vector<bool> wanted_, missing_;  ///< file by node; nothing is wanted where all are
  std::vector<double> crc_;
  int64_t read_ = 0, written_ = 0;
  std::future<std::vector<std::byte>> ahead_;  ///< this rank's next file
};

}  // namespace

std::vector<std::vector<int>> ranks_of_nodes(Ranks& ranks) {
  std::vector<std::vector<int>> nodes(static_cast<size_t>(ranks.nodes()));
  for (int r = 0; r < ranks.size(); ++r)
    nodes[static_cast<size_t>(ranks.world().nodes()[static_cast<size_t>(r)])].push_back(r);
  return nodes;
}

std::string StagingReport::text() const {
  const std::string shares = most < files ? fmt::format(" as shares of {} to {}", fewest, most) : "";
  return fmt::format(
      "staged {} files{}: {:.1f} MiB read once, {:.1f} MiB written in {:.2f} s ({:.1f} MiB/s), {} files reused", files,
      shares, double(bytes_read) / (1 << 20), double(bytes_written) / (1 << 20), seconds,
      double(bytes_written) / (1 << 20) / seconds, reused);
}

StagingReport stage_data(const std::string& data_dir, const std::string& stage_dir, Ranks& ranks,
                         const std::vector<WantedFile>& files) {
  if (fs::weakly_canonical(data_dir) == fs::weakly_canonical(stage_dir))
    fail_usage("--stage-dir " + stage_dir + " is --data-dir itself");
  const auto place = [](const std::string& path) { return fs::weakly_canonical(fs::absolute(path)); };
  const fs::path inside = place(stage_dir).lexically_relative(place(data_dir));
  if (!inside.empty() && *inside.begin() != "..")
    fail_usage("--stage-dir " + stage_dir + " lies in --data-dir " + data_dir + ": copies would be staged again");
  return Staging(data_dir, stage_dir, ranks, files).run();
}

}  // namespace convoy::apps
