// CosmoFlow: regression of cosmological parameters from dark-matter volumes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/tape.h"
#include "layers/layers.h"

namespace convoy {

enum class CosmoflowVariant : uint8_t {
  mlperf,  ///< MLPerf HPC: log2(size)-2 blocks [conv 'same' -> LeakyReLU -> max-pool 2], dense 128, 64, outputs, 1.2
           ///< tanh
  lbann,   ///< of LBANN's application (arXiv:2007.12856): the same blocks with means over overlapping windows of 3 for
           ///< pools, 16 to 256 channels, dense 2048, 256, outputs, 1.2 tanh
  sc18  ///< Mathuriya et al. 2018 (arXiv:1808.04728): seven valid convolutions, average pools, dense 2048, 256, outputs
};

struct CosmoflowConfig {
  CosmoflowVariant variant = CosmoflowVariant::mlperf;
  int64_t size = 128;    ///< extent of the cubic volume
  int64_t channels = 4;  ///< redshifts
  int64_t targets = 4;
  int64_t kernel = 3;           ///< 3 in MLPerf HPC v1.0 and later, 2 in v0.7
  int64_t conv_size = 32;       ///< channels of the first block, 1 to 512; doubled per block
  int64_t most_channels = 512;  ///< where doubling ends
  int64_t layers = 0;           ///< number of blocks, at most log2(size); 0 = log2(size) - 2
  /// Not sc18: between every convolution, which has no bias then, and its LeakyReLU.
  bool batch_norm = false;
  double batch_norm_momentum = 0.01;  ///< LBANN's decay of 0.99
  int64_t fc1_size = 128, fc2_size = 64;
  double slope = 0.3;    ///< of LeakyReLU (Keras' default)
  double dropout = 0.5;  ///< on both hidden dense layers (sc18: ahead of every dense layer)
  Initializer initializer = Initializer::glorot_uniform;
  std::optional<Initializer> last_initializer;  ///< of the layer that predicts, where it is another; not sc18

  /// LBANN's settings, for cubes of 128, 256 or 512.
  static CosmoflowConfig lbann();
  /// The paper's settings: 128^3 x 1, 3 linear outputs, slope 0.01, bias 0.1.
  static CosmoflowConfig sc18();
};

/// How raw voxels become the network's input.
enum class Normalisation : uint8_t { log1p, mean, none };

struct CosmoflowNet {
  ValueId input = no_value;                       ///< (N, size, size, size, channels), named "x"
  ValueId prediction = no_value;                  ///< (N,1,1,1,targets), kept as "prediction"
  std::vector<std::string> hidden_dense_weights;  ///< where the reference's `l2` applies
};

/// Records the network for a batch. `input_type` is i16 for counts or f32 for values as they are. Throws Error(usage)
/// for sizes that do not pool down to at least one voxel and for channels out of range, naming the numbers.
CosmoflowNet record_cosmoflow(Tape& tape, const CosmoflowConfig& config, int64_t batch, DType input_type,
                              Normalisation normalisation, Mode mode);

}  // namespace convoy
