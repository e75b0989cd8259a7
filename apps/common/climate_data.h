// What convoy_data does with climate images.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace convoy::apps {

/// Whether the path is a climate file, or a folder whose first HDF5 file that opens is one.
bool holds_climate(const std::string& path);
/// Prints a line per image, up to `limit`: layout, shape, class shares, mean and extremes of the vapour. Ahead of them
/// how many there are or, without `totals`, how many of how many files: then no files but theirs are opened.
int inspect_climate(const std::string& path, int64_t limit, bool totals);
/// Reads everything; returns the data exit code when an image was bad.
int verify_climate(const std::string& path, int threads);
/// Writes statistics of all images below `path` to `out`; the arithmetic runs on all threads.
int write_climate_stats(const std::string& path, const std::string& out, int threads);
/// Where the files of one folder of the data set `path` go below `out`.
std::string target_folder(const std::string& path, const std::string& file, const std::string& out);
/// These targets of all files. Throws Error(usage) where samples would be mixed: with the data set itself, with other
/// parts (train, validation, test) that `out` has, or with samples beside those.
std::set<std::string> target_folders(const std::string& path, const std::vector<std::string>& files,
                                     const std::string& out);
/// The path of a folder's next shard, counted on.
std::string next_shard(const std::string& folder, int64_t& number);
/// Normalises by the file `stats` (empty: stats.h5 in the images' folder or above it) and writes shards of
/// half-precision images under `out`, folders kept apart. Shards are normalised already and cut anew alone.
int shard_climate(const std::string& path, const std::string& out, const std::string& stats, int64_t images,
                  int threads);

}  // namespace convoy::apps
