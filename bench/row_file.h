// Files that a bench writes: row by row while it measures, or at its end.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/replace_file.h"

namespace convoy::bench {

/// Opened before anything is measured; what the file held stays until there is a first row to take its place. Every row
/// is flushed: what was measured before a bench is stopped is kept. Throws Error(runtime) where the file cannot be
/// opened or a row cannot be written (a full disk). An empty path writes nothing.
class RowFile {
 public:
  explicit RowFile(const std::string& path) : path_(path) {
    if (path.empty()) return;
    fresh_ = !std::filesystem::exists(path);
    file_.open(path, std::ios::app);
    if (!file_) fail_runtime(path + ": cannot open for writing");
  }
  ~RowFile() {
    std::error_code ignored;
    if (fresh_) std::filesystem::remove(path_, ignored);
  }
  RowFile(const RowFile&) = delete;
  /// What is no result by itself (names of columns, the machine, refusals): written with the first row, or never.
  void head(const std::string& text) {
    if (path_.empty()) return;
    started_ ? write(text) : static_cast<void>(heads_.push_back(text));
  }
  void row(const std::string& text) {
    if (path_.empty()) return;
    if (!started_) {
      if (std::filesystem::is_regular_file(path_)) std::filesystem::resize_file(path_, 0);
      started_ = true, fresh_ = false;
      for (const std::string& head : heads_) write(head);
    }
    write(text);
  }

 private:
  void write(const std::string& text) {
    file_ << text << std::endl;
    if (!file_) fail_runtime(path_ + ": cannot write (disk full?)");
  }
  std::string path_;
  std::ofstream file_;
  std::vector<std::string> heads_;
  bool fresh_ = false;  ///< made here, and still empty
  bool started_ = false;
};

/// Throws Error(runtime) where a file that is written at the end could not be; what is there stays.
inline void require_writable(const std::string& path) {
  const bool device = std::filesystem::exists(path) && !std::filesystem::is_regular_file(path);
  const std::string why = !device                              ? why_not_replaceable(path)
                          : std::ofstream(path, std::ios::app) ? ""
                                                               : "cannot open for writing";
  if (!why.empty()) fail_runtime(path + ": " + why);
}

}  // namespace convoy::bench
