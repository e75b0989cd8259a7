// Images of noise for tests of the climate networks.
#pragma once

#include <cstddef>

#include "core/philox.h"
#include "io/loader.h"

namespace convoy::testing {

/// Brighter from one to the next; classes in stripes, other ones in every image.
class NoiseImages final : public SampleSource {
 public:
  static constexpr int64_t height = 32, width = 48, channels = 16;
  explicit NoiseImages(int64_t count, float scale = 1) : count_(count), scale_(scale) {}
  int64_t size() const override { return count_; }
  int64_t input_bytes() const override { return height * width * channels * 4; }
  int64_t target_bytes() const override { return height * width; }
  void load(int64_t sample, int64_t, std::byte* input, std::byte* target) const override {
    const PhiloxStream random(3, static_cast<uint64_t>(sample));
    auto* x = reinterpret_cast<float*>(input);
    for (int64_t i = 0; i < height * width * channels; ++i)
      x[i] = scale_ * (random.uniform(static_cast<uint64_t>(i)) * float(sample + 1) + float(sample));
    if (target)
      for (int64_t i = 0; i < height * width; ++i) target[i] = static_cast<std::byte>((i / 7 + sample) % 3);
  }

 private:
  int64_t count_;
  float scale_;
};

}  // namespace convoy::testing
