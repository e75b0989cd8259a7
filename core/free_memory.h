// How much memory is left: a problem that is too large is refused before the system ends the whole run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace convoy {

/// Bytes that this process may still take, of the machine and of its control group; nothing where neither says.
inline std::optional<int64_t> free_memory() {
  std::optional<int64_t> least;
  const auto also = [&](int64_t bytes) { least = least ? std::min(*least, bytes) : bytes; };
  std::ifstream machine("/proc/meminfo");
  for (std::string name; machine >> name;)
    if (int64_t kib = 0; name == "MemAvailable:" && machine >> kib) also(kib * 1024);
  int64_t most = 0, now = 0;  // the limit of a group without one is a word
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> most && std::ifstream("/sys/fs/cgroup/memory.current") >> now) {
    // Copies of files that were read once give way.
    std::ifstream parts("/sys/fs/cgroup/memory.stat");
    int64_t bytes = 0;
    for (std::string name; parts >> name >> bytes;)
      if (name == "inactive_file") now -= bytes;
    also(std::max<int64_t>(0, most - now));
  }
  return least;
}

}  // namespace convoy
