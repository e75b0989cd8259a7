// A small RAII layer over the HDF5 C library: what our formats need and no more. What calls the library
// holds one lock of the process, so that files may be read and written by any threads, however it was built. Errors
// become Error(data) or Error(runtime) naming file, data set, expected and found.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/extents.h"

namespace convoy {

class Hdf5File {
 public:
  enum class Mode : uint8_t { read, create };
  Hdf5File(const std::string& path, Mode mode);
  /// Closes; what a created file still fails to write then is lost silently: end with close().
  ~Hdf5File();
  Hdf5File(Hdf5File&&) noexcept;

  const std::string& path() const { return path_; }
  /// Names of the data sets in the root group.
  std::vector<std::string> datasets() const;
  bool contains(const std::string& name) const;
  std::vector<int64_t> extents(const std::string& name) const;
  DType dtype(const std::string& name) const;
  /// Whether the values are of exactly this type: read() converts none then.
  bool holds(const std::string& name, DType type) const;

  /// Throws Error(data) where a box (empty = everything) lies outside of a data set or nobody wrote it: ahead of memory
  /// for it.
  void expect_written(const std::string& name, std::span<const int64_t> start = {},
                      std::span<const int64_t> count = {}) const;
  /// Reads a box (empty = everything), converting to `type`; `out` must hold exactly its elements. Values that are of
  /// that type already, in one piece or in chunks of gzip, are read and inflated outside of the lock: many threads at a
  /// time.
  void read(const std::string& name, DType type, std::span<std::byte> out, std::span<const int64_t> start = {},
            std::span<const int64_t> count = {}) const;
  /// Writes a whole data set; `chunk` non-empty and gzip > 0 compress it (with the byte shuffle filter).
  void write(const std::string& name, DType type, std::span<const int64_t> extents, std::span<const std::byte> data,
             std::span<const int64_t> chunk = {}, int gzip = 0);
  /// Creates a data set (and the groups in its name) to be filled box by box.
  void create(const std::string& name, DType type, std::span<const int64_t> extents, std::span<const int64_t> chunk,
              int gzip);
  void write_box(const std::string& name, DType type, std::span<const int64_t> start, std::span<const int64_t> count,
                 std::span<const std::byte> data);

  void write_text(const std::string& attribute, const std::string& value);
  std::optional<std::string> read_text(const std::string& attribute) const;
  /// Hands everything to the operating system and closes: the last call. Throws Error(runtime) where the disk is full.
  void close();

 private:
  struct Box;
  struct Impl;
  void read_by_library(const std::string& what, const Box& box, DType type, std::span<std::byte> out) const;
  std::string path_;
  std::unique_ptr<Impl> impl_;
};

/// Whether this build has HDF5.
bool has_hdf5();
std::string hdf5_version();

}  // namespace convoy
