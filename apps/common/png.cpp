#include "apps/common/png.h"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "io/file.h"

namespace convoy::apps {
namespace {

/// The value below which `share` of the field lies.
float percentile(std::vector<float> field, double share) {
  const auto at = field.begin() + static_cast<std::ptrdiff_t>(share * double(field.size() - 1));
  std::nth_element(field.begin(), at, field.end());
  return *at;
}

}  // namespace

void write_png(const std::string& path, const Picture& picture) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width);
  image.height = static_cast<png_uint_32>(picture.height);
  image.format = PNG_FORMAT_RGB;
  write_atomically(path, [&](const std::string& temporary) {
    if (!png_image_write_to_file(&image, temporary.c_str(), 0, picture.rgb.data(), 0, nullptr))
      fail_runtime(path + ": cannot write the picture: " + image.message);
  });
}

Picture draw_field(const std::vector<float>& field, const std::vector<uint8_t>& classes, int64_t height,
                   int64_t width) {
  constexpr int light[3] = {244, 246, 248}, dark[3] = {16, 52, 96}, tint[3][3] = {{}, {214, 39, 40}, {255, 140, 0}};
  const float low = percentile(field, 0.01), high = std::max(percentile(field, 0.99), std::nextafter(low, INFINITY));
  Picture picture(height, width);
  const auto class_at = [&](int64_t row, int64_t column) {
    row = std::clamp<int64_t>(row, 0, height - 1);
    return std::min<int>(classes[static_cast<size_t>(row * width + (column + width) % width)], 3);
  };
  for (int64_t row = 0; row < height; ++row)
    for (int64_t column = 0; column < width; ++column) {
      uint8_t* rgb = picture.pixel(height - 1 - row, column);
      const float value = field[static_cast<size_t>(row * width + column)];
      const float share = std::clamp((value - low) / (high - low), 0.0f, 1.0f);
      for (int i = 0; i < 3; ++i) rgb[i] = static_cast<uint8_t>(float(light[i]) + share * float(dark[i] - light[i]));
      if (classes.empty()) continue;
      const int own = class_at(row, column);
      if (own == 0 || own > 2) continue;
      const bool edge = class_at(row - 1, column) != own || class_at(row + 1, column) != own ||
                        class_at(row, column - 1) != own || class_at(row, column + 1) != own;
      for (int i = 0; i < 3; ++i)
        rgb[i] = static_cast<uint8_t>(edge ? tint[own][i] : (2 * int(rgb[i]) + tint[own][i]) / 3);
    }
  return picture;
}

Picture side_by_side(const Picture& left, const Picture& right) {
  constexpr int64_t gap = 12;
  Picture both(left.height, left.width + gap + right.width);
  std::fill(both.rgb.begin(), both.rgb.end(), uint8_t{255});
  for (int64_t row = 0; row < left.height; ++row) {
    std::memcpy(both.pixel(row, 0), &left.rgb[static_cast<size_t>(3 * row * left.width)],
                static_cast<size_t>(3 * left.width));
    std::memcpy(both.pixel(row, left.width + gap), &right.rgb[static_cast<size_t>(3 * row * right.width)],
                static_cast<size_t>(3 * right.width));
  }
  return both;
}

}  // namespace convoy::apps
