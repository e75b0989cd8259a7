// How the values of an HDF5 data set lie in its file: in one piece or in chunks, through which filters, whether they
// are there at all. Calls the library: under its lock.
#pragma once

#include <hdf5.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "io/stored_values.h"

namespace convoy::hdf5 {

/// An HDF5 identifier that closes itself.
class Id {
 public:
  using Close = herr_t (*)(hid_t);
  Id(hid_t id, Close close) : id_(id), close_(close) {}
  ~Id() {
    if (id_ >= 0) close_(id_);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  operator hid_t() const { return id_; }
  bool ok() const { return id_ >= 0; }
  /// Closes now, for where it matters whether that works: a data set may hold chunks that are not written yet.
  bool close() { return close_(std::exchange(id_, -1)) >= 0; }

 private:
  hid_t id_;
  Close close_;
};

/// The library's type for values of ours; throws Error(runtime) where it has none.
hid_t native(DType type);

/// What chunks went through when they were written, in this order.
struct Filter {
  H5Z_filter_t id;
  bool optional;  ///< left out where the writer had no code for it
  std::string name;
};

/// How a data set's values lie in its file.
struct Layout {
  H5D_layout_t kind = H5D_CONTIGUOUS;
  std::vector<hsize_t> chunk;   ///< extents; none unless chunked
  hsize_t chunks = 0;           ///< that all values fill
  std::vector<Filter> filters;  ///< of chunks
  bool means_fill = false;      ///< values that are left out are meant to be the file's fill value
  bool elsewhere = false;       ///< in other files, also where a link leads to one
  bool uneven = false;          ///< chunks at the edges are stored in another way
};

/// The file that an object lies in, which is another than its link's where that is an external one.
std::string file_of(hid_t object);

/// Throws Error(data) for a damaged one: HDF5 takes the extents of chunks from the file as they are, and writes beyond
/// its buffers where they are larger than the data set. `path` is the file that was opened.
Layout layout_of(const std::string& what, hid_t set, hid_t space, const std::string& path);

/// HDF5 gives zeros for what is not there, of a writer that was killed or wrote a part.
void expect_written(const std::string& what, hid_t set, hid_t space, const Layout& layout,
                    const std::vector<hsize_t>& from, const std::vector<hsize_t>& box);

/// The same of a virtual data set: HDF5 gives zeros where the source of a box is missing.
void expect_sources(const std::string& what, hid_t set, const std::vector<hsize_t>& from,
                    const std::vector<hsize_t>& box);

/// The first filter without code here that a chunk of a box went through, for why the library cannot read it: h5py and
/// plugins register theirs as optional, and chunks that were left out of those are read without.
std::optional<Filter> lacking_filter(hid_t set, const Layout& layout, const std::vector<hsize_t>& from,
                                     const std::vector<hsize_t>& box);
/// Throws Error(data): LZF, Blosc, Zstd and others come as plugins.
[[noreturn]] void fail_lacking(const std::string& what, const Filter& filter);

/// Where the values of a box lie in a file that is open for reading; nothing where only the library can read them:
/// other types, filters or layouts, chunks that are not there.
std::optional<StoredValues> stored_values(hid_t set, hid_t space, const Layout& layout, DType type,
                                          const std::vector<hsize_t>& from, const std::vector<hsize_t>& box);

}  // namespace convoy::hdf5
