#include "apps/common/run_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>

#include "core/error.h"
#include "io/file.h"

namespace convoy::apps {
namespace {

/// Drops the lines of an interrupted run that the resumed one will write again, and one that was cut off.
void keep_lines_before(const std::string& path, int64_t step) {
  std::ifstream in(path);
  std::string line, kept;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    if (parsed.is_discarded()) continue;
    if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number())
      fail_data(fmt::format("{}:{}: expected an object with a step, found {}", path, number, line.substr(0, 80)));
    if (parsed["step"].get<int64_t>() < step) kept += line + "\n";
  }
  if (in.eof()) write_text(path, kept);
}

}  // namespace

void RunTables::open(const std::string& folder, std::optional<int64_t> resumed_at) {
  folder_ = folder;
  const std::string path = folder.empty() ? "/dev/null" : folder + "/metrics.jsonl";
  if (!folder.empty())  // a pipe would be waited for, and a folder found when there is something to lose
    for (const char* name : {"metrics.jsonl", "history.csv", "summary.json"}) expect_replaceable(folder + "/" + name);
  if (resumed_at && !folder.empty() && std::filesystem::exists(path)) keep_lines_before(path, *resumed_at);
  metrics_.open(path, resumed_at ? std::ios::app : std::ios::trunc);
  if (!metrics_) fail_runtime(path + ": cannot open for writing");
}

void RunTables::add_step(const nlohmann::json& line) {
  metrics_ << line.dump() << std::endl;
}

void RunTables::write_history(const std::vector<EpochRecord>& history, std::string metric) {
  for (char& c : metric) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string text = "epoch,lr,loss,val_loss,val_" + metric + ",time\n";
  for (const EpochRecord& r : history)
    text += fmt::format("{},{:.9g},{:.9g},{:.9g},{:.9g},{:.3f}\n", r.epoch, r.learning_rate, r.loss, r.validation.loss,
                        r.validation.metric, r.seconds);
  history_failure_.clear();
  try {
    write_text(folder_ + "/history.csv", text);
  } catch (const Error& error) {
    history_failure_ = error.what();
  }
}

bool RunTables::lacks(const std::vector<EpochRecord>& history) const {
  std::ifstream in(folder_ + "/history.csv");
  const auto lines = std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  return lines < 1 + std::ssize(history);
}

std::string RunTables::lost() const {
  if (!metrics_) return folder_ + "/metrics.jsonl: cannot write (disk full?)";
  return history_failure_;
}

}  // namespace convoy::apps
