// One kernel on one problem: as a line of the terminal, of JSON and of CSV.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "bench/candidate.h"
#include "bench/problem_list.h"
#include "kernels/roofline/roofs.h"

namespace convoy::bench {

/// The figures of a kernel that was timed. What cannot be told (no ceiling for the type, no library beside it) is
/// empty: null in JSON, an empty cell in CSV, "-" on the terminal.
struct LayerRow {
  const NamedProblem& named;
  const Candidate& candidate;
  double gflops = 0, gflops_valid = 0, gbs = 0;
  std::string ceiling_name;
  std::optional<double> ceiling_share, bandwidth_share;
  std::optional<double> library_ratio;  ///< the library's time over this one's

  /// `library_seconds`: of the fastest kernel of the library on the problem, 0 where none ran.
  LayerRow(const NamedProblem& named, const Candidate& candidate, const Roofs& roofs, double library_seconds);
  std::string terminal() const;
  /// The library's ratio is `cudnn_ratio` on a device, else `onednn_ratio`.
  std::string json() const;
  std::string csv() const;
};

/// The heads of the terminal's table and of the CSV file, whose column `onednn_ratio` is cuDNN's on a device.
std::string terminal_head(DeviceKind device);
std::string csv_head();

/// A JSON line about a kernel without a time: it refused the problem, or failed on it.
std::string refusal_json(const NamedProblem& named, std::string_view kernel, std::string_view reason);

}  // namespace convoy::bench
