#include "apps/common/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace convoy::apps {
namespace {

constexpr double width = 420, height = 340, left = 66, right = 14, top = 34, bottom = 48;
constexpr const char* colours[svg_colours] = {"#1f6fb4", "#d1495b", "#3a8f5c", "#8e5ea2", "#e08e2b",
                                              "#4d4d4d", "#17a2b8", "#8c5a2b", "#d46fb3", "#8a9a1f"};

struct Axis {
  double low = 0, high = 1;
  Plot::Scale scale = Plot::Scale::linear;
  bool usable(double v) const { return std::isfinite(v) && (scale == Plot::Scale::linear || v > 0); }
  double map(double v) const { return scale == Plot::Scale::log ? std::log10(v) : v; }
};

Axis fit(const Plot& plot, Plot::Scale scale, bool use_x, bool use_y) {
  Axis axis{INFINITY, -INFINITY, scale};
  for (const Series& s : plot.series)
    for (const auto* values : {use_x ? &s.x : nullptr, use_y ? &s.y : nullptr})
      if (values)
        for (double v : *values)
          if (axis.usable(v)) axis.low = std::min(axis.low, axis.map(v)), axis.high = std::max(axis.high, axis.map(v));
  if (!(axis.low <= axis.high)) axis.low = 0, axis.high = 1;
  // Values that differ in their last bits count as one: no tick could lie between them.
  const double span = axis.high - axis.low, magnitude = std::max(std::abs(axis.low), std::abs(axis.high));
  const double margin = span > 1e-9 * magnitude ? 0.05 * span : std::max(0.5, 0.05 * magnitude);
  axis.low -= margin, axis.high += margin;
  return axis;
}

/// Round numbers from low to high, some five of them.
std::vector<double> round_numbers(double low, double high) {
  const double span = high - low, raw = span / 5, power = std::pow(10, std::floor(std::log10(raw)));
  const double step = raw / power < 1.5   ? power
                      : raw / power < 3.5 ? 2 * power
                      : raw / power < 7.5 ? 5 * power
                                          : 10 * power;
  std::vector<double> result;
  for (double t = std::ceil(low / step) * step; t <= high + 1e-9 * span; t += step)
    result.push_back(std::abs(t) < 1e-9 * span ? 0 : t);
  return result;
}

/// Round tick positions (in mapped units).
std::vector<double> ticks(const Axis& axis) {
  if (axis.scale != Plot::Scale::log) return round_numbers(axis.low, axis.high);
  // 1, 2, 5 per decade; powers of ten alone where those would crowd.
  std::vector<double> result;
  const bool crowded = axis.high - axis.low > 2.5;
  for (double decade = std::floor(axis.low); decade <= axis.high; ++decade)
    for (double digit : {1.0, 2.0, 5.0})
      if (const double t = decade + std::log10(digit); t >= axis.low && t <= axis.high && (digit == 1 || !crowded))
        result.push_back(t);
  // Few of these lie within a decade; between values that differ in their last bits no number does.
  const double low = std::pow(10, axis.low), high = std::pow(10, axis.high);
  if (result.size() >= 3 || crowded || high - low <= 1e-9 * high) return result;
  result.clear();
  for (double value : round_numbers(low, high))
    if (value > 0) result.push_back(std::log10(value));
  return result;
}

std::string tick_text(const Axis& axis, double t) {
  return fmt::format("{:.4g}", axis.scale == Plot::Scale::log ? std::pow(10, t) : t);
}

std::string escape(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

std::string render(const Plot& plot, double shift) {
  const Axis x = fit(plot, plot.x_scale, true, plot.diagonal), y = fit(plot, plot.y_scale, plot.diagonal, true);
  const double w = width - left - right, h = height - top - bottom;
  const auto px = [&](double t) { return shift + left + (t - x.low) / (x.high - x.low) * w; };
  const auto py = [&](double t) { return top + (1 - (t - y.low) / (y.high - y.low)) * h; };
  std::string svg = fmt::format("<text x='{:.1f}' y='20' text-anchor='middle' font-size='14'>{}</text>\n",
                                shift + left + w / 2, escape(plot.title));
  for (double t : ticks(x))
    svg += fmt::format(
        "<line x1='{0:.1f}' y1='{1:.1f}' x2='{0:.1f}' y2='{2:.1f}' stroke='#ddd'/><text x='{0:.1f}' y='{3:.1f}' "
        "text-anchor='middle'>{4}</text>\n",
        px(t), top, top + h, top + h + 15, tick_text(x, t));
  for (double t : ticks(y))
    svg += fmt::format(
        "<line x1='{1:.1f}' y1='{0:.1f}' x2='{2:.1f}' y2='{0:.1f}' stroke='#ddd'/><text x='{3:.1f}' y='{4:.1f}' "
        "text-anchor='end'>{5}</text>\n",
        py(t), shift + left, shift + left + w, shift + left - 6, py(t) + 4, tick_text(y, t));
  svg += fmt::format("<rect x='{:.1f}' y='{}' width='{:.1f}' height='{:.1f}' fill='none' stroke='#444'/>\n",
                     shift + left, top, w, h);
  svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>\n", shift + left + w / 2, top + h + 34,
                     escape(plot.x_label));
  svg += fmt::format("<text transform='translate({:.1f},{:.1f}) rotate(-90)' text-anchor='middle'>{}</text>\n",
                     shift + 14, top + h / 2, escape(plot.y_label));
  if (plot.diagonal)
    svg += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' stroke='#888' stroke-dasharray='4 3'/>\n",
                       px(x.low), py(x.low), px(x.high), py(x.high));
  const double names = plot.names_low ? top + h + 6 - 14 * double(plot.series.size()) : top + 16;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const Series& s = plot.series[i];
    const char* colour = colours[i % std::size(colours)];
    std::string path;
    for (size_t k = 0; k < std::min(s.x.size(), s.y.size()); ++k) {
      if (!x.usable(s.x[k]) || !y.usable(s.y[k])) continue;
      const double at_x = px(x.map(s.x[k])), at_y = py(y.map(s.y[k]));
      if (s.mark == Series::Mark::points)
        svg += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='2.6' fill='{}' fill-opacity='0.6'{}\n", at_x, at_y,
                           colour, k < s.titles.size() ? "><title>" + escape(s.titles[k]) + "</title></circle>" : "/>");
      else
        path += fmt::format("{:.1f},{:.1f} ", at_x, at_y);
    }
    if (!path.empty())
      svg += fmt::format("<polyline points='{}' fill='none' stroke='{}' stroke-width='1.6'{}/>\n", path, colour,
                         s.mark == Series::Mark::dashed ? " stroke-dasharray='5 4'" : "");
    if (plot.series.size() > 1)
      svg += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='end' fill='{}'>{}</text>\n", shift + left + w - 6,
                         names + 14 * double(i), colour, escape(s.name));
  }
  return svg;
}

}  // namespace

std::string render_svg(const std::vector<Plot>& plots) {
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' viewBox='0 0 {0} {1}' font-family='sans-serif' "
      "font-size='11'>\n"
      "<rect width='100%' height='100%' fill='white'/>\n",
      width * double(plots.size()), height);
  for (size_t i = 0; i < plots.size(); ++i) svg += render(plots[i], width * double(i));
  return svg + "</svg>\n";
}

}  // namespace convoy::apps
