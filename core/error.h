// One exception type for everything that can go wrong above a kernel. The category decides the exit code of the
// programs.
#pragma once

#include <stdexcept>
#include <string>

namespace convoy {

/// What kind of mistake an Error reports; the value is the process exit code documented in apps/README.md.
enum class ErrorKind : int {
  runtime = 1,     ///< the program or the machine failed (disk full, library error)
  usage = 2,       ///< a flag, a configuration key or an API argument is wrong
  data = 3,        ///< a file is missing, truncated, damaged or has the wrong shape
  diverged = 4,    ///< a loss, gradient or activation stopped being finite
  lost_rank = 76,  ///< another rank of the run is gone or silent
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
};

[[noreturn]] inline void fail_usage(const std::string& message) {
  throw Error(ErrorKind::usage, message);
}
[[noreturn]] inline void fail_data(const std::string& message) {
  throw Error(ErrorKind::data, message);
}
[[noreturn]] inline void fail_runtime(const std::string& message) {
  throw Error(ErrorKind::runtime, message);
}

}  // namespace convoy
