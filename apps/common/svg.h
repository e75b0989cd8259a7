// Small SVG plots: no library, no display.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace convoy::apps {

struct Series {
  std::string name;
  std::vector<double> x, y;
  enum class Mark : unsigned char { line, points, dashed } mark = Mark::line;
  std::vector<std::string> titles{};  ///< of points, which viewers show under the pointer; as many as points, or none
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
  enum class Scale : unsigned char { linear, log } x_scale = Scale::linear, y_scale = Scale::linear;
  bool diagonal = false;   ///< draw y = x and use one range for both axes
  bool names_low = false;  ///< names of the series in the lower right corner instead of the upper right one
};

/// Series of one plot have different colours up to so many.
inline constexpr size_t svg_colours = 10;

/// Plots side by side in one SVG document. Points that are not finite, or not positive on a log axis, are left out.
std::string render_svg(const std::vector<Plot>& plots);

}  // namespace convoy::apps
