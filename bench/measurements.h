// What a file of bench_layers' JSON lines holds.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace convoy::bench {

/// A kernel and the problem that it was asked to run.
struct RowName {
  std::string name, pass, dtype, kernel, problem;
  int occurrence = 0;  ///< of this problem and kernel in the file, in its order
  std::string key() const { return problem + " " + kernel + " " + std::to_string(occurrence); }
  std::string text() const { return name + " " + dtype + " " + kernel; }
};

struct Measurement : RowName {
  std::string detail;
  std::string libraries;  ///< that were beside it; empty in older files
  double min_ms = 0, median_ms = 0, gflops = 0, flop_per_byte = 0;
  double share = 0;  ///< of the run's own ceiling for the type; 0: it has none
  std::vector<double> samples;
};

struct Measurements {
  std::string path;
  std::vector<Measurement> timed;       ///< with right results, as far as they were checked
  std::vector<RowName> wrong, refused;  ///< refused: or failed
  std::map<std::string, double> ceilings;
  /// machine, threads, commit, CONVOY_MAX_ISA, cold: a value for each that the file's runs differ in; none where the
  /// file does not say.
  std::map<std::string, std::set<std::string>> conditions;
  std::vector<std::string> changed_ceilings;  ///< what each run of the file says of the machine at its end
  /// Takes the threads out of all problems: what is left can be found in a run on another number of them.
  void forget_threads();
};

/// Throws Error(data) naming the line; rows of other benches are left out. Numbers that a run cannot tell are null, in
/// older files 0.
Measurements read_measurements(const std::string& path);

}  // namespace convoy::bench
