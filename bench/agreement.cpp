#include "bench/agreement.h"

#include <algorithm>
#include <cmath>

#include "bench/pixel_pairs.h"
#include "core/dtype.h"
#include "core/parallel.h"

namespace convoy::bench {
namespace {

/// The sum of f over all elements of both, the same for any number of threads.
template <class T, class F>
double sum_over(const PixelPairs<T>& pairs, F&& f) {
  const int64_t chunk = std::max<int64_t>(1, (1 << 16) / pairs.channels());
  std::vector<double> partial(static_cast<size_t>(ceil_div(pairs.pixels(), chunk)));
  parallel_ranges(static_cast<int64_t>(partial.size()), default_threads(), 1, [&](Range r) {
    for (int64_t k = r.begin; k < r.end; ++k) {
      double sum = 0;
      pairs.for_each(k * chunk, std::min(pairs.pixels(), (k + 1) * chunk),
                     [&](double found, double right) { sum += f(found, right); });
      partial[static_cast<size_t>(k)] = sum;
    }
  });
  double total = 0;
  for (double sum : partial) total += sum;
  return total;
}

bool agree(const Candidate& a, const Candidate& b, bool narrow) {
  for (size_t i = 0; i < a.results().size(); ++i)
    if (!agree_on_host(a.results()[i], b.results()[i], narrow)) return false;
  return true;
}

}  // namespace

bool agree_on_host(const Tensor& a, const Tensor& b, bool narrow) {
  const double count = double(std::max<int64_t>(1, a.shape().elements()));
  bool same = true;
  dispatch_dtype(a.dtype(), [&](auto zero) {
    const PixelPairs<decltype(zero)> pairs(a, b);
    if (!is_float(a.dtype())) {
      const double others = sum_over(pairs, [](double found, double right) { return double(found != right); });
      same = others <= 1 + 0.02 * count;
      return;
    }
    const double squares =
        sum_over(pairs, [](double, double right) { return std::isfinite(right) ? right * right : 0; });
    // Winograd's largest errors are 1.5e-3 of the root mean square in f32; sums in f16 err by a tenth of it.
    const double tolerance = narrow ? 0.3 : 0.01, size = std::sqrt(squares / count);
    same = sum_over(pairs, [=](double found, double right) {
             if (found == right || (std::isnan(found) && std::isnan(right))) return 0.0;
             return double(!(std::abs(found - right) <= tolerance * std::max(size, std::abs(right)) + 1e-30));
           }) == 0;
  });
  return same;
}

void mark_disagreement(const std::vector<std::unique_ptr<Candidate>>& candidates, bool narrow,
                       const std::vector<std::unique_ptr<Candidate>>& referees) {
  std::vector<Candidate*> voters;
  for (const auto* list : {&candidates, &referees})
    for (const auto& c : *list)
      if (!c->wrong) voters.push_back(c.get());
  for (const Candidate* pivot : voters) {
    std::vector<Candidate*> others;
    for (Candidate* c : voters)
      if (c != pivot && !agree(*c, *pivot, narrow)) others.push_back(c);
    if (2 * others.size() >= voters.size()) continue;
    for (Candidate* c : others) c->wrong = true;
    return;
  }
  const bool one_is_known = voters.size() == 2 && voters[0]->checked != voters[1]->checked;
  for (Candidate* c : voters) c->wrong = !one_is_known || !c->checked;
}

}  // namespace convoy::bench
