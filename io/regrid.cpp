#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "io/netcdf.h"

namespace convoy {
namespace {

/// Position of a place among ascending coordinates: the index below it and the share of the next.
struct Between {
  size_t low, high;
  double share;
};

/// Ascending coordinates, and between them the steps that are usual where each lies: a grid may be stretched.
struct Line {
  std::vector<double> at, usual;
};

/// The (lower) median of the nine steps around each, so that a step of more than 1.6 times as much is a gap, also
/// beside another. On a circle the first follows the last.
std::vector<double> usual_steps(const std::vector<double>& steps, bool circle) {
  constexpr int64_t around = 4;
  const auto count = static_cast<int64_t>(steps.size());
  std::vector<double> usual;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = circle ? i - std::min(around, (count - 1) / 2) : std::max<int64_t>(0, i - around),
                  last = circle ? first + std::min(2 * around + 1, count) : std::min(count, i + around + 1);
    std::vector<double> near;
    for (int64_t j = first; j < last; ++j) near.push_back(steps[static_cast<size_t>((j + count) % count)]);
    const auto middle = near.begin() + (std::ssize(near) - 1) / 2;
    std::nth_element(near.begin(), middle, near.end());
    usual.push_back(*middle);
  }
  return usual;
}

std::vector<double> steps_of(const std::vector<double>& at) {
  std::vector<double> steps;
  for (size_t i = 1; i < at.size(); ++i) steps.push_back(at[i] - at[i - 1]);
  return steps;
}

Line latitude_line(const std::vector<double>& at) {
  return {at, usual_steps(steps_of(at), false)};
}

/// One column more at either end closes the circle; where the field does not span it, the gap stays one.
Line longitude_line(const std::vector<double>& at) {
  if (at.size() == 1) return {at, {}};
  std::vector<double> steps = steps_of(at);
  steps.push_back(at.front() + 360 - at.back());
  Line line{at, usual_steps(steps, true)};
  line.at.insert(line.at.begin(), at.back() - 360), line.at.push_back(at.front() + 360);
  line.usual.insert(line.usual.begin(), line.usual.back());
  return line;
}

/// Nothing outside and in gaps. Half a usual step beyond an end or into a gap still belongs to the outermost cell.
std::optional<Between> between(const Line& line, double at) {
  constexpr double rounding = 1e-9;
  const std::vector<double>& axis = line.at;
  const size_t last = axis.size() - 1;
  const auto half = [&](size_t step) { return (step < last ? line.usual[step] / 2 : 0) + rounding; };
  if (at < axis[0]) return axis[0] - at <= half(0) ? std::optional(Between{0, 0, 0}) : std::nullopt;
  if (at >= axis[last])
    return at - axis[last] <= half(last > 0 ? last - 1 : 0) ? std::optional(Between{last, last, 0}) : std::nullopt;
  const auto low = static_cast<size_t>(std::upper_bound(axis.begin(), axis.end(), at) - axis.begin()) - 1;
  const double step = axis[low + 1] - axis[low];
  if (step <= 1.6 * line.usual[low]) {
    // Coordinates are rounded, at 360 degrees in f32 by 1.5e-5: a position that is meant has no neighbour, whose value
    // may be missing.
    const double meant = std::max(1e-5, 2.2e-5 / step);
    const double share = (at - axis[low]) / step;
    if (share < meant) return Between{low, low, 0};
    if (share > 1 - meant) return Between{low + 1, low + 1, 0};
    return Between{low, low + 1, share};
  }
  if (at - axis[low] <= half(low)) return Between{low, low, 0};
  if (axis[low + 1] - at <= half(low)) return Between{low + 1, low + 1, 0};
  return std::nullopt;
}

}  // namespace

std::vector<float> regrid(const GriddedField& f, int64_t height, int64_t width) {
  const size_t columns = f.longitude.size();
  const Line latitude = latitude_line(f.latitude), longitude = longitude_line(f.longitude);
  const auto column = [&](size_t i) { return (i + columns - 1) % columns; };
  std::vector<float> out(static_cast<size_t>(height * width), NAN);
  for (int64_t h = 0; h < height; ++h) {
    const auto y = between(latitude, -90 + 180 * (double(h) + 0.5) / double(height));
    if (!y) continue;
    for (int64_t w = 0; w < width; ++w) {
      const auto x = between(longitude, 360 * double(w) / double(width));
      if (!x) continue;
      const auto row = [&](size_t r) {
        const double left = double(f.at(r, column(x->low))), right = double(f.at(r, column(x->high)));
        return x->share == 0 ? left : left + x->share * (right - left);
      };
      const double low = row(y->low);
      out[static_cast<size_t>(h * width + w)] = float(y->share == 0 ? low : low + y->share * (row(y->high) - low));
    }
  }
  return out;
}

int64_t fill_missing(std::vector<float>& values, int64_t height, int64_t width, const std::string& what) {
  const auto missing = std::count_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  if (missing == static_cast<int64_t>(values.size())) fail_data(what + ": every value is missing");
  if (missing == 0) return 0;
  std::vector<int64_t> filled;  // rows with a value
  for (int64_t h = 0; h < height; ++h) {
    const std::vector<float> row(values.begin() + h * width, values.begin() + (h + 1) * width);
    if (std::none_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); })) continue;
    filled.push_back(h);
    for (int64_t w = 0; w < width; ++w) {
      float& value = values[static_cast<size_t>(h * width + w)];
      for (int64_t d = 1; !std::isfinite(value) && d <= width / 2; ++d)
        for (int64_t neighbour : {w - d, w + d})
          if (const float v = row[static_cast<size_t>((neighbour + width) % width)]; std::isfinite(v)) value = v;
    }
  }
  for (int64_t h = 0; h < height; ++h) {
    const int64_t from = *std::min_element(filled.begin(), filled.end(),
                                           [&](int64_t a, int64_t b) { return std::abs(a - h) < std::abs(b - h); });
    if (from != h) std::copy_n(values.begin() + from * width, width, values.begin() + h * width);
  }
  return missing;
}

}  // namespace convoy
