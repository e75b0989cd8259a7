#include "bench/measurements.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

#include "kernels/roofline/roofs.h"
#include "core/error.h"

namespace convoy::bench {
namespace {

using nlohmann::json;

template <class T>
T value_or(const json& row, const char* key, const T& otherwise) {
  const auto found = row.find(key);
  return found == row.end() || found->is_null() ? otherwise : found->get<T>();
}

class Reader {
 public:
  explicit Reader(const std::string& path) { result_.path = path; }
  void read(const json& row) {
    if (row.contains("ceiling")) result_.ceilings[row["ceiling"]] = value_or(row, "value", 0.0);
    if (row.contains("libraries")) read_head(row);
    if (row.contains("changed_ceilings")) result_.changed_ceilings.push_back(row["changed_ceilings"]);
    if (!row.contains("problem") || !row.contains("kernel")) return;
    if (!row.contains("min_ms") && !row.contains("refused")) return;
    RowName name{value_or<std::string>(row, "name", ""), value_or<std::string>(row, "pass", ""),
                 value_or<std::string>(row, "dtype", ""), row["kernel"], row["problem"]};
    name.occurrence = occurrences_[{name.problem, name.kernel}]++;
    if (row.contains("refused")) return result_.refused.push_back(std::move(name));
    if (row.value("correct", json(true)) == json(false)) return result_.wrong.push_back(std::move(name));
    Measurement m;
    static_cast<RowName&>(m) = std::move(name);
    m.detail = value_or<std::string>(row, "detail", "");
    m.libraries = libraries_;
    m.min_ms = value_or(row, "min_ms", 0.0), m.median_ms = value_or(row, "median_ms", 0.0);
    m.gflops = value_or(row, "gflops", 0.0), m.flop_per_byte = value_or(row, "flop_per_byte", 0.0);
    m.samples = value_or(row, "samples_ms", std::vector<double>{});
    if (!(m.min_ms > 0 && m.median_ms > 0)) return;
    if (const double roof = machine_ceiling(result_.ceilings, m.dtype).second; roof > 0) m.share = m.gflops / roof;
    result_.timed.push_back(std::move(m));
  }
  Measurements take() { return std::move(result_); }

 private:
  void read_head(const json& row) {
    libraries_ = row["libraries"];
    for (const char* name : {"machine", "threads", "commit", "CONVOY_MAX_ISA", "cold"})
      if (const auto value = row.find(name); value != row.end())
        result_.conditions[name].insert(value->is_string() ? value->get<std::string>() : value->dump());
  }

  Measurements result_;
  std::string libraries_;                                           // of the rows that follow
  std::map<std::pair<std::string, std::string>, int> occurrences_;  // of problem and kernel so far
};

}  // namespace

void Measurements::forget_threads() {
  const auto forget = [](RowName& row) {
    row.problem.resize(std::min(row.problem.size(), row.problem.rfind(" threads=")));
  };
  for (Measurement& m : timed) forget(m);
  for (auto* rows : {&wrong, &refused})
    for (RowName& row : *rows) forget(row);
}

Measurements read_measurements(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail_data(path + ": cannot open the measurements");
  Reader reader(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const json row = json::parse(line, nullptr, false);
    if (row.is_discarded() || !row.is_object())
      fail_data(fmt::format("{}:{}: expected a JSON object, found \"{}\"", path, number, line.substr(0, 60)));
    try {
      reader.read(row);
    } catch (const json::exception& error) {
      fail_data(fmt::format("{}:{}: expected a row of bench_layers, found \"{}\": {}", path, number, line.substr(0, 60),
                            error.what()));
    }
  }
  Measurements all = reader.take();
  if (all.timed.empty() && all.wrong.empty()) fail_data(path + ": holds no measurement of bench_layers");
  return all;
}

}  // namespace convoy::bench
