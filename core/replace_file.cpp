#include "core/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace convoy {
namespace {

namespace fs = std::filesystem;

void sync(const std::string& path, int flags) {
  const int file = open(path.c_str(), flags | O_CLOEXEC);
  int trouble = file < 0 || fsync(file) != 0 ? errno : 0;
  if (file >= 0) close(file);
  // Some file systems have nothing to ask for a folder.
  if ((flags & O_DIRECTORY) != 0 && (trouble == EINVAL || trouble == ENOTSUP)) trouble = 0;
  if (trouble != 0) fail_runtime(path + ": cannot sync to disk: " + std::strerror(trouble));
}

void write_text(const std::string& path, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail_runtime(path + ": cannot open for writing: " + std::strerror(errno));
  int trouble = 0;
  while (!text.empty() && trouble == 0) {
    const ssize_t put = write(file, text.data(), text.size());
    if (put > 0) text.remove_prefix(static_cast<size_t>(put));
    if (put < 0 && errno != EINTR) trouble = errno;
  }
  if (close(file) != 0 && trouble == 0) trouble = errno;
  if (trouble != 0) fail_runtime(path + ": cannot write: " + std::strerror(trouble));
}

std::string temporary_of(const std::string& path) {
  return behind_links(path) + ".tmp";
}

}  // namespace

void sync_file(const std::string& path) {
  sync(path, O_RDONLY);
}
void sync_folder(const std::string& folder) {
  sync(folder, O_RDONLY | O_DIRECTORY);
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string behind_links(const std::string& name) {
  fs::path path = name;
  std::error_code failed;
  for (int links = 0; links < 40; ++links) {
    const fs::path target = fs::read_symlink(path, failed);
    if (failed) break;                   // no link
    path = path.parent_path() / target;  // replaced where the link is absolute
  }
  return path.string();
}

void replace_by(const std::string& name, bool synced, const std::function<void(const std::string&)>& write) {
  const std::string path = behind_links(name), temporary = temporary_of(name);
  try {
    write(temporary);
    if (synced) sync_file(temporary);
    if (std::rename(temporary.c_str(), path.c_str()) != 0)
      fail_runtime(path + ": cannot rename " + temporary + ": " + std::strerror(errno));
    if (synced) sync_folder(folder_of(path));
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

void replace_file(const std::string& path, std::string_view text) {
  std::error_code failed;
  const fs::file_status found = fs::status(path, failed);
  if (fs::exists(found) && !fs::is_regular_file(found)) return write_text(path, text);
  replace_by(path, true, [&](const std::string& temporary) { write_text(temporary, text); });
}

std::string why_not_replaceable(const std::string& path) {
  const std::string trial = temporary_of(path);
  const int file = open(trial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0 && errno == EEXIST) return "";  // of an earlier run that was killed, or somebody's own
  if (file < 0) return "cannot create: " + std::string(std::strerror(errno));
  close(file);
  unlink(trial.c_str());
  return "";
}

}  // namespace convoy
