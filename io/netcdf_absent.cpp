// Stands in for netcdf.cpp in builds without NetCDF: every attempt to open a file says so.
#include "core/error.h"
#include "io/netcdf.h"

namespace convoy {

struct NetcdfFile::Axes {};
NetcdfFile::NetcdfFile(const std::string& path) : path_(path) {
  fail_usage(path + ": this build has no NetCDF (WITH_NETCDF=OFF)");
}
NetcdfFile::~NetcdfFile() = default;
std::vector<std::string> NetcdfFile::fields() const {
  return {};
}
std::optional<int64_t> NetcdfFile::steps(const std::string&) const {
  return std::nullopt;
}
std::vector<std::optional<std::string>> NetcdfFile::days(const std::string&, std::string*) const {
  return {};
}
GriddedField NetcdfFile::read(const std::string&, int64_t, std::optional<double>) const {
  return {};
}

bool has_netcdf() {
  return false;
}

}  // namespace convoy
