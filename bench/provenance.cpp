#include "bench/provenance.h"

#include <cstdlib>
#include <ctime>

#include "build_features.h"
#include "commit.h"
#include "core/text.h"

namespace convoy::bench {

std::string long_version_text() {
  return "convoy " CONVOY_VERSION " (commit " CONVOY_COMMIT ", g++ " __VERSION__ ")\n" CONVOY_FEATURES;
}

std::string provenance() {
  std::string text = "\"version\":" + json_string(CONVOY_VERSION) + ",\"commit\":" + json_string(CONVOY_COMMIT);
  char date[32] = "";
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  if (gmtime_r(&now, &utc) && std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc) > 0)
    text += ",\"date\":" + json_string(date);
  double load = 0;
  if (getloadavg(&load, 1) == 1) text += ",\"load\":" + std::to_string(load);
  for (const char* name : {"OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES"})
    if (const char* value = std::getenv(name)) text += ",\"" + std::string(name) + "\":" + json_string(value);
  const char* limit = std::getenv("CONVOY_MAX_ISA");
  return text + ",\"CONVOY_MAX_ISA\":" + json_string(limit ? limit : "");
}

}  // namespace convoy::bench
