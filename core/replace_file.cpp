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

int open_emptied(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail_runtime(path + ": cannot open for writing: " + std::strerror(errno));
  return file;
}

/// Writes everything and closes; what is `kept` has reached the disk then.
void write_and_close(int file, const std::string& path, std::string_view text, bool kept) {
  int trouble = 0;
  while (!text.empty() && trouble == 0) {
    const ssize_t put = write(file, text.data(), text.size());
    if (put > 0) text.remove_prefix(static_cast<size_t>(put));
    if (put < 0 && errno != EINTR) trouble = errno;
  }
  if (trouble == 0 && kept && fsync(file) != 0) trouble = errno;
  if (close(file) != 0 && trouble == 0) trouble = errno;
  if (trouble != 0) fail_runtime(path + ": cannot write: " + std::strerror(trouble));
}

}  // namespace

std::string behind_links(const std::string& name) {
  fs::path path = name;
  std::error_code failed;
  for (int links = 0; links < 40 && fs::is_symlink(path, failed); ++links)
    path = path.parent_path() / fs::read_symlink(path);  // replaced where the link is absolute
  return path.string();
}

void replace_file(const std::string& name, std::string_view text) {
  std::error_code failed;
  const fs::file_status found = fs::status(name, failed);
  if (fs::exists(found) && !fs::is_regular_file(found)) return write_and_close(open_emptied(name), name, text, false);
  const std::string path = behind_links(name), temporary = path + ".tmp";
  const int file = open_emptied(temporary);  // which is none of ours where this fails
  try {
    write_and_close(file, temporary, text, true);
    if (std::rename(temporary.c_str(), path.c_str()) != 0)
      fail_runtime(path + ": cannot rename " + temporary + ": " + std::strerror(errno));
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace convoy
