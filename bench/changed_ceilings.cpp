#include "bench/changed_ceilings.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace convoy::bench {

std::string changed_ceilings(const std::vector<Ceiling>& start, const std::vector<Ceiling>& end) {
  std::string changes;
  for (size_t i = 0; i < std::min(start.size(), end.size()); ++i) {
    if (std::abs(end[i].value - start[i].value) <= 0.1 * start[i].value) continue;
    char text[128];
    std::snprintf(text, sizeof text, "%s%s %.1f %s at the start, %.1f at the end", changes.empty() ? "" : "; ",
                  start[i].name.c_str(), start[i].value, start[i].unit.c_str(), end[i].value);
    changes += text;
  }
  return changes;
}

}  // namespace convoy::bench
