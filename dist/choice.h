// Which algorithm runs an all-reduce: a wish, else the measured table, else the first of the list that fits.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"

namespace convoy {

enum class Algorithm : uint8_t { shared, direct, doubling, hierarchical, halving, ring, native };
std::string_view name_of(Algorithm algorithm);
/// Throws Error(usage) naming the known ones.
Algorithm parse_algorithm(std::string_view name);
std::span<const Algorithm> all_algorithms();

/// What an algorithm is asked for.
struct ReductionProblem {
  int64_t bytes = 0;
  std::vector<int> nodes;      ///< node of every rank
  bool shares_memory = false;  ///< the ranks of a node do
  bool native = false;         ///< the transport has an all-reduce of its own
  bool rank_order = false;     ///< deterministic mode: sums must run in rank order
  bool converts = false;       ///< data travel in another type
  int ranks() const { return static_cast<int>(nodes.size()); }
  int node_count() const;
  /// Ranks per node where all nodes have as many, else 0.
  int ranks_per_node() const;
};

Support supports(Algorithm algorithm, const ReductionProblem& problem);

/// Fastest algorithms by ranks, nodes and bytes, as bench_comm measured them: lines "ranks nodes bytes algorithm".
class CommunicationTable {
 public:
  /// Throws Error(data) naming file and line.
  static CommunicationTable load(const std::string& path);
  void save(const std::string& path) const;
  void set(int ranks, int nodes, int64_t bytes, Algorithm best) { best_[{ranks, nodes}][bytes] = best; }
  /// Whether it holds anything for so many.
  bool measured(int ranks, int nodes) const { return best_.contains({ranks, nodes}); }
  /// The entry of the nearest size (by ratio) for these ranks and nodes; null where none was measured.
  const Algorithm* find(const ReductionProblem& problem) const;

 private:
  std::map<std::pair<int, int>, std::map<int64_t, Algorithm>> best_;
};

struct CommunicationOptions {
  std::string algorithm;  ///< a wish for all sizes; empty: the table or the list
  CommunicationTable table;
  bool deterministic = false;  ///< sums in rank order: the same bits for any cut into buckets, any table
  int threads = 1;             ///< of a team that adds up long vectors (adding_threads); does not change their bits
};

struct AlgorithmChoice {
  Algorithm algorithm;
  std::string why;
};

/// Throws Error(usage) where the wished algorithm refuses.
AlgorithmChoice choose_algorithm(const ReductionProblem& problem, const CommunicationOptions& options);
/// One line per algorithm: name, "yes" or why it refuses.
std::string explain(const ReductionProblem& problem);

}  // namespace convoy
