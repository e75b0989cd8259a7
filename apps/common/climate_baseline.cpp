#include "apps/common/climate_baseline.h"

#include <array>
#include <cmath>

#include "core/philox.h"

namespace convoy::apps {
namespace {

constexpr size_t classes = 3;

struct Pixels {
  std::vector<float> values;  ///< (pixel, channel)
  std::vector<uint8_t> labels;
  std::vector<double> weights;
};

struct Image {
  std::vector<float> values;
  std::vector<uint8_t> labels;
};

Image load(const ClimateSource& source, int64_t sample) {
  Image image;
  image.values.resize(static_cast<size_t>(source.input_bytes()) / sizeof(float));
  image.labels.resize(static_cast<size_t>(source.target_bytes()));
  source.load(sample, 0, reinterpret_cast<std::byte*>(image.values.data()),
              reinterpret_cast<std::byte*>(image.labels.data()));
  return image;
}

/// Some 30000 pixels, or all there are: up to `each` of a class per image, which stand for as many as their class has
/// for each that was drawn; of large sets evenly spaced images, so that neither time nor memory grows with them.
Pixels draw_pixels(const ClimateSource& source, const PixelLossAttrs& loss) {
  constexpr int64_t wanted = 30000 / int64_t{classes}, least = 20;  // pixels of a class: in all, of an image
  const int64_t images = std::min(source.size(), wanted / least), each = wanted / images;
  Pixels p;
  const auto channels = static_cast<size_t>(source.channels());
  for (int64_t drawn = 0; drawn < images; ++drawn) {
    const int64_t i = drawn * source.size() / images;
    const Image image = load(source, i);
    std::array<std::vector<size_t>, classes> members;
    for (size_t k = 0; k < image.labels.size(); ++k)
      if (image.labels[k] < classes) members[image.labels[k]].push_back(k);
    const PhiloxStream random(static_cast<uint64_t>(i), hash_name("baseline"));
    for (size_t c = 0; c < classes; ++c) {
      const auto found = static_cast<int64_t>(members[c].size()), taken = std::min(found, each);
      for (int64_t k = 0; k < taken; ++k) {
        const size_t pixel =
            members[c][static_cast<size_t>(random.below(static_cast<uint64_t>(k), static_cast<uint64_t>(found)))];
        p.values.insert(p.values.end(), &image.values[pixel * channels], &image.values[pixel * channels] + channels);
        p.labels.push_back(static_cast<uint8_t>(c));
        p.weights.push_back(loss.weights[static_cast<int64_t>(c)] * double(found) / double(taken));
      }
    }
  }
  return p;
}

/// Multinomial logistic regression on standardised channels, by Adam on all pixels at once.
class Regression {
 public:
  Regression(const Pixels& p, size_t channels) : channels_(channels) {
    const size_t count = p.labels.size();
    std::vector<double> mean(channels), inverse(channels), standardised(p.values.begin(), p.values.end());
    for (size_t c = 0; c < channels; ++c) {
      double sum = 0, squares = 0;
      for (size_t i = 0; i < count; ++i) {
        const double v = standardised[i * channels + c];
        sum += v, squares += v * v;
      }
      mean[c] = sum / double(count);
      inverse[c] = 1 / std::sqrt(std::max(1e-12, squares / double(count) - mean[c] * mean[c]));
      for (size_t i = 0; i < count; ++i) {
        double& v = standardised[i * channels + c];
        v = (v - mean[c]) * inverse[c];
      }
    }
    double total = 0;
    for (double w : p.weights) total += w;
    const size_t parameters = classes * (channels + 1);
    weights_.assign(parameters, 0);
    std::vector<double> first(parameters), second(parameters), gradient(parameters);
    for (int step = 1; step <= 400; ++step) {
      std::fill(gradient.begin(), gradient.end(), 0.0);
      for (size_t i = 0; i < count; ++i) {
        const double* x = &standardised[i * channels];
        std::array<double, classes> q = scores(x);
        const double top = std::max({q[0], q[1], q[2]});
        double sum = 0;
        for (double& v : q) sum += v = std::exp(v - top);
        for (size_t k = 0; k < classes; ++k) {
          const double g = p.weights[i] / total * (q[k] / sum - double(k == p.labels[i]));
          for (size_t c = 0; c < channels; ++c) gradient[k * (channels + 1) + c] += g * x[c];
          gradient[k * (channels + 1) + channels] += g;
        }
      }
      const double rate = 0.1 * (step < 300 ? 1 : 0.1);
      for (size_t k = 0; k < parameters; ++k) {
        first[k] = 0.9 * first[k] + 0.1 * gradient[k];
        second[k] = 0.99 * second[k] + 0.01 * gradient[k] * gradient[k];
        weights_[k] -=
            rate * first[k] / (1 - std::pow(0.9, step)) / (std::sqrt(second[k] / (1 - std::pow(0.99, step))) + 1e-10);
      }
    }
    // From here on of values as they are.
    for (size_t k = 0; k < classes; ++k)
      for (size_t c = 0; c < channels; ++c) {
        double& w = weights_[k * (channels + 1) + c];
        w *= inverse[c];
        weights_[k * (channels + 1) + channels] -= w * mean[c];
      }
  }

  uint8_t predict(const float* values) const {
    const std::array<double, classes> q = scores(values);
    return static_cast<uint8_t>(std::max_element(q.begin(), q.end()) - q.begin());
  }

 private:
  template <class T>
  std::array<double, classes> scores(const T* x) const {
    std::array<double, classes> q{};
    for (size_t k = 0; k < classes; ++k) {
      q[k] = weights_[k * (channels_ + 1) + channels_];
      for (size_t c = 0; c < channels_; ++c) q[k] += weights_[k * (channels_ + 1) + c] * double(x[c]);
    }
    return q;
  }
  size_t channels_;
  std::vector<double> weights_;  ///< of every class: per channel, bias
};

}  // namespace

ClimateBaselines climate_baselines(const ClimateSource& train, const ClimateSource& validation,
                                   const PixelLossAttrs& loss) {
  const auto channels = static_cast<size_t>(train.channels());
  const Regression regression(draw_pixels(train, loss), channels);
  ClimateBaselines result;
  for (int64_t i = 0; i < validation.size(); ++i) {
    const Image image = load(validation, i);
    std::vector<uint8_t> predicted(image.labels.size());
    result.background.add(image.labels, predicted);
    for (size_t k = 0; k < predicted.size(); ++k) predicted[k] = regression.predict(&image.values[k * channels]);
    result.regression.add(image.labels, predicted);
  }
  return result;
}

}  // namespace convoy::apps
