#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "io/netcdf.h"

namespace convoy {
namespace {

/// Position of `at` among ascending coordinates: the index below it and the share of the next; nothing outside.
struct Between {
  size_t low, high;
  double share;
};
std::optional<Between> between(const std::vector<double>& axis, double at) {
  if (axis.size() == 1) return at == axis[0] ? std::optional(Between{0, 0, 0}) : std::nullopt;
  // Half a cell beyond the ends still belongs to the outermost cell.
  const double margin = 0.5 * std::abs(axis[1] - axis[0]) + 1e-9;
  if (at < axis.front() - margin || at > axis.back() + margin) return std::nullopt;
  const auto next = std::upper_bound(axis.begin(), axis.end(), at);
  if (next == axis.begin()) return Between{0, 0, 0};
  if (next == axis.end()) return Between{axis.size() - 1, axis.size() - 1, 0};
  const auto high = static_cast<size_t>(next - axis.begin());
  return Between{high - 1, high, (at - axis[high - 1]) / (axis[high] - axis[high - 1])};
}

}  // namespace

std::vector<float> regrid(const GriddedField& f, int64_t height, int64_t width) {
  // A circle is closed by repeating its first column.
  std::vector<double> longitude = f.longitude;
  const size_t columns = longitude.size();
  const bool circle = columns > 1 && 360 - (longitude.back() - longitude.front()) < 1.5 * (longitude[1] - longitude[0]);
  if (circle) {
    longitude.push_back(longitude.front() + 360);
    longitude.insert(longitude.begin(), longitude[columns - 1] - 360);
  }
  const auto column = [&](size_t i) { return circle ? (i + columns - 1) % columns : i; };
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
  double sum = 0;
  int64_t valid = 0;
  for (float v : values)
    if (std::isfinite(v)) sum += double(v), ++valid;
  const auto missing = static_cast<int64_t>(values.size()) - valid;
  if (valid == 0) fail_data(what + ": every value is missing");
  if (missing == 0) return 0;
  const auto mean = float(sum / double(valid));
  for (int64_t h = 0; h < height; ++h) {
    const std::vector<float> row(values.begin() + h * width, values.begin() + (h + 1) * width);
    for (int64_t w = 0; w < width; ++w) {
      float& value = values[static_cast<size_t>(h * width + w)];
      for (int64_t d = 1; !std::isfinite(value) && d <= width / 2; ++d)
        for (int64_t neighbour : {w - d, w + d})
          if (const float v = row[static_cast<size_t>((neighbour + width) % width)]; std::isfinite(v)) value = v;
      if (!std::isfinite(value)) value = mean;
    }
  }
  return missing;
}

}  // namespace convoy
