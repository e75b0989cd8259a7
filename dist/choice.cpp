#include "dist/choice.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "core/replace_file.h"
#include "core/text.h"
#include "dist/schedule.h"

namespace convoy {
namespace {

constexpr Algorithm list[] = {Algorithm::shared,  Algorithm::direct, Algorithm::doubling, Algorithm::hierarchical,
                              Algorithm::halving, Algorithm::ring,   Algorithm::native};

/// Below this, the number of rounds costs more than the bytes.
constexpr int64_t short_vector = 16 << 10;

bool power_of_two(int n) {
  return (n & (n - 1)) == 0;
}

/// Whether the list's order alone would run an algorithm here; a wish and the table may run it anywhere it is right.
bool fits(Algorithm algorithm, const ReductionProblem& p) {
  switch (algorithm) {
    case Algorithm::direct:
      return p.rank_order || (p.bytes <= short_vector && p.ranks() <= 4);
    case Algorithm::doubling:
      return p.bytes <= short_vector;
    case Algorithm::halving:
      return power_of_two(p.ranks());
    default:
      return true;
  }
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  constexpr std::string_view names[] = {"shared", "direct", "doubling", "hierarchical", "halving", "ring", "mpi"};
  return names[static_cast<size_t>(algorithm)];
}

Algorithm parse_algorithm(std::string_view name) {
  std::string known;
  for (Algorithm a : list) {
    if (name_of(a) == name) return a;
    known += (known.empty() ? "" : ", ") + std::string(name_of(a));
  }
  fail_usage("all-reduce algorithm: expected one of " + known + ", found " + std::string(name));
}

std::span<const Algorithm> all_algorithms() {
  return list;
}

int ReductionProblem::node_count() const {
  return nodes.empty() ? 0 : *std::max_element(nodes.begin(), nodes.end()) + 1;
}

int ReductionProblem::ranks_per_node() const {
  const int count = node_count(), each = count ? ranks() / count : 0;
  for (int n = 0; n < count; ++n)
    if (std::count(nodes.begin(), nodes.end(), n) != each) return 0;
  return each;
}

Support supports(Algorithm algorithm, const ReductionProblem& p) {
  const bool in_rank_order = algorithm == Algorithm::shared || algorithm == Algorithm::direct;
  if (p.rank_order && !in_rank_order) return Support::no("does not add in rank order");
  switch (algorithm) {
    case Algorithm::shared:
      if (p.node_count() > 1) return Support::no("ranks run on " + std::to_string(p.node_count()) + " nodes");
      return p.shares_memory ? Support::yes() : Support::no("no memory is shared");
    case Algorithm::hierarchical:
      if (p.node_count() < 2) return Support::no("all ranks run on one node");
      if (p.ranks_per_node() < 2) return Support::no("needs the same number of ranks, at least two, on every node");
      return p.shares_memory ? Support::yes() : Support::no("no memory is shared");
    case Algorithm::direct:
      if (p.ranks() > most_peers && !p.rank_order)
        return Support::no("more than " + std::to_string(most_peers) + " ranks");
      return Support::yes();
    case Algorithm::doubling:
      return p.converts ? Support::no("ranks would round differently") : Support::yes();
    case Algorithm::native:
      if (p.converts) return Support::no("cannot send another type than it adds");
      if (p.bytes > INT32_MAX) return Support::no("its counts end at 2^31 - 1");
      return p.native ? Support::yes() : Support::no("ranks are not connected by MPI");
    default:
      return Support::yes();
  }
}

CommunicationTable CommunicationTable::load(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail_data(path + ": cannot open");
  CommunicationTable table;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    int ranks = 0, nodes = 0;
    int64_t bytes = 0;
    std::string name;
    if (!(fields >> ranks >> nodes >> bytes >> name) || ranks < 1 || nodes < 1 || bytes < 1)
      fail_data(path + " line " + std::to_string(number) + ": expected \"ranks nodes bytes algorithm\", found " + line);
    try {
      table.set(ranks, nodes, bytes, parse_algorithm(name));
    } catch (const Error& error) {
      fail_data(path + " line " + std::to_string(number) + ": " + error.what());
    }
  }
  if (in.bad()) fail_data(path + ": cannot read");
  return table;
}

void CommunicationTable::save(const std::string& path) const {
  std::ostringstream out;
  out << "# ranks nodes bytes algorithm\n";
  for (const auto& [where, sizes] : best_)
    for (const auto& [bytes, algorithm] : sizes)
      out << where.first << ' ' << where.second << ' ' << bytes << ' ' << name_of(algorithm) << '\n';
  replace_file(path, out.view());
}

const Algorithm* CommunicationTable::find(const ReductionProblem& p) const {
  const auto sizes = best_.find({p.ranks(), p.node_count()});
  if (sizes == best_.end()) return nullptr;
  const auto distance = [&](int64_t bytes) {
    return std::fabs(std::log(double(bytes)) - std::log(double(std::max<int64_t>(1, p.bytes))));
  };
  const auto nearest = std::min_element(sizes->second.begin(), sizes->second.end(), [&](const auto& a, const auto& b) {
    return distance(a.first) < distance(b.first);
  });
  return &nearest->second;
}

AlgorithmChoice choose_algorithm(const ReductionProblem& p, const CommunicationOptions& o) {
  if (!o.algorithm.empty()) {
    const Algorithm wish = parse_algorithm(o.algorithm);
    if (const Support s = supports(wish, p); !s.ok)
      fail_usage("all-reduce algorithm " + o.algorithm + " refuses " + std::to_string(p.bytes) + " bytes: " + s.reason);
    return {wish, "wished"};
  }
  if (const Algorithm* best = o.table.find(p); best && supports(*best, p).ok) return {*best, "measured"};
  for (Algorithm a : list)
    if (supports(a, p).ok && fits(a, p)) return {a, "first"};
  fail_runtime("no all-reduce algorithm fits");
}

std::string explain(const ReductionProblem& p) {
  std::string text;
  for (Algorithm a : list) {
    const Support s = supports(a, p);
    text += "    " + std::string(name_of(a)) + ": " + (s.ok ? "yes" : s.reason) + "\n";
  }
  return text;
}

}  // namespace convoy
