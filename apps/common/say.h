// What programs print, where a stream may take no more: a terminal that was closed, a full disk, a pipe without reader.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace convoy::apps {

/// As fmt::print, but never throws for the stream's sake: hours of training are worth more than a line of its progress.
/// run_program tells of standard output that failed, at the end.
template <class... Args>
void say(std::FILE* to, fmt::format_string<Args...> text, Args&&... args) {
  const std::string line = fmt::format(text, std::forward<Args>(args)...);
  std::fwrite(line.data(), 1, line.size(), to);
}
/// The same, to standard output.
template <class... Args>
void say(fmt::format_string<Args...> text, Args&&... args) {
  say(stdout, text, std::forward<Args>(args)...);
}

}  // namespace convoy::apps
