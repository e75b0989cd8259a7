// Sums over the rows of a matrix on a CUDA device, the same bits in every run: parts of the rows first, then the parts.
#pragma once

#include "kernels/device/early.h"

namespace convoy::cuda {

/// How many parts the rows are cut into: enough blocks for the device, at least 64 rows each.
inline int row_parts(int64_t rows, int64_t columns) {
  const int64_t groups = (columns + 31) / 32;
  return static_cast<int>(
      std::max<int64_t>(1, std::min<int64_t>((rows + 63) / 64, 8 * int64_t(multiprocessors()) / groups)));
}
/// Floats of workspace.
inline int64_t row_sum_floats(int64_t rows, int64_t columns) {
  return row_parts(rows, columns) * columns;
}

/// The value of a dense matrix at (row, column).
template <class T>
struct Element {
  const T* x;
  int64_t columns;
  __device__ float operator()(int64_t row, int64_t column) const { return to_float(x[row * columns + column]); }
};

/// value(row, column) added up over this block's rows; grid (columns/32, parts), block (32, 8).
template <class Value>
__global__ void sum_rows(int64_t rows, int64_t columns, Value value, float* parts) {
  __shared__ float lanes[8][33];
  const int64_t c = int64_t(blockIdx.x) * 32 + threadIdx.x;
  const int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
  float sum = 0;
  if (c < columns)
    for (int64_t r = begin + threadIdx.y; r < end; r += 8) sum += value(r, c);
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && c < columns) {
    for (int i = 1; i < 8; ++i) sum += lanes[i][threadIdx.x];
    parts[blockIdx.y * columns + c] = sum;
  }
}

/// Where the sum of a column goes: to a vector, or to one of two behind each other.
struct ToVector {
  float* out;
  __device__ void operator()(int64_t column, float sum) const { out[column] = sum; }
};
struct ToTwoVectors {
  float *first, *second;
  int64_t columns_of_first;
  __device__ void operator()(int64_t column, float sum) const {
    column < columns_of_first ? first[column] = sum : second[column - columns_of_first] = sum;
  }
};

/// Queues the sums of `parts` rows. Compiled once, for all devices: files for 9.0 alone call it, too, and kernels that
/// are templates would be shared with those.
void add_parts(int parts, int64_t columns, const float* from, const ToVector& to);
void add_parts(int parts, int64_t columns, const float* from, const ToTwoVectors& to);

/// Queues out[c] = sum over rows of value(row, c).
template <class Value>
void row_sums(int64_t rows, int64_t columns, const Value& value, float* workspace, float* out) {
  const int parts = row_parts(rows, columns);
  sum_rows<<<dim3(static_cast<unsigned>((columns + 31) / 32), static_cast<unsigned>(parts)), dim3(32, 8), 0,
             stream()>>>(rows, columns, value, workspace);
  check_launch("row sums");
  add_parts(parts, columns, workspace, ToVector{out});
}

}  // namespace convoy::cuda
