// Reading many things on all threads, in order; and reading what may be bad: that is told and counted, and the others
// are read all the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/say.h"
#include "core/error.h"
#include "core/parallel.h"

namespace convoy::apps {

/// Calls take(i, read(i)) for every i in [0, count) in order on the calling thread; `at_once` of read's results are
/// made at a time, on `threads`. The first error in this order ends it, behind what is ahead of it.
template <class Read, class Take>
void read_in_order(size_t count, int threads, int64_t at_once, Read&& read, Take&& take) {
  struct Result {
    std::optional<decltype(read(size_t{0}))> value;
    std::exception_ptr failure;
  };
  std::vector<Result> results;
  for (size_t first = 0; first < count; first += results.size()) {
    results.clear(), results.resize(std::min(count - first, static_cast<size_t>(at_once)));
    parallel_units(std::ssize(results), threads, [&](int64_t i) {
      Result& result = results[static_cast<size_t>(i)];
      try {
        result.value.emplace(read(first + static_cast<size_t>(i)));
      } catch (...) {
        result.failure = std::current_exception();
      }
    });
    for (size_t k = 0; k < results.size(); ++k) {
      if (results[k].failure) std::rethrow_exception(results[k].failure);
      take(first + k, std::move(*results[k].value));
    }
  }
}

class Attempts {
 public:
  /// For every i of [0, count): read(i), something of file(i), on all threads; take(i, its result) in order. An error
  /// on the way, also of memory, is one bad thing on standard error.
  template <class File, class Read, class Take>
  void all(size_t count, int threads, File&& file, Read&& read, Take&& take) {
    struct Found {
      std::optional<decltype(read(size_t{0}))> value;
      std::optional<std::string> wrong;
      bool starved = false;  ///< of memory, which others use at the time
    };
    const auto attempt = [&](size_t i) {
      Found found;
      found.wrong = failure_of(file(i), [&] {
        try {
          found.value.emplace(read(i));
        } catch (const std::bad_alloc&) {
          found.starved = true;
        }
      });
      return found;
    };
    constexpr int64_t each = 8;  // so that threads wait for the slowest now and then alone
    read_in_order(count, threads, each * threads, attempt, [&](size_t i, Found found) {
      if (found.starved) found.wrong = failure_of(file(i), [&] { found.value.emplace(read(i)); });  // alone
      if (!found.wrong) found.wrong = failure_of(file(i), [&] { take(i, std::move(*found.value)); });
      if (found.wrong) report(*found.wrong);
    });
  }
  int64_t bad() const { return bad_; }

 private:
  template <class F>
  static std::optional<std::string> failure_of(const std::string& file, F&& f) {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    } catch (const std::bad_alloc&) {
      return file + ": larger than the memory";
    }
    return std::nullopt;
  }
  void report(const std::string& what) {
    say(stderr, "bad: {}\n", what);
    ++bad_;
  }
  int64_t bad_ = 0;
};

}  // namespace convoy::apps
