// Pieces of images for Hopper's copy engine: what it is told about a tensor.
#pragma once

#include <cuda.h>

#include "kernels/device/cuda.h"

namespace convoy::cuda {

/// What is copied at a time: `positions` (at most 256) neighbours in each of `rows` (likewise), a row of 128 bytes of
/// shared memory to each, turned as slot_128 does or as it is. `step` 2: of every other column, from column `first` on.
struct Piece {
  int positions, rows = 1;
  bool turned = true;
  int first = 0, step = 1;
};

/// Images of 16-bit channels, `pitch` elements from one pixel to the next, as the copy engine reads them, 64 channels
/// at a time. What lies outside an image, or behind its channels, becomes zeros. `pixels` must be a multiple of 16
/// bytes, as must the pitch. Throws Error(runtime) where the driver refuses (cuTensorMapEncodeTiled).
struct ImagePieces {
  DType type;
  const void* pixels;
  int64_t channels, width, height, images, pitch;
  Piece piece;
};
CUtensorMap tensor_map(const ImagePieces& pieces);

}  // namespace convoy::cuda
