#include "bench/summary.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "bench/kernel_kind.h"
#include "bench/measurements.h"
#include "bench/row_file.h"

namespace convoy::bench {
namespace {

/// Whether oneDNN ran its reference or a lowering to products for a convolution: no yardstick where it has no more.
/// Dense layers are products.
bool is_fallback(const Measurement& library) {
  const auto says = [&](const char* word) { return library.detail.find(word) != std::string::npos; };
  return says("ref") || (says("gemm") && !library.problem.starts_with("dense"));
}

/// A problem's text without the types of its tensors.
std::string geometry(std::string problem) {
  for (const char* type : {"bf16:", "f32:", "f16:"})
    for (size_t at; (at = problem.find(type)) != std::string::npos;) problem.erase(at, std::string(type).size());
  return problem;
}

void keep_faster(Measurement& best, const Measurement& m) {
  if (best.kernel.empty() || m.min_ms < best.min_ms) best = m;
}

struct BestOfBoth {
  Measurement ours, library;
  /// Ratios within one file, where both were timed minutes apart: of the file that has the library's fastest.
  std::optional<double> together;
  double together_ms = INFINITY;  ///< the library's there
};

/// All files together, problems in the order of their first rows.
struct Merged {
  std::vector<std::string> order;
  std::map<std::string, BestOfBoth> pairs;
  std::map<std::string, std::map<std::string, Measurement>> library_by_type;  ///< of a geometry
  std::set<std::string> yardsticks;  ///< problems, and geometries, for which the library has code of its own

  explicit Merged(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      std::map<std::string, BestOfBoth> own;  // of this file
      for (const Measurement& m : read_measurements(path).timed) {
        if (m.kernel == "reference") continue;
        BestOfBoth& here = own[m.problem];
        keep_faster(is_library(m.kernel) ? here.library : here.ours, m);
        if (!pairs.count(m.problem)) order.push_back(m.problem);
        BestOfBoth& pair = pairs[m.problem];
        keep_faster(is_library(m.kernel) ? pair.library : pair.ours, m);
        if (!is_library(m.kernel)) continue;
        keep_faster(library_by_type[geometry(m.problem)][m.dtype], m);
        if (!is_fallback(m)) yardsticks.insert({m.problem, geometry(m.problem)});
      }
      for (const auto& [problem, here] : own) {
        BestOfBoth& pair = pairs[problem];
        if (here.library.kernel.empty() || here.library.min_ms > pair.together_ms) continue;
        if (here.library.min_ms < pair.together_ms) pair.together.reset(), pair.together_ms = here.library.min_ms;
        if (!here.ours.kernel.empty()) pair.together = here.library.min_ms / here.ours.min_ms;
      }
    }
  }
  /// Whose times stand beside ours.
  std::string library_name() const {
    const bool device = std::any_of(pairs.begin(), pairs.end(),
                                    [](const auto& entry) { return entry.second.library.kernel.starts_with("cudnn"); });
    return device ? "cuDNN" : "oneDNN";
  }
  /// The library's fastest in any type; null where it has but ours.
  const Measurement* library_in_any_type(const Measurement& ours) const {
    const auto found = library_by_type.find(geometry(ours.problem));
    if (found == library_by_type.end()) return nullptr;
    const auto& types = found->second;
    if (types.size() == 1 && types.count(ours.dtype)) return nullptr;
    const auto faster = [](const auto& a, const auto& b) { return a.second.min_ms < b.second.min_ms; };
    return &std::min_element(types.begin(), types.end(), faster)->second;
  }
};

/// Geometric mean and the least of ratios.
class Mean {
 public:
  void add(double ratio) { sum_ += std::log(ratio), ++count_, least_ = std::min(least_, ratio); }
  int count() const { return count_; }
  std::string text() const {
    return fmt::format("geometric mean {:.3f}, smallest {:.3f}", std::exp(sum_ / count_), least_);
  }

 private:
  double sum_ = 0, least_ = INFINITY;
  int count_ = 0;
};

std::string ratio_text(std::optional<double> ratio, bool fallback) {
  if (!ratio) return "-";
  return fallback ? fmt::format("({:.2f})", *ratio) : fmt::format("{:.2f}", *ratio);
}

}  // namespace

void summarize(const std::vector<std::string>& paths, const std::string& json_path, double below) {
  const Merged merged(paths);
  RowFile file(json_path);
  fmt::print("{:<36} {:<5} {:<18} {:>10} {:>9} {:>8} {:>10} {:>8} {:>9}\n", "problem", "type", "kernel", "min ms",
             "GFLOP/s", "of peak", merged.library_name() + " ms", "ratio", "any type");
  Mean mean, together_mean, any_mean;
  std::multimap<double, const Measurement*> lacking;
  for (const std::string& problem : merged.order) {
    const auto& [ours, library, together, together_ms] = merged.pairs.at(problem);
    if (ours.kernel.empty()) continue;
    const Measurement* any = merged.library_in_any_type(ours);
    const bool fallback = !merged.yardsticks.count(problem), any_fallback = !merged.yardsticks.count(geometry(problem));
    std::optional<double> ratio, any_ratio;
    if (!library.kernel.empty()) ratio = library.min_ms / ours.min_ms;
    if (any) any_ratio = any->min_ms / ours.min_ms;
    fmt::print("{:<36} {:<5} {:<18} {:>10.3f} {:>9.1f} {:>8} {:>10} {:>8} {:>9}\n", ours.name, ours.dtype, ours.kernel,
               ours.min_ms, ours.gflops, ours.share > 0 ? fmt::format("{:.1f}%", 100 * ours.share) : "-",
               ratio ? fmt::format("{:.3f}", library.min_ms) : "-", ratio_text(ratio, fallback),
               ratio_text(any_ratio, any_fallback));
    if (ratio && !fallback) mean.add(*ratio);
    if (ratio && !fallback && *ratio < below) lacking.emplace(*ratio, &ours);
    if (together && !fallback) together_mean.add(*together);
    if (any_ratio && !any_fallback) any_mean.add(*any_ratio);
    nlohmann::json row = {
        {"name", ours.name},     {"pass", ours.pass},
        {"dtype", ours.dtype},   {"kernel", ours.kernel},
        {"detail", ours.detail}, {"min_ms", ours.min_ms},
        {"gflops", ours.gflops}, {"ceiling_share", ours.share > 0 ? nlohmann::json(ours.share) : nlohmann::json()},
        {"problem", problem}};
    if (ratio)
      row.update({{"library", library.libraries},
                  {"library_kernel", library.kernel},
                  {"library_detail", library.detail},
                  {"library_ms", library.min_ms},
                  {"fallback", fallback},
                  {"ratio", *ratio}});
    if (any_ratio) row.update({{"library_fastest_type", any->dtype}, {"ratio_any_type", *any_ratio}});
    file.row(row.dump());
  }
  if (mean.count())
    fmt::print("{} problems with a {} time of their own: {}\n", mean.count(), merged.library_name(), mean.text());
  if (paths.size() > 1 && together_mean.count())
    fmt::print("{} of them beside ours of the same file: {}\n", together_mean.count(), together_mean.text());
  if (any_mean.count())
    fmt::print("{} problems in several types, with the fastest of the library: {}\n", any_mean.count(),
               any_mean.text());
  if (below <= 0) return;
  fmt::print("{} of {} problems below {:g}\n", lacking.size(), mean.count(), below);
  for (const auto& [ratio, ours] : lacking)
    fmt::print("  {:<36} {:<5} {:>6.2f} {:>8} of the ceiling\n", ours->name, ours->dtype, ratio,
               ours->share > 0 ? fmt::format("{:.1f}%", 100 * ours->share) : "-");
}

}  // namespace convoy::bench
