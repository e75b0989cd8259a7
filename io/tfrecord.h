// The MLPerf HPC CosmoFlow record: one TFRecord holding one tf.train.Example with features x (int16 voxels, one bytes
// value) and y (four floats). Version 2 of the release wraps the whole file in gzip.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/sample.h"

namespace convoy {

/// Decodes a file's bytes (gzip is recognised by its magic number) and checks both CRCs. `path` is for messages only.
/// The size is the cube root of the voxel count over `channels`. Throws Error(data).
Sample decode_tfrecord(std::span<const std::byte> file, const std::string& path, int64_t channels);
/// The bytes of an uncompressed file: 71 more than the voxels' for 128^3 x 4.
std::vector<std::byte> encode_tfrecord(std::span<const std::byte> voxels, std::span<const float> target);

std::vector<std::byte> gzip_compress(std::span<const std::byte> data, int level);
/// Throws Error(data) naming `path`.
std::vector<std::byte> gzip_decompress(std::span<const std::byte> data, const std::string& path);

}  // namespace convoy
