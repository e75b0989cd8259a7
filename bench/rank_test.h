// Whether two samples of times differ by more than chance explains.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace convoy::bench {

/// The smallest p that two samples of these sizes can have: all of one below all of the other.
inline double least_p(size_t a, size_t b) {
  double ways = 1;
  for (size_t i = 1; i <= a; ++i) ways *= double(b + i) / double(i);
  return a < 3 || b < 3 ? 1 : std::min(1.0, 2 / ways);
}

/// Two-sided p of the Mann-Whitney rank test: how likely two samples of one distribution differ in rank this much.
/// Exact up to `exact_size` values a side without ties, else the normal approximation with tie correction. Five values
/// a side reach p = 0.008, four 0.029. 1 where either has fewer than three values.
inline double rank_test(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr size_t exact_size = 25;
  if (a.size() < 3 || b.size() < 3) return 1;
  std::vector<std::pair<double, int>> all;
  for (double v : a) all.emplace_back(v, 0);
  for (double v : b) all.emplace_back(v, 1);
  std::sort(all.begin(), all.end());
  const auto n = static_cast<double>(all.size()), na = static_cast<double>(a.size()),
             nb = static_cast<double>(b.size());
  double rank_sum = 0, ties = 0;
  for (size_t i = 0; i < all.size();) {
    size_t j = i;
    while (j < all.size() && all[j].first == all[i].first) ++j;
    const double rank = (double(i) + double(j) + 1) / 2, t = double(j - i);
    ties += t * t * t - t;
    for (; i < j; ++i)
      if (all[i].second == 0) rank_sum += rank;
  }
  const double u = rank_sum - na * (na + 1) / 2, mean = na * nb / 2;
  if (ties == 0 && std::max(a.size(), b.size()) <= exact_size) {
    // ways[i][s]: subsets of i of the ranks seen so far whose U is s. Each rank joins a or does not.
    const size_t most = a.size() * b.size();
    std::vector<std::vector<double>> ways(a.size() + 1, std::vector<double>(most + 1, 0.0));
    ways[0][0] = 1;
    for (size_t seen = 0; seen < all.size(); ++seen)
      for (size_t i = std::min(seen + 1, a.size()); i >= 1; --i) {
        // The value joins as the i-th of a: it exceeds seen - (i - 1) values of b.
        const size_t above = seen - (i - 1);
        for (size_t s = above; s <= most && above <= b.size(); ++s) ways[i][s] += ways[i - 1][s - above];
      }
    double total = 0, tail = 0;
    const double low = std::min(u, 2 * mean - u);
    for (size_t s = 0; s <= most; ++s) {
      total += ways[a.size()][s];
      if (double(s) <= low) tail += ways[a.size()][s];
    }
    return std::min(1.0, 2 * tail / total);
  }
  const double variance = na * nb / 12 * ((n + 1) - ties / (n * (n - 1)));
  return variance <= 0 ? 1 : std::erfc(std::abs(u - mean) / std::sqrt(2 * variance));
}

/// For each of many tests' p the least share of false differences among all that are at least as clear (Benjamini and
/// Hochberg 1995): with a hundred rows chance alone gives one of them p < 0.01.
inline std::vector<double> false_discovery(const std::vector<double>& p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  std::vector<double> q(p.size());
  double least = 1;
  for (size_t i = 0; i < order.size(); ++i) {
    least = std::min(least, p[order[i]] * double(p.size()) / double(p.size() - i));
    q[order[i]] = least;
  }
  return q;
}

}  // namespace convoy::bench
