// Segmentation of atmospheric images: cyclones and atmospheric rivers in 16 fields of a climate model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/tape.h"
#include "layers/layers.h"

namespace convoy {

enum class ClimateModel : uint8_t {
  deepcam,   ///< MLPerf HPC: DeepLabv3+ over Xception, output stride 16 or 8
  deeplab,   ///< Gordon Bell 2018 (arXiv:1810.01993): DeepLabv3+ over ResNet-50 v2, output stride 8
  tiramisu,  ///< Gordon Bell 2018: modified Tiramisu, growth 32, 5x5 filters
};

/// Decoder of deeplab: transposed convolutions up to full resolution, there with what convolutions see of the image
/// (deconv_full, the record runs) or without; bilinear resizes, of the logits from a quarter of it.
enum class Decoder : uint8_t { deconv_full, deconv, bilinear };

/// Which of the odd row and column a transposed 3x3 convolution of stride 2 drops: TensorFlow's SAME the last,
/// PyTorch's padding of 1 with an output padding of 1 the first. The same shape, shifted by a pixel.
enum class Cropping : uint8_t { tensorflow, pytorch };

struct ClimateConfig {
  ClimateModel model = ClimateModel::deepcam;
  int64_t height = 768, width = 1152;  ///< multiples of size_unit()
  int64_t channels = 16;
  int64_t classes = 3;

  /// deeplab: false multiplies by 0.5 wherever a batch norm stood, ahead of a unit in place of its ReLU, too (the
  /// record runs). tiramisu: between every convolution and its ReLU (off in the record runs). deepcam always
  /// normalises.
  bool batch_norm = true;
  double batch_norm_momentum = 0.1;  ///< deeplab's reference: 0.0003, tiramisu's: 0.01
  /// Evaluation normalises by the moments of what it evaluates in place of the running ones (deeplab's reference, which
  /// never leaves training mode).
  bool batch_statistics = false;
  std::optional<Cropping> cropping;  ///< empty: as published, PyTorch's in deepcam and TensorFlow's in the others

  // deepcam
  int64_t output_stride = 16;
  int64_t width_divisor = 1;  ///< divides all inner channel counts: a narrow net for small machines and tests
  /// The low-level branch reads the output of block 1 behind the following ReLU, as the reference's in-place operation
  /// has it; false: ahead of it, as in NVIDIA's submission.
  bool low_level_relu = true;

  // deeplab
  Decoder decoder = Decoder::deconv_full;
  /// ReLU behind the transposed and full-resolution convolutions of the decoder, which the reference leaves linear.
  bool decoder_relu = false;
  Corners corners = Corners::asymmetric;  ///< of its resizes (TensorFlow 1's default)

  // tiramisu
  std::vector<int64_t> blocks{2, 2, 2, 4, 5};  ///< layers of the dense blocks, the bottom one last
  int64_t growth = 32, filter = 5, first_filters = 64;
  double dropout = 0;  ///< behind every ReLU and on the logits
  bool operator==(const ClimateConfig&) const = default;
};

struct ClimateNet {
  ValueId input = no_value;   ///< (N,1,height,width,channels), named "x"
  ValueId logits = no_value;  ///< (N,1,height,width,classes)
};

/// Of layers of the published networks that are left out here, because nobody reads them: deeplab's norm behind its
/// last unit, tiramisu's transition behind the bottom block.
int64_t unread_parameters(const ClimateConfig& config);
/// Heights and widths that the network takes are multiples of this.
int64_t size_unit(const ClimateConfig& config);
/// Records the network for a batch of normalised images. Throws Error(usage) for sizes that do not divide, naming the
/// numbers.
ClimateNet record_climate(Tape& tape, const ClimateConfig& config, int64_t batch, DType input_type, Mode mode);

}  // namespace convoy
