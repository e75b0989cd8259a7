// Problems that tests put to every kernel.
#pragma once

#include <vector>

#include "core/kernel.h"
#include "models/program.h"

namespace convoy::testing {

/// A slice of a tensor of so many channels.
TensorDesc strided(const TensorDesc& dense, int64_t channels);
/// Every distinct problem of a model's training step, small enough to run in the reference.
std::vector<Problem> model_problems(DType compute, const CosmoflowConfig& model, int64_t batch);
/// Convolutions that break kernels: tails, odd sizes, strides, dilation beyond the image, groups, asymmetric padding,
/// one pixel, two dimensions, more channels than a vector but not a multiple.
std::vector<Problem> conv_problems(DType type);
/// Layers that plans divide further where threads are many: channels beside tiles, rows and positions. Depthwise ones
/// read slices, and one is so wide that its rows go through the cache in bands.
std::vector<Problem> divided_problems(DType type);
/// Updates by every optimizer, with LARC and without, of so many elements.
std::vector<Problem> update_problems(int64_t elements);
/// All other ops, at sizes that no vector divides.
std::vector<Problem> other_problems(DType type);
/// Pools of a volume down to a depth of one, forward and backward; among the others, too.
std::vector<Problem> pools_to_a_plane(DType type);

}  // namespace convoy::testing
