// A file that a bench writes row by row while it measures.
#pragma once

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

}  // namespace convoy::bench
