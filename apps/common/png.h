// Pictures of climate images.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::apps {

/// Red, green, blue per pixel, rows from top to bottom.
struct Picture {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;
  Picture(int64_t h, int64_t w) : height(h), width(w), rgb(static_cast<size_t>(3 * h * w)) {}
  uint8_t* pixel(int64_t row, int64_t column) { return &rgb[static_cast<size_t>(3 * (row * width + column))]; }
};

/// Writes a PNG; throws Error(runtime) when that fails.
void write_png(const std::string& path, const Picture& picture);

/// A field from light grey to dark blue between its 1st and 99th percentile, classes outlined and tinted on top
/// (cyclones red, rivers orange). Row 0 of the data is the bottom of the picture: south. `classes` may be empty.
Picture draw_field(const std::vector<float>& field, const std::vector<uint8_t>& classes, int64_t height, int64_t width);
/// Two pictures of equal height with a gap between them.
Picture side_by_side(const Picture& left, const Picture& right);

}  // namespace convoy::apps
