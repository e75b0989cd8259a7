// MLPerf log lines (hpc 3.0.0 keys): ":::MLLOG {json}".
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <source_location>
#include <string>
#include <utility>

namespace convoy::apps {

class MlLog {
 public:
  /// Every start of a run has a log of its own, as checkers of MLPerf logs want it: mlperf.log, and mlperf-1.log,
  /// mlperf-2.log, ... for those that resume it. The path for this start; where it begins anew, logs of earlier runs
  /// are removed.
  static std::string path_of_attempt(const std::string& folder, bool resumes);
  /// Opens `path` anew; throws Error(runtime) when it cannot. Nothing may be logged before.
  void open(const std::string& path);
  /// Whether a line could not be written: a full disk ends no run whose steps are not saved yet.
  bool failed() const { return !file_; }
  const std::string& path() const { return path_; }
  using Json = nlohmann::json;
  void event(const std::string& key, const Json& value, Json metadata = Json::object(),
             std::source_location where = std::source_location::current());
  void start(const std::string& key, Json metadata = Json::object(),
             std::source_location where = std::source_location::current());
  /// An interval that lies behind, from and to times of `now`.
  void interval(const std::string& first_key, const std::string& last_key, std::pair<int64_t, int64_t> times,
                std::source_location where = std::source_location::current());
  /// "init_start", at the time at which the program itself was started, or later.
  void init_start(int64_t earliest = 0, std::source_location where = std::source_location::current());
  static int64_t now();  ///< milliseconds since 1970
  void end(const std::string& key, Json metadata = Json::object(),
           std::source_location where = std::source_location::current());

 private:
  void write(const char* type, const std::string& key, const Json& value, Json metadata,
             const std::source_location& where, int64_t time = now());
  std::string path_;
  std::ofstream file_;
};

}  // namespace convoy::apps
