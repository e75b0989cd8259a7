// Stands in for hdf5.cpp in builds without HDF5: every attempt to open a file says so.
#include "io/hdf5.h"

namespace convoy {
namespace {
[[noreturn]] void absent(const std::string& path) {
  fail_usage(path + ": this build has no HDF5 (WITH_HDF5=OFF)");
}
}  // namespace

struct Hdf5File::Impl {};
Hdf5File::Hdf5File(const std::string& path, Mode) : path_(path) {
  absent(path);
}
Hdf5File::~Hdf5File() = default;
Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;
std::vector<std::string> Hdf5File::datasets() const {
  absent(path_);
}
bool Hdf5File::contains(const std::string&) const {
  absent(path_);
}
std::vector<int64_t> Hdf5File::extents(const std::string&) const {
  absent(path_);
}
DType Hdf5File::dtype(const std::string&) const {
  absent(path_);
}
bool Hdf5File::holds(const std::string&, DType) const {
  absent(path_);
}
void Hdf5File::expect_written(const std::string&, std::span<const int64_t>, std::span<const int64_t>) const {
  absent(path_);
}
void Hdf5File::read(const std::string&, DType, std::span<std::byte>, std::span<const int64_t>,
                    std::span<const int64_t>) const {
  absent(path_);
}
void Hdf5File::write(const std::string&, DType, std::span<const int64_t>, std::span<const std::byte>,
                     std::span<const int64_t>, int) {
  absent(path_);
}
void Hdf5File::create(const std::string&, DType, std::span<const int64_t>, std::span<const int64_t>, int) {
  absent(path_);
}
void Hdf5File::write_box(const std::string&, DType, std::span<const int64_t>, std::span<const int64_t>,
                         std::span<const std::byte>) {
  absent(path_);
}
void Hdf5File::write_text(const std::string&, const std::string&) {
  absent(path_);
}
std::optional<std::string> Hdf5File::read_text(const std::string&) const {
  absent(path_);
}
void Hdf5File::close() {
  absent(path_);
}
bool has_hdf5() {
  return false;
}
std::string hdf5_version() {
  return "none";
}

}  // namespace convoy
