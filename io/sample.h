// One training sample and what a data set of them looks like.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace convoy {

/// Shape and element type of the voxels of every sample in a set.
struct SampleShape {
  int64_t size = 0;      ///< extent of the cube
  int64_t channels = 0;  ///< redshifts
  int64_t targets = 0;
  DType dtype = DType::i16;
  int64_t elements() const { return size * size * size * channels; }
  int64_t bytes() const { return elements() * size_of(dtype); }
  bool operator==(const SampleShape&) const = default;
  std::string str() const {
    const std::string s = std::to_string(size);
    return s + "x" + s + "x" + s + "x" + std::to_string(channels) + " " + std::string(name_of(dtype)) + ", " +
           std::to_string(targets) + " targets";
  }
};

struct Sample {
  SampleShape shape;
  std::vector<std::byte> voxels;  ///< z, y, x, channel order
  std::vector<float> target;      ///< unitPar
  std::vector<float> physical;    ///< physPar where the file has it, else empty
};

}  // namespace convoy
