#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "io/netcdf.h"

namespace convoy {
namespace {

/// Ascending coordinates and the distance that most neighbours have.
struct Line {
  std::vector<double> at;
  double usual = 0;
};
Line line_of(std::vector<double> coordinates) {
  Line line{std::move(coordinates), 0};
  std::vector<double> steps;
  for (size_t i = 1; i < line.at.size(); ++i) steps.push_back(line.at[i] - line.at[i - 1]);
  if (steps.empty()) return line;
  std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end());
  line.usual = steps[steps.size() / 2];
  return line;
}

/// Position of `at` among coordinates: the index below it and the share of the next; nothing outside and in gaps. Half
/// a cell beyond the ends still belongs to the outermost cell.
struct Between {
  size_t low, high;
  double share;
};
std::optional<Between> between(const Line& line, double at) {
  const std::vector<double>& axis = line.at;
  const double margin = 0.5 * line.usual + 1e-9;
  if (at < axis.front() - margin || at > axis.back() + margin) return std::nullopt;
  const auto next = std::upper_bound(axis.begin(), axis.end(), at);
  if (next == axis.begin()) return Between{0, 0, 0};
  const auto high = static_cast<size_t>(next - axis.begin());
  if (next == axis.end()) return Between{high - 1, high - 1, 0};
  const double width = axis[high] - axis[high - 1], share = (at - axis[high - 1]) / width;
  if (width < 1.6 * line.usual) return Between{high - 1, high, share};
  if (at - axis[high - 1] <= margin) return Between{high - 1, high - 1, 0};
  if (axis[high] - at <= margin) return Between{high, high, 0};
  return std::nullopt;
}

}  // namespace

std::vector<float> regrid(const GriddedField& f, int64_t height, int64_t width) {
  // One column more at either end closes the circle; where the field does not span it, the gap stays one.
  const size_t columns = f.longitude.size();
  const Line latitude = line_of(f.latitude);
  Line longitude = line_of(f.longitude);
  longitude.at.push_back(f.longitude.front() + 360);
  longitude.at.insert(longitude.at.begin(), f.longitude.back() - 360);
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
