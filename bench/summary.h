// Runs of bench_layers merged: our best kernel per problem beside the library's best.
#pragma once

#include <string>
#include <vector>

namespace convoy::bench {

/// Prints our fastest kernel of each problem in all files beside the library's fastest (say, of builds with oneDNN
/// 2.6.3 and 3.x), and geometric means. Where the files hold a problem in several types, the last column compares with
/// the library's fastest in any of them, also where it has none in ours. Rows in which the library has only a fallback
/// stand in brackets and are left out of the means. `json`: also writes a line per problem to this file; empty: none.
/// `below`: also counts the problems whose ratio, of those in the mean, is below this, and names them, the lowest
/// first; 0: none. Throws Error(data) on files that are none of bench_layers, Error(runtime) where `json` cannot be
/// written.
void summarize(const std::vector<std::string>& paths, const std::string& json, double below = 0);

}  // namespace convoy::bench
