// Files of samples in any of the supported formats, found, identified and read one sample at a time.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/sample.h"

namespace convoy {

enum class FileFormat : uint8_t {
  tfrecord,    ///< MLPerf HPC release, plain or gzip
  raw_hdf5,    ///< NERSC: `full` (D,H,W,C) or LBANN (C,D,H,W), int16 or floating point, `unitPar`, optional `physPar`;
               ///< cut into crops
  split_hdf5,  ///< `x` (D,H,W,C), `y`, optional `physPar`
  sharded,     ///< ours: `voxels` (N,D,H,W,C), `unitPar` (N,T), optional `physPar` (N,T), attribute format =
               ///< convoy-cosmoflow-1
};
std::string_view name_of(FileFormat format);

/// One sample inside one file: the index of a crop or of a shard's row.
struct SampleRef {
  std::string path;
  FileFormat format = FileFormat::tfrecord;
  int64_t index = 0;
  std::string universe{};  ///< by its labels, where the file was opened anyway (HDF5); else empty: the name tells
};

/// How to read where the files leave a choice.
struct ReadOptions {
  int64_t channels = 4;  ///< per voxel in TFRecords (which do not say)
  int64_t crop = 128;    ///< extent of the cubes cut out of raw files
};

/// Chunks of a compressed cube: whoever reads a box inflates all that it touches, and HDF5 has none of 4 GiB.
inline std::array<int64_t, 4> cube_chunk(int64_t size, int64_t channels) {
  const int64_t side = std::min<int64_t>(size, 128);
  return {side, side, side, channels};
}

/// Samples of one file, in order (axis 0 outermost for crops). Throws Error(data) for files of no known format.
std::vector<SampleRef> samples_in(const std::string& path, const ReadOptions& options);
/// Files below a folder that may hold samples, in name order, or the one file that `path` is.
std::vector<std::string> sample_files(const std::string& path, BrokenLinks broken = BrokenLinks::refused);
/// The samples of files, in their order; `open` finds those of some. Files behind the first `most` samples (0: all) are
/// not asked for, but for some where files hold several: on parallel file systems opening files takes longer than
/// anything else here.
std::vector<SampleRef> first_samples(
    std::span<const std::string> files, int64_t most,
    const std::function<std::vector<SampleRef>(std::span<const std::string> files)>& open);
/// Endings of the files that samples of either kind are looked for in.
inline const std::vector<std::string> sample_endings{".tfrecord", ".gz", ".hdf5", ".h5"};

/// All their samples or, at least, the first `most`; throws Error(data) when there are none.
std::vector<SampleRef> samples_below(const std::string& path, const ReadOptions& options, int64_t most = 0);
/// Reads and checks one sample: CRCs, shape, finite labels and voxels, counts of at least 0.
Sample read_sample(const SampleRef& ref, const ReadOptions& options);
/// Its physical parameters alone; empty where the file has none.
std::vector<float> read_physical(const SampleRef& ref);

/// The file's name without folder and extensions (`.tfrecord.gz` too).
std::string stem_of(const SampleRef& ref);
/// The universe a sample was cut from: its labels or, of a TFRecord, which would have to be read for them, the file
/// name less a last "_NNN". Samples of one universe share labels and must not be split between training and validation.
std::string universe_of(const SampleRef& ref);

struct DataSplit {
  std::vector<SampleRef> train, validation;
};
/// So many of the first samples are wanted; 0: all.
struct SampleLimits {
  int64_t train = 0, validation = 0;
};
/// `folder/train` and `folder/validation` when both exist; else the samples of `folder/train` or, without that, of
/// `folder`, split by universe: about `validation_share` of the universes, drawn from `seed`, validate; drawing them
/// takes all files. `list` is samples_below, or finds the same some other way. More samples than `limits` says may come
/// back. Throws what sample_folders throws.
using ListSamples = std::function<std::vector<SampleRef>(const std::string& path, int64_t most)>;
DataSplit split_samples(const std::string& folder, const ListSamples& list, double validation_share, uint64_t seed,
                        const SampleLimits& limits = {});

}  // namespace convoy
