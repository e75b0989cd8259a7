#include "io/climate_source.h"

#include <algorithm>

#include "core/philox.h"

namespace convoy {

void normalise(std::vector<float>& values, const ClimateStats& stats) {
  const auto channels = static_cast<size_t>(stats.channels());
  std::vector<float> low(channels), factor(channels);
  for (size_t c = 0; c < channels; ++c) {
    low[c] = stats.low(c), factor[c] = stats.factor(c);
  }
  if (channels == 0 || values.size() % channels != 0)
    fail_data("expected statistics of the image's channels, found " + std::to_string(channels));
  for (size_t i = 0; i < values.size(); i += channels)
    for (size_t c = 0; c < channels; ++c) values[i + c] = (values[i + c] - low[c]) * factor[c];
}

std::vector<float> downsample_fields(std::vector<float> values, int64_t height, int64_t width,
                                     const ClimateReading& r) {
  if (r.step == 1) return values;
  const int64_t channels = static_cast<int64_t>(values.size()) / (height * width);
  const int64_t extent = r.downsampling == Downsampling::mean ? r.step : 1;
  const float share = 1 / float(extent * extent);
  std::vector<float> small(static_cast<size_t>((height / r.step) * (width / r.step) * channels));
  float* to = small.data();
  for (int64_t h = 0; h < height / r.step; ++h)
    for (int64_t w = 0; w < width / r.step; ++w, to += channels) {
      for (int64_t i = 0; i < extent * extent; ++i) {
        const int64_t pixel = (h * r.step + i / extent) * width + w * r.step + i % extent;
        for (int64_t c = 0; c < channels; ++c) to[c] += values[static_cast<size_t>(pixel * channels + c)];
      }
      for (int64_t c = 0; c < channels; ++c) to[c] *= share;
    }
  return small;
}

std::vector<uint8_t> downsample_classes(std::vector<uint8_t> classes, int64_t height, int64_t width,
                                        const ClimateReading& r) {
  if (r.step == 1) return classes;
  const int64_t centre = r.downsampling == Downsampling::mean ? (r.step - 1) / 2 : 0;
  std::vector<uint8_t> small;
  for (int64_t h = 0; h < height / r.step; ++h)
    for (int64_t w = 0; w < width / r.step; ++w)
      small.push_back(classes[static_cast<size_t>((h * r.step + centre) * width + w * r.step + centre)]);
  return small;
}

ClimateSource::ClimateSource(std::vector<ClimateRef> images, ClimateReading reading)
    : images_(std::move(images)), reading_(std::move(reading)) {
  if (images_.empty()) fail_data("no climate images");
  const ClimateRef& first = images_[0];
  ClimateReading& r = reading_;
  const int64_t held = first.shape.channels;
  for (int64_t c : r.channels)
    if (c < 0 || c >= held)
      fail_data(first.path + ": expected channel " + std::to_string(c) + ", found " + std::to_string(held) +
                " channels");
  channels_ = r.channels.empty() ? held : static_cast<int64_t>(r.channels.size());
  whole_ = r.height == 0;
  if (whole_) r.height = first.shape.height / r.step, r.width = first.shape.width / r.step;
  for (const ClimateRef& ref : images_) {
    if (!(ref.shape == first.shape))
      fail_data(ref.path + ": expected images of " + first.shape.str() + " as " + first.path + " has, found " +
                ref.shape.str());
    if (ref.format != ClimateFormat::sharded && r.stats.channels() != held)
      fail_data(ref.path + ": expected statistics of " + std::to_string(held) + " channels, found " +
                std::to_string(r.stats.channels()));
  }
  if (r.height * r.step > first.shape.height || r.width * r.step > first.shape.width)
    fail_data(first.path + ": crops of " + std::to_string(r.height * r.step) + "x" + std::to_string(r.width * r.step) +
              " exceed the image's " + first.shape.str());
}

std::shared_ptr<const ClimateSource::StormPixels> ClimateSource::storms(size_t image) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = storms_.find(image); found != storms_.end()) return found->second;
  }
  const ClimateRef& ref = images_[image];
  StormPixels all(static_cast<size_t>(reading_.classes));
  const auto classes = read_labels(ref, reading_.label_set, reading_.classes);
  for (size_t i = 0; i < classes.size(); ++i)
    if (classes[i] != 0 && classes[i] != unlabelled) all[classes[i]].push_back(static_cast<int32_t>(i));
  const auto kept = std::make_shared<StormPixels>();
  constexpr size_t most = 1024;
  for (const auto& list : all) {
    if (list.empty()) continue;
    std::vector<int32_t> thin;
    for (size_t i = 0; i < std::min(most, list.size()); ++i)
      thin.push_back(list[i * list.size() / std::min(most, list.size())]);
    kept->push_back(std::move(thin));
  }
  const std::lock_guard lock(mutex_);
  // Up to 8 KiB each. Pixels depend on the image alone: what is read again is the same.
  constexpr size_t most_images = 1 << 15;
  if (storms_.size() >= most_images) storms_.erase(storms_.begin());
  return storms_[image] = kept;
}

ImageBox ClimateSource::choose(size_t image, int64_t sample, int64_t epoch) const {
  const ClimateRef& ref = images_[image];
  const int64_t height = reading_.height * reading_.step, width = reading_.width * reading_.step;
  if (whole_) return {0, 0, height, width};
  const int64_t rows = ref.shape.height - height, columns = ref.shape.width - width;
  const PhiloxStream random(reading_.seed, hash_name("crop") + static_cast<uint64_t>(epoch));
  const auto draw = [&](uint64_t k, int64_t n) {
    return static_cast<int64_t>(random.below(static_cast<uint64_t>(sample) * 4 + k, static_cast<uint64_t>(n)));
  };
  int64_t top = draw(0, rows + 1), left = draw(1, columns + 1);
  if (reading_.balance > 0 && ref.labelled() && draw(2, 1 << 20) < static_cast<int64_t>(reading_.balance * (1 << 20))) {
    if (const auto pixels = storms(image); !pixels->empty()) {
      const auto& list = (*pixels)[static_cast<size_t>(draw(3, static_cast<int64_t>(pixels->size())))];
      const int64_t pixel = list[static_cast<size_t>(draw(0, static_cast<int64_t>(list.size())))];
      top = std::clamp<int64_t>(pixel / ref.shape.width - height / 2, 0, rows);
      left = std::clamp<int64_t>(pixel % ref.shape.width - width / 2, 0, columns);
    }
  }
  return {top, left, height, width};
}

void ClimateSource::load(int64_t sample, int64_t epoch, std::byte* input, std::byte* target) const {
  const auto image = static_cast<size_t>(sample / reading_.crops);
  const ClimateRef& ref = images_[image];
  const ImageBox box = choose(image, sample, epoch);
  auto [values, classes] =
      ref.labelled()
          ? read_labelled(ref, reading_.label_set, reading_.classes, box)
          : LabelledImage{read_image(ref, box), std::vector<uint8_t>(static_cast<size_t>(box.height * box.width), 255)};
  if (ref.format != ClimateFormat::sharded) normalise(values, reading_.stats);
  values = downsample_fields(std::move(values), box.height, box.width, reading_);
  classes = downsample_classes(std::move(classes), box.height, box.width, reading_);
  auto* x = reinterpret_cast<float*>(input);
  std::copy(classes.begin(), classes.end(), reinterpret_cast<uint8_t*>(target));
  if (reading_.channels.empty()) {
    std::copy(values.begin(), values.end(), x);
    return;
  }
  const auto held = static_cast<size_t>(ref.shape.channels);
  for (size_t pixel = 0; pixel < classes.size(); ++pixel)
    for (int64_t c : reading_.channels) *x++ = values[pixel * held + static_cast<size_t>(c)];
}

}  // namespace convoy
