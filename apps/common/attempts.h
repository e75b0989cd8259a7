// Reading many things of which some may be bad: each is told and counted, and the others are read all the same.
#pragma once

#include <cstdint>
#include <new>
#include <string>

#include "apps/common/say.h"
#include "core/error.h"

namespace convoy::apps {

class Attempts {
 public:
  /// Runs f, which reads something of `file`; an error on the way, also of memory, is one bad thing on standard error.
  template <class F>
  void operator()(const std::string& file, F&& f) {
    try {
      f();
    } catch (const Error& error) {
      report(error.what());
    } catch (const std::bad_alloc&) {
      report(file + ": larger than the memory");
    }
  }
  int64_t bad() const { return bad_; }

 private:
  void report(const std::string& what) {
    say(stderr, "bad: {}\n", what);
    ++bad_;
  }
  int64_t bad_ = 0;
};

}  // namespace convoy::apps
