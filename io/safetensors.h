// Safetensors: u64 header length, a JSON header {name: {dtype, shape, data_offsets}}, raw little-endian data.
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace convoy {

/// A named dense array of any rank, as the file format sees it.
struct NamedArray {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

/// All arrays, but for `*.num_batches_tracked` of types that are no DType (PyTorch has int64 there). Throws Error(data)
/// naming file, tensor, expected and found for anything damaged and for other arrays of such types.
std::vector<NamedArray> read_safetensors(const std::string& path);
/// With a text of the writer's own beside them; empty: none.
void write_safetensors(const std::string& path, const std::vector<NamedArray>& arrays, const std::string& note = {});
/// That text; empty where the file has none. Throws as read_safetensors does.
std::string read_safetensors_note(const std::string& path);

/// Our parameter -> the array PyTorch would hold: convolution weights K,KD,KH,KW,C become K,C,KD,KH,KW, or K,C,KH,KW
/// for images; dense weights K,F (features in channels-last order); biases K. `rank` says which (StateSpec::rank); with
/// 0 the extents do, which show of one tap neither the dense layer nor the convolution.
NamedArray to_torch(const std::string& name, const Tensor& parameter, int rank = 0);
/// The inverse, into an existing parameter; throws Error(data) naming both shapes where they differ.
void from_torch(const NamedArray& array, const Tensor& parameter, const std::string& path);

}  // namespace convoy
