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
/// Nothing outside and in gaps: steps that are larger than both beside them, as no grid has by itself, whether it is
/// even or stretched. Half a cell beyond an end or into a gap still belongs to the outermost cell.
std::optional<Between> between(const std::vector<double>& axis, double at) {
  constexpr double rounding = 1e-9;
  const auto step = [&](size_t i) { return i + 1 < axis.size() ? axis[i + 1] - axis[i] : 0; };
  const size_t last = axis.size() - 1;
  if (at < axis[0] || last == 0)
    return axis[0] - at <= step(0) / 2 + rounding && at - axis[0] <= rounding ? std::optional(Between{0, 0, 0})
                                                                              : std::nullopt;
  const double end = step(last - 1) / 2 + rounding;
  if (at >= axis[last]) return at - axis[last] <= end ? std::optional(Between{last, last, 0}) : std::nullopt;
  const auto low = static_cast<size_t>(std::upper_bound(axis.begin(), axis.end(), at) - axis.begin()) - 1;
  const double before = low > 0 ? step(low - 1) : 0, after = step(low + 1), beside = std::max(before, after);
  if (beside == 0 || step(low) < 1.6 * beside) return Between{low, low + 1, (at - axis[low]) / step(low)};
  if (at - axis[low] <= (before > 0 ? before : after) / 2 + rounding) return Between{low, low, 0};
  if (axis[low + 1] - at <= (after > 0 ? after : before) / 2 + rounding) return Between{low + 1, low + 1, 0};
  return std::nullopt;
}

}  // namespace

std::vector<float> regrid(const GriddedField& f, int64_t height, int64_t width) {
  // One column more at either end closes the circle; where the field does not span it, the gap stays one.
  const size_t columns = f.longitude.size();
  std::vector<double> longitude = f.longitude;
  longitude.push_back(f.longitude.front() + 360);
  longitude.insert(longitude.begin(), f.longitude.back() - 360);
  const auto column = [&](size_t i) { return (i + columns - 1) % columns; };
  std::vector<float> out(static_cast<size_t>(height * width), NAN);
  for (int64_t h = 0; h < height; ++h) {
    const auto y = between(f.latitude, -90 + 180 * (double(h) + 0.5) / double(height));
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
