// What the weight gradients over all positions of a convolution share (conv_mma_positions.cu, conv_wgmma_positions.cu):
// where an output position reads its input.
#pragma once

#include "kernels/conv/conv_cuda_geometry.h"
#include "kernels/conv/conv_mma_kernels.h"

namespace convoy::cuda {

/// A convolution without groups as weight gradients see it: `columns` are taps times input channels.
struct Positions : ConvGeometry {
  int columns, positions;
};

/// The input position that tap 0 reads at one output position, and its pixel if it were inside.
struct __align__(16) Origin {
  int pixel, d, h, w;
};
constexpr int outside = -(1 << 30);  ///< depth of positions that are not there, height of columns that are not

/// Walks over output positions, `step` at a time.
template <int step>
class Walk {
 public:
  __device__ Walk(const Positions& g, int position) {
    for (int axis = 2; axis >= 0; --axis) at_[axis] = position % g.y[axis], position /= g.y[axis];
    n_ = position;
  }
  __device__ void advance(const Positions& g) {
    at_[2] += step;
    while (at_[2] >= g.y[2]) {
      at_[2] -= g.y[2];
      if (++at_[1] < g.y[1]) continue;
      at_[1] = 0;
      if (++at_[0] < g.y[0]) continue;
      at_[0] = 0, ++n_;
    }
  }
  __device__ Origin origin(const Positions& g, bool exists) const {
    Origin o;
    o.d = at_[0] * g.stride[0] - g.pad[0], o.h = at_[1] * g.stride[1] - g.pad[1], o.w = at_[2] * g.stride[2] - g.pad[2];
    o.pixel = ((n_ * g.x[0] + o.d) * g.x[1] + o.h) * g.x[2] + o.w;
    if (!exists) o.d = outside;
    return o;
  }

 private:
  int at_[3], n_;
};

/// Eight columns of the product, of one tap, as far from its position's origin as they lie.
struct Column {
  int d, h, w;
  int64_t offset;  ///< elements
  __device__ Column(const Positions& g, int column) {
    const int tap = column / g.c;
    d = tap / (g.kernel[1] * g.kernel[2]) * g.dilation[0], h = tap / g.kernel[2] % g.kernel[1] * g.dilation[1],
    w = tap % g.kernel[2] * g.dilation[2];
    offset = ((int64_t(d) * g.x[1] + h) * g.x[2] + w) * g.c + column % g.c;
    if (column >= g.columns) h = outside;
  }
  __device__ bool meets(const Positions& g, const Origin& o) const {
    return unsigned(o.d + d) < unsigned(g.x[0]) && unsigned(o.h + h) < unsigned(g.x[1]) &&
           unsigned(o.w + w) < unsigned(g.x[2]);
  }
};

/// Where a slot of eight channels lies in shared memory: strips of 64 channels behind each other, in each of them
/// `step` positions, rows of 128 bytes.
template <int step>
__device__ inline uint32_t strip_slot(int row, int slot) {
  return uint32_t(slot / 8) * (step * 128) + slot_128(row, slot % 8);
}

/// Queues the sums of `splits` shares of the positions, in tiles of 128 output channels and 256 columns, on warpgroup
/// products (conv_wgmma_positions.cu).
void queue_wgmma_positions(DType type, const Positions& g, int splits, const void* x, const void* dy,
                           const GradientParts& out);

}  // namespace convoy::cuda
