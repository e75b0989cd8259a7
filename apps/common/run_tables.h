// The tables of an output folder that grow while a run goes on: metrics.jsonl, a line per step, and history.csv, a row
// per epoch.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/task.h"

namespace convoy::apps {

/// One row of history.csv.
struct EpochRecord {
  int64_t epoch = 0;  ///< counted from 0
  double learning_rate = 0, loss = 0;
  Quality validation;
  double seconds = 0;
};

class RunTables {
 public:
  /// `folder`: empty on ranks that write none. Of a run that is resumed at a step the folder's lines of earlier ones
  /// stay. Throws Error(runtime) for files that cannot be written.
  void open(const std::string& folder, std::optional<int64_t> resumed_at);
  /// A line of metrics.jsonl.
  void add_step(const nlohmann::json& line);
  /// `metric`: what a task calls its measure.
  void write_history(const std::vector<EpochRecord>& history, std::string metric);
  /// Whether history.csv has fewer rows than epochs are done: its program was killed behind their checkpoint.
  bool lacks(const std::vector<EpochRecord>& history) const;
  /// What says that a table could not be written; empty where all were.
  std::string lost() const;

 private:
  std::string folder_, history_failure_;
  std::ofstream metrics_;
};

}  // namespace convoy::apps
