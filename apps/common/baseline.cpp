#include "apps/common/baseline.h"

#include <array>
#include <cmath>

namespace convoy::apps {
namespace {

double log_variance(const Sample& s) {
  const auto* counts = reinterpret_cast<const int16_t*>(s.voxels.data());
  double sum = 0, squares = 0;
  const int64_t voxels = s.shape.elements() / s.shape.channels;
  for (int64_t i = 0; i < voxels; ++i) {
    const double c = counts[i * s.shape.channels];
    sum += c, squares += c * c;
  }
  const double mean = sum / double(voxels);
  return std::log(std::max(1e-6, squares / double(voxels) - mean * mean));
}

using Row = std::array<double, 3>;

/// Solves a 3x3 symmetric system by elimination with pivoting.
Row solve(std::array<Row, 3> a, Row b) {
  for (size_t i = 0; i < 3; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < 3; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    std::swap(a[i], a[pivot]), std::swap(b[i], b[pivot]);
    for (size_t r = i + 1; r < 3; ++r) {
      const double f = a[r][i] / a[i][i];
      for (size_t c = i; c < 3; ++c) a[r][c] -= f * a[i][c];
      b[r] -= f * b[i];
    }
  }
  Row x{};
  for (size_t i = 3; i-- > 0;) {
    x[i] = b[i];
    for (size_t c = i + 1; c < 3; ++c) x[i] -= a[i][c] * x[c];
    x[i] /= a[i][i];
  }
  return x;
}

Row features(double v) {
  return {1, v, v * v};
}

Sample read_counts(const SampleRef& ref, const ReadOptions& read, int64_t targets) {
  Sample s = read_sample(ref, read);
  if (s.shape.dtype != DType::i16) fail_usage("--baseline needs counts, " + ref.path + " holds " + s.shape.str());
  if (static_cast<int64_t>(s.target.size()) < targets)
    fail_data(ref.path + ": expected " + std::to_string(targets) + " targets, found " +
              std::to_string(s.target.size()));
  return s;
}

}  // namespace

Predictions variance_regression(const std::vector<SampleRef>& train, const std::vector<SampleRef>& validation,
                                const ReadOptions& read, int64_t targets) {
  std::vector<Row> rows;
  std::vector<std::vector<float>> labels;
  double centre = 0;
  for (const SampleRef& ref : train) {
    const Sample s = read_counts(ref, read, targets);
    rows.push_back({log_variance(s), 0, 0});
    centre += rows.back()[0] / double(train.size());
    labels.push_back(s.target);
  }
  std::array<Row, 3> normal{};
  for (Row& r : rows) {
    r = features(r[0] - centre);
    for (size_t i = 0; i < 3; ++i)
      for (size_t j = 0; j < 3; ++j) normal[i][j] += r[i] * r[j];
  }
  for (size_t i = 0; i < 3; ++i) normal[i][i] += 1e-9 * double(rows.size());  // few samples may not determine the curve
  const auto count = static_cast<size_t>(targets);
  std::vector<Row> weights;
  for (size_t t = 0; t < count; ++t) {
    Row right{};
    for (size_t k = 0; k < rows.size(); ++k)
      for (size_t i = 0; i < 3; ++i) right[i] += rows[k][i] * labels[k][t];
    weights.push_back(solve(normal, right));
  }
  Predictions result;
  result.targets = targets;
  for (const SampleRef& ref : validation) {
    const Sample s = read_counts(ref, read, targets);
    const Row f = features(log_variance(s) - centre);
    for (size_t t = 0; t < count; ++t) {
      result.predicted.push_back(float(f[0] * weights[t][0] + f[1] * weights[t][1] + f[2] * weights[t][2]));
      result.truth.push_back(s.target[t]);
    }
  }
  return result;
}

}  // namespace convoy::apps
