#include "io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/replace_file.h"
#include "io/crc32c.h"

namespace convoy {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

std::string reason() {
  return std::strerror(errno);
}

/// Throws Error(data) where a link leads to one of the folders on the way to it.
void refuse_loop(const std::filesystem::path& link) {
  for (std::filesystem::path above = link.parent_path(); !above.empty(); above = above.parent_path()) {
    if (std::filesystem::equivalent(above, link))
      fail_data(link.string() + ": a link to " + above.string() + ", in which it lies");
    if (!above.has_relative_path()) return;
  }
}

/// In the folder of a NewDataSet that is not complete.
constexpr const char* unfinished = "convoy.unfinished";

/// Folders of data sets in the making, and what was written there. Nobody reads it before it is complete: it is synced
/// then, all at once, which a journal does many times faster than file by file.
struct InTheMaking {
  std::mutex mutex;
  std::map<std::string, std::vector<std::string>> files;
};
InTheMaking& in_the_making() {
  static InTheMaking making;
  return making;
}

/// Whether complete() syncs the file.
bool is_synced_later(const std::string& path) {
  std::error_code missing;
  const std::string folder = std::filesystem::canonical(folder_of(path), missing).string();
  const std::lock_guard lock(in_the_making().mutex);
  const auto found = in_the_making().files.find(folder);
  if (missing || found == in_the_making().files.end()) return false;
  found->second.push_back(path);
  return true;
}

}  // namespace

std::vector<std::byte> read_file(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode))  // which would be waited for
    fail_data(path + ": expected a file, found a pipe");
  const Descriptor file{open(path.c_str(), O_RDONLY)};
  if (file.fd < 0) fail_data(path + ": cannot open: " + reason());
  if (fstat(file.fd, &info) != 0) fail_data(path + ": cannot read: " + reason());
  if (S_ISDIR(info.st_mode)) fail_data(path + ": expected a file, found a folder");
  // A pipe has no size: the error says so.
  const off_t size = S_ISREG(info.st_mode) ? info.st_size : lseek(file.fd, 0, SEEK_END);
  if (size < 0) fail_data(path + ": cannot seek: " + reason());
  std::vector<std::byte> data(static_cast<size_t>(size));
  if (const size_t got = read_at(file.fd, 0, data, path); got < data.size())
    fail_data(path + ": ends at byte " + std::to_string(got) + ", expected " + std::to_string(data.size()));
  return data;
}

size_t read_at(int descriptor, int64_t offset, std::span<std::byte> out, const std::string& what) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = pread(descriptor, out.data() + done, out.size() - done,
                              static_cast<off_t>(offset + static_cast<int64_t>(done)));
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_data(what + ": cannot read: " + reason());
    done += static_cast<size_t>(got);
  }
  return done;
}

std::string why_withheld(const std::string& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return "cannot open: " + reason();
  const char* locking = std::getenv("HDF5_USE_FILE_LOCKING");
  const bool locks = !locking || (std::string_view(locking) != "FALSE" && std::string_view(locking) != "0");
  if (locks && flock(file.fd, LOCK_SH | LOCK_NB) != 0 && errno != ENOSYS)
    return "cannot open: " + (errno == EWOULDBLOCK ? "another process holds a lock on it" : reason());
  std::vector<char> block(size_t{1} << 20);
  ssize_t got = 1;
  while (got > 0) got = read(file.fd, block.data(), block.size());
  return got < 0 ? "cannot read: " + reason() : "";
}

std::vector<std::string> files_below(const std::string& folder, const std::vector<std::string>& extensions,
                                     BrokenLinks broken) {
  if (!std::filesystem::is_directory(folder))
    fail_data(folder + (std::filesystem::exists(folder) ? ": expected a file or a folder, found a device or a pipe"
                                                        : ": no such folder"));
  std::vector<std::string> paths;
  const auto wanted = [&](const std::filesystem::path& path) {
    return std::find(extensions.begin(), extensions.end(), path.extension()) != extensions.end();
  };
  try {
    using Walk = std::filesystem::recursive_directory_iterator;
    for (const auto& entry : Walk(folder, std::filesystem::directory_options::follow_directory_symlink)) {
      if (entry.is_symlink() && entry.is_directory()) refuse_loop(entry.path());
      if (entry.path().filename() == unfinished)
        fail_data(entry.path().string() +
                  ": the program that writes this folder is not done, or did not end well: then "
                  "remove the folder, and write it anew");
      if (!wanted(entry.path())) continue;
      const bool nowhere = entry.is_symlink() && !entry.exists();
      if (nowhere && broken == BrokenLinks::refused) fail_data(entry.path().string() + ": a link to nothing");
      if (nowhere || entry.is_regular_file()) paths.push_back(entry.path());
    }
  } catch (const std::filesystem::filesystem_error& error) {
    fail_data((error.path1().empty() ? folder : error.path1().string()) + ": cannot list: " + error.code().message());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string folder_above(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).parent_path().string();
}

std::string folder_inside(const std::string& path, const std::string& file) {
  if (!std::filesystem::is_directory(path)) return ".";
  return std::filesystem::path(file).parent_path().lexically_relative(path).string();
}

std::string name_below(const std::string& folder, const std::string& path) {
  return std::filesystem::path(path).lexically_relative(folder).string();
}

SampleFolders sample_folders(const std::string& folder) {
  const auto part = [&](const char* name) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    return std::filesystem::is_directory(path) ? path.string() : "";
  };
  const std::string train = part("train"), validation = part("validation"), test = part("test");
  if (!train.empty()) return {train, validation};
  if (validation.empty() && test.empty()) return {folder, ""};
  fail_data(folder + ": expected folders train and validation, or train alone, found " +
            (test.empty()         ? "validation"
             : validation.empty() ? "test"
                                  : "validation and test"));
}

std::set<std::string> held_out(double share, const std::set<std::string>& names,
                               const std::function<uint64_t(const std::string&)>& key) {
  std::set<std::pair<uint64_t, std::string>> order;
  for (const std::string& name : names) order.emplace(key(name), name);
  const int64_t all = std::ssize(order),
                count = std::max<int64_t>(1, std::min(all - 1, int64_t{std::llround(share * double(all))}));
  std::set<std::string> held;
  for (const auto& [place, name] : order)
    if (std::ssize(held) < count) held.insert(name);
  return held;
}

bool make_folders(const std::string& folder) {
  std::error_code failed;
  const bool missing = !std::filesystem::exists(folder, failed);
  std::filesystem::create_directories(folder, failed);
  if (failed) fail_runtime(folder + ": cannot make the folder: " + failed.message());
  return missing;
}

// Behind the delegated constructor, the destructor withdraws what is made ahead of a folder that fails.
NewDataSet::NewDataSet(const std::set<std::string>& folders, const std::vector<std::string>& files) : NewDataSet() {
  for (const std::string& folder : folders) refuse_used_folder(folder);
  std::error_code ignored;
  for (const std::string& file : files)
    if (std::filesystem::exists(std::filesystem::symlink_status(file, ignored)))
      fail_usage(file + ": is there already, of another data set perhaps: remove it, or name another folder");
  for (const std::string& folder : folders) {
    made_[folder] = make_folders(folder);
    write_text((std::filesystem::path(folder) / unfinished).string(), "");
    const std::lock_guard lock(in_the_making().mutex);
    in_the_making().files[std::filesystem::canonical(folder).string()];
  }
}

NewDataSet::~NewDataSet() {
  // A folder that holds another one comes ahead of it by name: the inner ones go first.
  for (auto last = made_.rbegin(); last != made_.rend(); ++last) {
    const auto& [folder, made] = *last;
    std::error_code failed;
    {
      const std::lock_guard lock(in_the_making().mutex);
      in_the_making().files.erase(std::filesystem::canonical(folder, failed).string());
    }
    bool alone = true;  // the mark
    for (const auto& entry : std::filesystem::directory_iterator(folder, failed))
      alone = alone && entry.path().filename() == unfinished;
    if (failed || !alone) continue;
    std::filesystem::remove(std::filesystem::path(folder) / unfinished, failed);
    if (made) std::filesystem::remove(folder, failed);
  }
}

void NewDataSet::complete() {
  for (const auto& [folder, made] : made_) {
    std::vector<std::string> files;
    {
      const std::lock_guard lock(in_the_making().mutex);
      // Of two names of one folder the first has them.
      if (auto found = in_the_making().files.extract(std::filesystem::canonical(folder).string()))
        files = std::move(found.mapped());
    }
    for (const std::string& file : files) sync_file(file);
    sync_folder(folder);
  }
  for (const auto& [folder, made] : made_) {
    const std::string mark = (std::filesystem::path(folder) / unfinished).string();
    std::error_code failed;
    std::filesystem::remove(mark, failed);
    if (failed) fail_runtime(mark + ": cannot remove: " + failed.message());
    sync_folder(folder);
  }
  made_.clear();
}

void refuse_used_folder(const std::string& folder) {
  std::error_code missing;
  const std::filesystem::directory_iterator entries(folder, missing);
  if (missing || entries == std::filesystem::directory_iterator()) return;
  fail_usage(folder + ": expected an empty folder or none, found " + entries->path().filename().string() +
             ": remove it, or name another");
}

void refuse_inside(const std::string& data, const std::string& output, const std::string& flag) {
  const auto place = [](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path));
  };
  if (std::filesystem::is_regular_file(data)) return;
  const std::filesystem::path inside = place(output).lexically_relative(place(data));
  if (!inside.empty() && *inside.begin() != "..")
    fail_usage(flag + ": " + output + " is " + data + ", which is read, or lies in it: choose another folder");
}

void refuse_among_samples(const std::string& data, const std::string& output, const std::string& flag) {
  if (!std::filesystem::is_directory(data + "/train")) return refuse_inside(data, output, flag);
  for (const char* part : {"/train", "/validation", "/test"})
    if (std::filesystem::exists(data + part)) refuse_inside(data + part, output, flag);
}

InputFiles::InputFiles(const std::vector<std::string>& paths) : paths_(paths.begin(), paths.end()) {}

void InputFiles::refuse(const std::string& output, const std::string& flag) const {
  // What is read is there; what cannot be looked at is no input, and cannot be written either.
  std::error_code failed;
  if (!std::filesystem::exists(output, failed)) return;
  const auto canonical = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(path, failed).string();
  };
  if (canonical_.empty())
    for (const std::string& path : paths_)
      if (!path.empty()) canonical_.insert(canonical(path));
  if (canonical_.count(canonical(output)))
    fail_usage(flag + ": " + output + " is read from and would be overwritten: choose another place");
}

std::string files_digest(const std::vector<std::string>& paths) {
  uint32_t crc = 0;
  const size_t step = std::max<size_t>(1, paths.size() / 1000);
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string name = std::filesystem::path(paths[i]).filename();
    crc = crc32c(std::as_bytes(std::span(name)), crc);
    std::error_code none;  // placeholders of a dummy set have no file
    const uint64_t size = i % step == 0 ? std::filesystem::file_size(paths[i], none) : 0;
    crc = crc32c(std::as_bytes(std::span(&size, 1)), crc);
  }
  char text[32];
  std::snprintf(text, sizeof text, "%zu %08x", paths.size(), crc);
  return text;
}

void expect_writable(const std::string& path, const std::string& flag) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed))
    fail_runtime(flag + ": " + path + ": expected a file, found a folder");
  expect_replaceable(path);
  if (const std::string why = why_not_replaceable(path); !why.empty()) fail_runtime(flag + ": " + path + ": " + why);
}

void expect_replaceable(const std::string& path) {
  std::error_code failed;
  const std::filesystem::file_status found = std::filesystem::status(path, failed);
  if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found))
    fail_runtime(path + ": expected a file or none, found " +
                 (std::filesystem::is_directory(found) ? "a folder" : "a device or a pipe"));
}

void write_atomically(const std::string& name, const std::function<void(const std::string&)>& write) {
  expect_replaceable(name);
  replace_by(name, !is_synced_later(behind_links(name)), write);
}

void write_file(const std::string& path, std::span<const std::byte> data) {
  write_atomically(path, [&](const std::string& temporary) {
    const Descriptor file{open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644)};
    if (file.fd < 0) fail_runtime(path + ": cannot create: " + reason());
    size_t done = 0;
    while (done < data.size()) {
      const ssize_t put = ::write(file.fd, data.data() + done, data.size() - done);
      if (put < 0) fail_runtime(path + ": cannot write " + std::to_string(data.size()) + " bytes: " + reason());
      done += static_cast<size_t>(put);
    }
  });
}

void write_text(const std::string& path, const std::string& text) {
  write_file(path, std::as_bytes(std::span(text)));
}

}  // namespace convoy
