// The last words of a process that a kernel brings down: which one, and on what.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>

namespace convoy::bench {

class CrashNote {
 public:
  /// From here on a crash, or a call of abort(), tells what was noted, and ends the process as it would have. Those
  /// that a sanitizer has taken on stay its own; a stack that overflows leaves no room to tell.
  static void install() {
    for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT})
      if (const auto other = std::signal(number, tell); other != SIG_DFL) std::signal(number, other);
  }
  static void of_problem(std::string_view text) { problem_.keep(text); }
  static void of_kernel(std::string_view name) { kernel_.keep(name); }

 private:
  /// Where a handler may read it: a part of it, if it is long.
  struct Text {
    std::array<char, 512> bytes;
    size_t length;
    void keep(std::string_view text) { length = text.copy(bytes.data(), bytes.size()); }
  };
  static void say(std::string_view text) { (void)!write(STDERR_FILENO, text.data(), text.size()); }
  static void say(const Text& text) { say(std::string_view(text.bytes.data(), text.length)); }
  static void tell(int number) {
    if (kernel_.length > 0)
      say("bench_layers: error: crashed; the kernel that ran last is "), say(kernel_), say(", on "), say(problem_),
          say("\n");
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  static inline Text problem_{}, kernel_{};
};

}  // namespace convoy::bench
