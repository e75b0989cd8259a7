#include "io/hdf5.h"

#include <hdf5.h>
#include <sys/stat.h>

#include <functional>

namespace convoy {
namespace {

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

 private:
  hid_t id_;
  Close close_;
};

/// IEEE half precision, which HDF5 1.10 has no name for.
hid_t half_type() {
  static const hid_t type = [] {
    const hid_t half = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(half, 15, 10, 5, 0, 10);
    H5Tset_size(half, 2);
    H5Tset_ebias(half, 15);
    return half;
  }();
  return type;
}

hid_t native(DType type) {
  switch (type) {
    case DType::f16:
      return half_type();
    case DType::f64:
      return H5T_NATIVE_DOUBLE;
    case DType::f32:
      return H5T_NATIVE_FLOAT;
    case DType::i32:
      return H5T_NATIVE_INT32;
    case DType::i16:
      return H5T_NATIVE_INT16;
    case DType::u8:
      return H5T_NATIVE_UINT8;
    default:
      fail_runtime("HDF5 has no " + std::string(name_of(type)));
  }
}

std::vector<hsize_t> sizes(std::span<const int64_t> values) {
  return {values.begin(), values.end()};
}

/// H5Lexists fails where a group on the way is missing: asks for each.
bool has_path(hid_t file, const std::string& name) {
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1))
    if (H5Lexists(file, name.substr(0, slash).c_str(), H5P_DEFAULT) <= 0) return false;
  return H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0;
}

}  // namespace

struct Hdf5File::Impl {
  hid_t file = -1;
  ~Impl() {
    if (file >= 0) H5Fclose(file);
  }
  hid_t open(const std::string& path, const std::string& name) const {
    if (!has_path(file, name)) fail_data(path + ": expected data set " + name + ", found none");
    const hid_t id = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
    if (id < 0) fail_data(path + ": cannot open data set " + name);
    return id;
  }
};

Hdf5File::Hdf5File(const std::string& path, Mode mode) : path_(path), impl_(std::make_unique<Impl>()) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors become exceptions, not prints
  if (mode == Mode::create) {
    impl_->file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    if (impl_->file < 0) fail_runtime(path + ": cannot create the HDF5 file");
    return;
  }
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) fail_data(path + ": no such file");
  impl_->file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (impl_->file < 0) fail_data(path + ": not an HDF5 file, truncated or damaged");
}

Hdf5File::~Hdf5File() = default;
Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;

std::vector<std::string> Hdf5File::datasets() const {
  std::vector<std::string> names;
  H5G_info_t info{};
  if (H5Gget_info(impl_->file, &info) < 0) fail_data(path_ + ": cannot list the root group");
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    char name[256] = {};
    if (H5Lget_name_by_idx(impl_->file, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT) < 0)
      continue;
    const Id object(H5Oopen(impl_->file, name, H5P_DEFAULT), H5Oclose);
    if (object.ok() && H5Iget_type(object) == H5I_DATASET) names.emplace_back(name);
  }
  return names;
}

bool Hdf5File::contains(const std::string& name) const {
  return has_path(impl_->file, name);
}

std::vector<int64_t> Hdf5File::extents(const std::string& name) const {
  const Id set(impl_->open(path_, name), H5Dclose);
  const Id space(H5Dget_space(set), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank < 0) fail_data(path_ + ": data set " + name + " has no extents");
  std::vector<hsize_t> dims(static_cast<size_t>(rank));
  H5Sget_simple_extent_dims(space, dims.data(), nullptr);
  return {dims.begin(), dims.end()};
}

DType Hdf5File::dtype(const std::string& name) const {
  const Id set(impl_->open(path_, name), H5Dclose);
  const Id type(H5Dget_type(set), H5Tclose);
  const size_t size = H5Tget_size(type);
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_FLOAT) return size == 8 ? DType::f64 : size == 2 ? DType::f16 : DType::f32;
  if (kind == H5T_INTEGER) return size == 1 ? DType::u8 : size == 2 ? DType::i16 : DType::i32;
  fail_data(path_ + ": data set " + name + " holds neither integers nor floating point");
}

void Hdf5File::read(const std::string& name, DType type, std::span<std::byte> out, std::span<const int64_t> start,
                    std::span<const int64_t> count) const {
  const Id set(impl_->open(path_, name), H5Dclose);
  const Id space(H5Dget_space(set), H5Sclose);
  std::vector<hsize_t> from = sizes(start), box = sizes(count);
  if (box.empty()) {
    for (int64_t e : extents(name)) box.push_back(static_cast<hsize_t>(e));
    from.assign(box.size(), 0);
  }
  if (H5Sget_simple_extent_ndims(space) != static_cast<int>(box.size()))
    fail_data(path_ + ": data set " + name + ": expected " + std::to_string(box.size()) + " dimensions, found " +
              std::to_string(H5Sget_simple_extent_ndims(space)));
  hsize_t elements = 1;
  for (hsize_t e : box) elements *= e;
  if (elements * static_cast<hsize_t>(size_of(type)) != out.size())
    fail_data(path_ + ": data set " + name + " has " + std::to_string(elements) + " elements, expected " +
              std::to_string(out.size() / static_cast<size_t>(size_of(type))));
  const Id memory(H5Screate_simple(static_cast<int>(box.size()), box.data(), nullptr), H5Sclose);
  if (!box.empty() && H5Sselect_hyperslab(space, H5S_SELECT_SET, from.data(), nullptr, box.data(), nullptr) < 0)
    fail_data(path_ + ": data set " + name + ": the box asked for lies outside");
  if (H5Dread(set, native(type), memory, space, H5P_DEFAULT, out.data()) < 0)
    fail_data(path_ + ": data set " + name + ": cannot read, truncated or damaged");
}

void Hdf5File::create(const std::string& name, DType type, std::span<const int64_t> extents,
                      std::span<const int64_t> chunk, int gzip) {
  const std::vector<hsize_t> dims = sizes(extents), blocks = sizes(chunk);
  const Id space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose);
  const Id properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties, 0);  // equal contents, equal files
  if (!blocks.empty()) {
    H5Pset_chunk(properties, static_cast<int>(blocks.size()), blocks.data());
    if (gzip > 0) H5Pset_shuffle(properties), H5Pset_deflate(properties, static_cast<unsigned>(gzip));
  }
  const Id links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links, 1);
  const Id set(H5Dcreate2(impl_->file, name.c_str(), native(type), space, links, properties, H5P_DEFAULT), H5Dclose);
  if (!set.ok()) fail_runtime(path_ + ": cannot create data set " + name);
}

void Hdf5File::write_box(const std::string& name, DType type, std::span<const int64_t> start,
                         std::span<const int64_t> count, std::span<const std::byte> data) {
  const std::vector<hsize_t> from = sizes(start), box = sizes(count);
  hsize_t elements = 1;
  for (hsize_t e : box) elements *= e;
  if (elements * static_cast<hsize_t>(size_of(type)) != data.size())
    fail_runtime(path_ + ": data set " + name + ": expected " + std::to_string(elements) + " elements, found " +
                 std::to_string(data.size() / static_cast<size_t>(size_of(type))));
  const Id set(impl_->open(path_, name), H5Dclose);
  const Id space(H5Dget_space(set), H5Sclose);
  const Id memory(H5Screate_simple(static_cast<int>(box.size()), box.data(), nullptr), H5Sclose);
  if ((!box.empty() && H5Sselect_hyperslab(space, H5S_SELECT_SET, from.data(), nullptr, box.data(), nullptr) < 0) ||
      H5Dwrite(set, native(type), memory, space, H5P_DEFAULT, data.data()) < 0)
    fail_runtime(path_ + ": cannot write data set " + name + " (disk full?)");
}

void Hdf5File::write(const std::string& name, DType type, std::span<const int64_t> extents,
                     std::span<const std::byte> data, std::span<const int64_t> chunk, int gzip) {
  create(name, type, extents, chunk, gzip);
  const std::vector<int64_t> zero(extents.size(), 0);
  write_box(name, type, zero, extents, data);
}

void Hdf5File::write_text(const std::string& attribute, const std::string& value) {
  const Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, std::max<size_t>(1, value.size()));
  const Id space(H5Screate(H5S_SCALAR), H5Sclose);
  const Id handle(H5Acreate2(impl_->file, attribute.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!handle.ok() || H5Awrite(handle, type, value.empty() ? "" : value.c_str()) < 0)
    fail_runtime(path_ + ": cannot write attribute " + attribute);
}

std::optional<std::string> Hdf5File::read_text(const std::string& attribute) const {
  if (H5Aexists(impl_->file, attribute.c_str()) <= 0) return std::nullopt;
  const Id handle(H5Aopen(impl_->file, attribute.c_str(), H5P_DEFAULT), H5Aclose);
  if (!handle.ok()) fail_data(path_ + ": cannot open attribute " + attribute);
  const Id type(H5Aget_type(handle), H5Tclose);
  const Id space(H5Aget_space(handle), H5Sclose);
  if (H5Sget_simple_extent_npoints(space) != 1) fail_data(path_ + ": attribute " + attribute + " is no single text");
  if (!type.ok() || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0)
    fail_data(path_ + ": attribute " + attribute + " is no fixed-length text");
  std::string value(H5Tget_size(type), '\0');
  if (H5Aread(handle, type, value.data()) < 0) fail_data(path_ + ": cannot read attribute " + attribute);
  return value;
}

void Hdf5File::flush() {
  if (H5Fflush(impl_->file, H5F_SCOPE_LOCAL) < 0) fail_runtime(path_ + ": cannot flush to disk (disk full?)");
}

bool has_hdf5() {
  return true;
}

std::string hdf5_version() {
  unsigned major = 0, minor = 0, patch = 0;
  H5get_libversion(&major, &minor, &patch);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace convoy
