#include "io/hdf5.h"

#include <hdf5.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "io/file.h"
#include "io/hdf5_layout.h"
#include "io/stored_values.h"

namespace convoy {

using namespace hdf5;

namespace {

/// Only some builds of HDF5 may be called by several threads, and those serialise the calls themselves: one lock around
/// ours makes every build do, and costs nothing beside theirs.
class LibraryLock {
 public:
  LibraryLock() : lock_(mutex()) {}

 private:
  static std::recursive_mutex& mutex() {
    static std::recursive_mutex one;
    return one;
  }
  std::lock_guard<std::recursive_mutex> lock_;
};

/// Ahead of the first call, NetCDF's included. HDF5's exit handler closes again what failed to close on a full disk,
/// and crashes; our files close themselves.
[[maybe_unused]] const herr_t no_exit_handler = H5dont_atexit();

/// How files are opened. Parallel file systems may be mounted without locks: files are locked where that works.
hid_t file_access() {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERS_MINOR == 10 && H5_VERS_RELEASE >= 7)
  if (access >= 0) H5Pset_file_locking(access, true, true);
#endif
  return access;
}

std::vector<hsize_t> sizes(std::span<const int64_t> values) {
  return {values.begin(), values.end()};
}

/// What the elements of a data set are, for messages.
std::string class_text(H5T_class_t kind) {
  switch (kind) {
    case H5T_INTEGER:
      return "integers";
    case H5T_FLOAT:
      return "floating point";
    case H5T_STRING:
      return "text";
    case H5T_ENUM:
      return "an enumeration";
    case H5T_COMPOUND:
      return "records of several fields";
    case H5T_ARRAY:
    case H5T_VLEN:
      return "arrays";
    default:
      return "no numbers";
  }
}

/// H5Lexists fails where a group on the way is missing: asks for each.
bool has_path(hid_t file, const std::string& name) {
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
    if (H5Lexists(file, name.substr(0, slash).c_str(), H5P_DEFAULT) <= 0) return false;
  return H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0;
}

/// Chooses a box of the file's data set; a scalar has no box to choose.
bool select(hid_t space, const std::vector<hsize_t>& from, const std::vector<hsize_t>& box) {
  return box.empty() || H5Sselect_hyperslab(space, H5S_SELECT_SET, from.data(), nullptr, box.data(), nullptr) >= 0;
}

/// HDF5 would clip what does not fit the type asked for: the conversion is stopped, and says so.
H5T_conv_ret_t stop_clipping(H5T_conv_except_t what, hid_t, hid_t, void*, void*, void* clipped) {
  if (what != H5T_CONV_EXCEPT_RANGE_HI && what != H5T_CONV_EXCEPT_RANGE_LOW) return H5T_CONV_UNHANDLED;
  *static_cast<bool*>(clipped) = true;
  return H5T_CONV_ABORT;
}

}  // namespace

struct Hdf5File::Impl {
  hid_t file = -1;
  int descriptor = -1;  ///< the library's, of a file that is read and whose addresses are places in it
  ~Impl() {
    const LibraryLock lock;
    close();
  }
  bool close() { return file < 0 || H5Fclose(std::exchange(file, -1)) >= 0; }
  hid_t open(const std::string& path, const std::string& name) const {
    if (!has_path(file, name)) fail_data(path + ": expected data set " + name + ", found none");
    const hid_t id = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
    if (id < 0) fail_data(path + ": cannot open data set " + name);
    return id;
  }
};

Hdf5File::Hdf5File(const std::string& path, Mode mode) : path_(path), impl_(std::make_unique<Impl>()) {
  const LibraryLock lock;
  if (H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) < 0)  // errors become exceptions, not prints
    fail_runtime(path + ": HDF5 cannot be started");
  if (mode == Mode::create) {
    errno = 0;
    impl_->file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, Id(file_access(), H5Pclose));
    if (impl_->file < 0)
      fail_runtime(path + ": cannot create the HDF5 file" + (errno ? std::string(": ") + std::strerror(errno) : ""));
    return;
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) fail_data(path + ": no such file");
  if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))  // the library would wait for it
    fail_data(path + ": expected a file, found a device or a pipe");
  const Id access(file_access(), H5Pclose);
  impl_->file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  if (impl_->file < 0) {
    const std::string why = why_withheld(path);
    fail_data(path + ": " + (why.empty() ? "not an HDF5 file, truncated or damaged" : why));
  }
  // Versions differ in whether addresses count from behind a user block.
  const Id creation(H5Fget_create_plist(impl_->file), H5Pclose);
  hsize_t block = 0;
  void* handle = nullptr;
  if (H5Pget_driver(access) == H5FD_SEC2 && H5Pget_userblock(creation, &block) >= 0 && block == 0 &&
      H5Fget_vfd_handle(impl_->file, access, &handle) >= 0)
    impl_->descriptor = *static_cast<const int*>(handle);
}

Hdf5File::~Hdf5File() = default;
Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;

std::vector<std::string> Hdf5File::datasets() const {
  const LibraryLock lock;
  std::vector<std::string> names;
  H5G_info_t info{};
  if (H5Gget_info(impl_->file, &info) < 0) fail_data(path_ + ": cannot list the root group");
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto get = [&](char* text, size_t size) {
      const ssize_t length =
          H5Lget_name_by_idx(impl_->file, ".", H5_INDEX_NAME, H5_ITER_INC, i, text, size, H5P_DEFAULT);
      if (length < 0) fail_data(path_ + ": cannot list the root group");
      return static_cast<size_t>(length);
    };
    std::string name(get(nullptr, 0), '\0');
    get(name.data(), name.size() + 1);
    const Id object(H5Oopen(impl_->file, name.c_str(), H5P_DEFAULT), H5Oclose);
    // A link that leads nowhere is no data set.
    if (object.ok() && H5Iget_type(object) == H5I_DATASET) names.push_back(std::move(name));
  }
  return names;
}

bool Hdf5File::contains(const std::string& name) const {
  const LibraryLock lock;
  return has_path(impl_->file, name);
}

std::vector<int64_t> Hdf5File::extents(const std::string& name) const {
  const LibraryLock lock;
  const Id set(impl_->open(path_, name), H5Dclose);
  const Id space(H5Dget_space(set), H5Sclose);
  const int rank = space.ok() ? H5Sget_simple_extent_ndims(space) : -1;
  std::vector<hsize_t> dims(static_cast<size_t>(std::max(0, rank)));
  if (rank < 0 || H5Sget_simple_extent_dims(space, dims.data(), nullptr) != rank)
    fail_data(path_ + ": data set " + name + " has no extents");
  return {dims.begin(), dims.end()};
}

DType Hdf5File::dtype(const std::string& name) const {
  const LibraryLock lock;
  const Id set(impl_->open(path_, name), H5Dclose);
  const Id type(H5Dget_type(set), H5Tclose);
  if (!type.ok()) fail_data(path_ + ": data set " + name + " has no type: damaged");
  const size_t size = H5Tget_size(type);
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_FLOAT) return size == 8 ? DType::f64 : size == 2 ? DType::f16 : DType::f32;
  if (kind == H5T_INTEGER) return size == 1 ? DType::u8 : size == 2 ? DType::i16 : DType::i32;
  fail_data(path_ + ": data set " + name + ": expected integers or floating point, found " + class_text(kind));
}

bool Hdf5File::holds(const std::string& name, DType type) const {
  const LibraryLock lock;
  const Id set(impl_->open(path_, name), H5Dclose);
  const Id held(H5Dget_type(set), H5Tclose);
  return held.ok() && H5Tequal(held, native(type)) > 0;
}

/// A data set that is open, and a box of it that is there.
struct Hdf5File::Box {
  Box(const Hdf5File& file, const std::string& name, std::span<const int64_t> start, std::span<const int64_t> count)
      : set(file.impl_->open(file.path_, name), H5Dclose), space(H5Dget_space(set), H5Sclose) {
    const std::string what = file.path_ + ": data set " + name;
    const Id held(H5Dget_type(set), H5Tclose);
    if (!held.ok() || !space.ok()) fail_data(what + " has no type or extents: damaged");
    if (const H5T_class_t kind = H5Tget_class(held); kind != H5T_INTEGER && kind != H5T_FLOAT && kind != H5T_ENUM)
      fail_data(what + ": expected integers or floating point, found " + class_text(kind));
    wanted = count.empty() ? file.extents(name) : std::vector<int64_t>(count.begin(), count.end());
    box = sizes(wanted), from = count.empty() ? std::vector<hsize_t>(box.size()) : sizes(start);
    if (const int rank = H5Sget_simple_extent_ndims(space); rank != static_cast<int>(box.size()))
      fail_data(what + ": expected " + std::to_string(box.size()) + " dimensions, found " + std::to_string(rank));
    layout = layout_of(what, set, space, file.path_);
    memory.emplace(H5Screate_simple(static_cast<int>(box.size()), box.data(), nullptr), H5Sclose);
    if (!memory->ok() || !select(space, from, box)) fail_data(what + ": the box asked for lies outside");
    hdf5::expect_written(what, set, space, layout, from, box);
  }
  Id set, space;
  std::optional<Id> memory;
  std::vector<int64_t> wanted;     ///< its extents
  std::vector<hsize_t> from, box;  ///< the same as HDF5's sizes, and where it begins
  Layout layout;
};

void Hdf5File::expect_written(const std::string& name, std::span<const int64_t> start,
                              std::span<const int64_t> count) const {
  const LibraryLock lock;
  const Box box(*this, name, start, count);
}

void Hdf5File::read(const std::string& name, DType type, std::span<std::byte> out, std::span<const int64_t> start,
                    std::span<const int64_t> count) const {
  const std::string what = path_ + ": data set " + name;
  std::vector<int64_t> first, extents;
  std::optional<StoredValues> stored;
  {
    const LibraryLock lock;
    const Box box(*this, name, start, count);
    const auto room = static_cast<int64_t>(out.size()) / size_of(type);
    if (checked_elements(box.wanted, room) != room)
      fail_data(what + " is " + extents_text(box.wanted) + ", expected " + std::to_string(room) + " elements");
    if (impl_->descriptor >= 0) stored = stored_values(box.set, box.space, box.layout, type, box.from, box.box);
    if (!stored) return read_by_library(what, box, type, out);
    first.assign(box.from.begin(), box.from.end()), extents = box.wanted;
  }
  read_stored(impl_->descriptor, what, *stored, first, extents, out);
}

void Hdf5File::read_by_library(const std::string& what, const Box& box, DType type, std::span<std::byte> out) const {
  bool clipped = false;
  const Id transfer(H5Pcreate(H5P_DATASET_XFER), H5Pclose);
  if (!transfer.ok() || H5Pset_type_conv_cb(transfer, stop_clipping, &clipped) < 0)
    fail_runtime(path_ + ": cannot describe a transfer");
  if (H5Dread(box.set, native(type), *box.memory, box.space, transfer, out.data()) >= 0 && !clipped) return;
  if (clipped) fail_data(what + " holds a value beyond " + std::string(name_of(type)));
  if (const auto filter = lacking_filter(box.set, box.layout, box.from, box.box)) fail_lacking(what, *filter);
  fail_data(what + ": cannot read, truncated or damaged");
}

void Hdf5File::create(const std::string& name, DType type, std::span<const int64_t> extents,
                      std::span<const int64_t> chunk, int gzip) {
  const LibraryLock lock;
  const std::vector<hsize_t> dims = sizes(extents), blocks = sizes(chunk);
  const Id space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose);
  const Id properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose), links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  const auto compress = [&] {
    return H5Pset_shuffle(properties) >= 0 && H5Pset_deflate(properties, static_cast<unsigned>(gzip)) >= 0;
  };
  const auto cut = [&] {
    return H5Pset_chunk(properties, static_cast<int>(blocks.size()), blocks.data()) >= 0 && (gzip == 0 || compress());
  };
  if (!space.ok() || !properties.ok() || !links.ok() ||
      H5Pset_obj_track_times(properties, 0) < 0 ||  // equal contents, equal files
      (!blocks.empty() && !cut()) || H5Pset_create_intermediate_group(links, 1) < 0)
    fail_runtime(path_ + ": cannot describe data set " + name + " of " + extents_text(extents));
  Id set(H5Dcreate2(impl_->file, name.c_str(), native(type), space, links, properties, H5P_DEFAULT), H5Dclose);
  if (!set.ok() || !set.close()) fail_runtime(path_ + ": cannot create data set " + name);
}

void Hdf5File::write_box(const std::string& name, DType type, std::span<const int64_t> start,
                         std::span<const int64_t> count, std::span<const std::byte> data) {
  const LibraryLock lock;
  const std::vector<hsize_t> from = sizes(start), box = sizes(count);
  const auto held = static_cast<int64_t>(data.size()) / size_of(type);
  if (checked_elements(count, held) != held)
    fail_runtime(path_ + ": data set " + name + ": expected " + extents_text(count) + " elements, found " +
                 std::to_string(held));
  Id set(impl_->open(path_, name), H5Dclose);
  const Id space(H5Dget_space(set), H5Sclose);
  const Id memory(H5Screate_simple(static_cast<int>(box.size()), box.data(), nullptr), H5Sclose);
  if (!space.ok() || !memory.ok() || !select(space, from, box) ||
      H5Dwrite(set, native(type), memory, space, H5P_DEFAULT, data.data()) < 0 || !set.close())
    fail_runtime(path_ + ": cannot write data set " + name + " (disk full?)");
}

void Hdf5File::write(const std::string& name, DType type, std::span<const int64_t> extents,
                     std::span<const std::byte> data, std::span<const int64_t> chunk, int gzip) {
  const LibraryLock lock;
  create(name, type, extents, chunk, gzip);
  const std::vector<int64_t> zero(extents.size(), 0);
  write_box(name, type, zero, extents, data);
}

void Hdf5File::write_text(const std::string& attribute, const std::string& value) {
  const LibraryLock lock;
  const Id type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate(H5S_SCALAR), H5Sclose);
  const bool sized = type.ok() && H5Tset_size(type, std::max<size_t>(1, value.size())) >= 0;
  Id handle(sized ? H5Acreate2(impl_->file, attribute.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT) : H5I_INVALID_HID,
            H5Aclose);
  if (!handle.ok() || H5Awrite(handle, type, value.empty() ? "" : value.c_str()) < 0 || !handle.close())
    fail_runtime(path_ + ": cannot write attribute " + attribute + " (disk full?)");
}

std::optional<std::string> Hdf5File::read_text(const std::string& attribute) const {
  const LibraryLock lock;
  const htri_t there = H5Aexists(impl_->file, attribute.c_str());
  if (there == 0) return std::nullopt;
  const Id handle(there > 0 ? H5Aopen(impl_->file, attribute.c_str(), H5P_DEFAULT) : H5I_INVALID_HID, H5Aclose);
  if (!handle.ok()) fail_data(path_ + ": cannot open attribute " + attribute);
  const Id type(H5Aget_type(handle), H5Tclose), space(H5Aget_space(handle), H5Sclose);
  if (!space.ok() || H5Sget_simple_extent_npoints(space) != 1)
    fail_data(path_ + ": attribute " + attribute + " is no single text");
  if (!type.ok() || H5Tget_class(type) != H5T_STRING) fail_data(path_ + ": attribute " + attribute + " is no text");
  std::string value(H5Tget_size(type), '\0');
  char* text = nullptr;  // of any length, in memory of the library
  const bool variable = H5Tis_variable_str(type) > 0;
  if (H5Aread(handle, type, variable ? static_cast<void*>(&text) : value.data()) < 0)
    fail_data(path_ + ": cannot read attribute " + attribute);
  if (variable) {
    value = text ? text : "";
    H5free_memory(text);
  }
  return value.c_str();  // a fixed length may end in padding
}

void Hdf5File::close() {
  const LibraryLock lock;
  const bool flushed = impl_->file < 0 || H5Fflush(impl_->file, H5F_SCOPE_LOCAL) >= 0;
  if (!impl_->close() || !flushed) fail_runtime(path_ + ": cannot write to disk (disk full?)");
}

bool has_hdf5() {
  return true;
}

std::string hdf5_version() {
  const LibraryLock lock;
  unsigned major = 0, minor = 0, patch = 0;
  if (H5get_libversion(&major, &minor, &patch) < 0) return "unknown";
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace convoy
