// Networks as ONNX models (operators of version 13, of ONNX 1.8), for programs of others: onnxruntime runs them, Netron
// draws them.
#pragma once

#include <string>
#include <vector>

#include "core/state_store.h"
#include "core/tape.h"

namespace convoy {

/// What a model computes of its input ahead of the network: (x - low) * factor for every channel; none: nothing.
struct OnnxNormalisation {
  std::vector<float> low, factor;
};

/// A kept value of the tape that a model computes, times a factor.
struct OnnxOutput {
  std::string name;
  double factor = 1;
};

/// What a model tells of itself beside its nodes.
struct OnnxDescription {
  std::string network, version;  ///< of what wrote it
  std::string input;             ///< what its input is, in words
};

/// Writes the forward pass that computes the `outputs` of a tape from its input "x", with the states that
/// it reads as constants. The tape is one that evaluates, recorded in f32 and not fused. Inputs and outputs are what a
/// run has, but for any number N of samples: images (N, H, W, C) and volumes (N, D, H, W, C) in f32, vectors (N, C),
/// classes of pixels (N, H, W) in u8. Batch norm by the batch's moments takes those of all N. Throws Error(usage)
/// naming the node for an op that evaluation has no use for, and for more than the 2 GiB that protobuf allows,
/// Error(runtime) where the file cannot be written.
void write_onnx(const std::string& path, const Tape& tape, const StateStore& states,
                const std::vector<OnnxOutput>& outputs, const OnnxNormalisation& normalisation,
                const OnnxDescription& description);

}  // namespace convoy
