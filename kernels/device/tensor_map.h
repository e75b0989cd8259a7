// Pieces of images for Hopper's copy engine: what it is told about a tensor.
#pragma once

#include <cuda.h>

#include "kernels/device/cuda.h"

namespace convoy::cuda {

/// Images of 16-bit channels, `pitch` elements from one pixel to the next, as the copy engine reads them: 64 channels
/// of `positions` (at most 256) neighbours in a row at a time, a row of 128 bytes of shared memory to each, turned as
/// slot_128 does. What lies outside an image, or behind its channels, becomes zeros. `pixels` must be a multiple of 16
/// bytes, as must the pitch. Throws Error(runtime) where the driver refuses (cuTensorMapEncodeTiled).
struct ImagePieces {
  DType type;
  const void* pixels;
  int64_t channels, width, height, images, pitch;
  int positions;
};
CUtensorMap tensor_map(const ImagePieces& pieces);

}  // namespace convoy::cuda
