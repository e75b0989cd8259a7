#include "apps/common/mllog.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/error.h"

namespace convoy::apps {

namespace {
namespace fs = std::filesystem;
const int64_t program_start = MlLog::now();
}  // namespace

std::string MlLog::path_of_attempt(const std::string& folder, bool resumes) {
  const auto path = [&](int attempt) {
    const std::string name = attempt == 0 ? "mlperf.log" : "mlperf-" + std::to_string(attempt) + ".log";
    return (fs::path(folder) / name).string();
  };
  int attempt = 0;
  for (; fs::exists(path(attempt)); ++attempt)
    if (!resumes) fs::remove(path(attempt));
  return path(resumes ? attempt : 0);
}

void MlLog::open(const std::string& path) {
  path_ = path;
  file_.open(path, std::ios::trunc);
  if (!file_) fail_runtime(path + ": cannot open for writing");
}

void MlLog::init_start(int64_t earliest, std::source_location where) {
  write("INTERVAL_START", "init_start", nullptr, Json::object(), where, std::max(earliest, program_start));
}

void MlLog::event(const std::string& key, const Json& value, Json metadata, std::source_location where) {
  write("POINT_IN_TIME", key, value, std::move(metadata), where);
}
void MlLog::start(const std::string& key, Json metadata, std::source_location where) {
  write("INTERVAL_START", key, nullptr, std::move(metadata), where);
}
void MlLog::end(const std::string& key, Json metadata, std::source_location where) {
  write("INTERVAL_END", key, nullptr, std::move(metadata), where);
}

void MlLog::interval(const std::string& first_key, const std::string& last_key, std::pair<int64_t, int64_t> times,
                     std::source_location where) {
  write("INTERVAL_START", first_key, nullptr, Json::object(), where, times.first);
  write("INTERVAL_END", last_key, nullptr, Json::object(), where, times.second);
}

int64_t MlLog::now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void MlLog::write(const char* type, const std::string& key, const Json& value, Json metadata,
                  const std::source_location& where, int64_t time) {
  metadata["file"] = fs::path(where.file_name()).filename().string();
  metadata["lineno"] = where.line();
  const Json line = {{"namespace", ""}, {"time_ms", time}, {"event_type", type},
                     {"key", key},      {"value", value},  {"metadata", metadata}};
  file_ << ":::MLLOG " << line.dump() << std::endl;
}

}  // namespace convoy::apps
