// Files that a bench writes: row by row while it measures, or at its end.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"

namespace convoy::bench {

/// Every row is flushed: what was measured before a bench is stopped is kept. Throws Error(runtime) where the file
/// cannot be opened or a row cannot be written (a full disk). An empty path writes nothing.
class RowFile {
 public:
  explicit RowFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_.open(path);
    if (!file_) fail_runtime(path + ": cannot open for writing");
  }
  void row(const std::string& text) {
    if (path_.empty()) return;
    file_ << text << std::endl;
    if (!file_) fail_runtime(path_ + ": cannot write (disk full?)");
  }

 private:
  std::string path_;
  std::ofstream file_;
};

/// Throws Error(runtime) where a file that is written at the end could not be; what is there stays.
inline void require_writable(const std::string& path) {
  const bool there = std::filesystem::exists(path);
  if (!std::ofstream(path, std::ios::app)) fail_runtime(path + ": cannot open for writing");
  if (!there) std::filesystem::remove(path);
}

}  // namespace convoy::bench
