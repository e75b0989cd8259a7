// Climate images for a loader: crops or whole images, normalised, sub-sampled, with their classes.
#pragma once

#include <map>
#include <mutex>

#include "io/climate.h"
#include "io/loader.h"

namespace convoy {

/// What a pixel of a smaller image is made of, the n x n pixels of a block: of its first one; or of the mean of all,
/// and the class at the centre (rounded down), so that evaluation is the same every time.
enum class Downsampling : uint8_t { pick, mean };

struct ClimateReading {
  ClimateStats stats;             ///< values become (x - minimum)/(maximum - minimum); of shards they are already
  int64_t height = 0, width = 0;  ///< of what the network sees, after sub-sampling; 0 = the whole image
  std::vector<int64_t> channels;  ///< of the images, in the order the network sees them; empty: all
  int64_t step = 1;               ///< extent of the blocks that become one pixel
  Downsampling downsampling = Downsampling::pick;
  int64_t crops = 1;   ///< crops per image and epoch
  double balance = 0;  ///< share of crops centred on a labelled pixel (its class drawn first)
  int64_t classes = 3;
  int label_set = 0;
  uint64_t seed = 0;
};

/// Input: f32 (height, width, channels); target: u8 (height, width). Without labels the target is 255 everywhere.
class ClimateSource final : public SampleSource {
 public:
  /// Throws Error(data) where images are smaller than crops or differ in shape, naming the file.
  ClimateSource(std::vector<ClimateRef> images, ClimateReading reading);
  int64_t size() const override { return static_cast<int64_t>(images_.size()) * reading_.crops; }
  int64_t input_bytes() const override { return reading_.height * reading_.width * channels_ * int64_t(sizeof(float)); }
  int64_t target_bytes() const override { return reading_.height * reading_.width; }
  void load(int64_t sample, int64_t epoch, std::byte* input, std::byte* target) const override;
  const ClimateReading& reading() const { return reading_; }
  int64_t channels() const { return channels_; }
  const std::vector<ClimateRef>& images() const { return images_; }

 private:
  /// Pixels of every class of an image but the background, evenly thinned to at most 1024: enough to centre crops on,
  /// few enough to keep for thousands of images.
  using StormPixels = std::vector<std::vector<int32_t>>;
  std::shared_ptr<const StormPixels> storms(size_t image) const;
  ImageBox choose(size_t image, int64_t sample, int64_t epoch) const;

  std::vector<ClimateRef> images_;
  ClimateReading reading_;
  int64_t channels_ = 0;
  bool whole_ = false;  ///< images, not crops: what the blocks leave over is cut off at the far ends
  mutable std::mutex mutex_;
  mutable std::map<size_t, std::shared_ptr<const StormPixels>> storms_;
};

/// (x - minimum)/(maximum - minimum) per channel, in f32.
void normalise(std::vector<float>& values, const ClimateStats& stats);
/// Images of height x width pixels (times any channels) as (height/step) x (width/step).
std::vector<float> downsample_fields(std::vector<float> values, int64_t height, int64_t width, const ClimateReading& r);
std::vector<uint8_t> downsample_classes(std::vector<uint8_t> classes, int64_t height, int64_t width,
                                        const ClimateReading& r);

}  // namespace convoy
