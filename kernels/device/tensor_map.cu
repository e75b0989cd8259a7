#include "kernels/device/tensor_map.h"

#include "core/error.h"

namespace convoy::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function: asked for at run time, so that nothing here links the driver.
Encode encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled");
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled");
#endif
  if (found != cudaDriverEntryPointSuccess || !function) fail_runtime("the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const ImagePieces& p) {
  static const Encode function = encode();
  CUtensorMap map;
  const auto size = [](int64_t v) { return static_cast<cuuint64_t>(v); };
  const int64_t pixel = 2 * p.pitch, row = pixel * p.width;
  const cuuint64_t extents[] = {size(p.channels), size((p.width - p.piece.first + p.piece.step - 1) / p.piece.step),
                                size(p.height), size(p.images)};
  const cuuint64_t strides[] = {size(pixel * p.piece.step), size(row), size(row * p.height)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(p.piece.positions), static_cast<cuuint32_t>(p.piece.rows), 1},
                   step[] = {1, 1, 1, 1};
  const CUresult result =
      function(&map, p.type == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
               static_cast<char*>(const_cast<void*>(p.pixels)) + p.piece.first * pixel, extents, strides, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, p.piece.turned ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) fail_runtime("cuTensorMapEncodeTiled: CUDA driver error " + std::to_string(int(result)));
  return map;
}

}  // namespace convoy::cuda
