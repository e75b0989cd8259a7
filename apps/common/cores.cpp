#include "apps/common/cores.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace convoy::apps {

std::vector<int> allowed_cores(int (*ask)(pid_t, size_t, cpu_set_t*)) {
  // The kernel refuses a set that is smaller than its own, whose size it does not tell.
  constexpr size_t most = 1024;
  for (size_t length = 1; length <= most; length *= 2) {
    std::vector<cpu_set_t> set(length);
    const size_t bytes = length * sizeof set[0];
    if (ask(0, bytes, set.data()) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> cores;
    for (int c = 0; c < static_cast<int>(length) * CPU_SETSIZE; ++c)
      if (CPU_ISSET_S(static_cast<size_t>(c), bytes, set.data())) cores.push_back(c);
    return cores;
  }
  return {};
}

int numa_domain(const std::vector<int>& cores) {
  namespace fs = std::filesystem;
  const fs::path folder = "/sys/devices/system/node";
  if (cores.empty()) return -1;
  if (!fs::exists(folder)) return 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    int domain = 0;
    if (std::sscanf(name.c_str(), "node%d", &domain) != 1) continue;
    if (std::all_of(cores.begin(), cores.end(),
                    [&](int core) { return fs::exists(entry.path() / ("cpu" + std::to_string(core))); }))
      return domain;
  }
  return -1;
}

std::string core_text(const std::vector<int>& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t j = i;
    while (j + 1 < cores.size() && cores[j + 1] == cores[j] + 1) ++j;
    if (!text.empty()) text += ',';
    text += std::to_string(cores[i]);
    if (j > i) text += '-', text += std::to_string(cores[j]);
    i = j + 1;
  }
  return text;
}

}  // namespace convoy::apps
