#include "io/netcdf.h"

#include <netcdf.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "core/error.h"

namespace convoy {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// What a dimension measures, by its coordinate's units or its name.
enum class Axis : uint8_t { latitude, longitude, level, other };

std::optional<std::string> text_attribute(int file, int variable, const char* name) {
  size_t length = 0;
  nc_type type = 0;
  if (nc_inq_att(file, variable, name, &type, &length) != NC_NOERR || type != NC_CHAR) return std::nullopt;
  std::string text(length, '\0');
  if (nc_get_att_text(file, variable, name, text.data()) != NC_NOERR) return std::nullopt;
  return text.c_str();
}

std::optional<double> number_attribute(int file, int variable, const char* name) {
  double value = 0;
  size_t length = 0;
  if (nc_inq_attlen(file, variable, name, &length) != NC_NOERR || length < 1 || length > 1) return std::nullopt;
  return nc_get_att_double(file, variable, name, &value) == NC_NOERR ? std::optional(value) : std::nullopt;
}

Axis axis_of(int file, const std::string& dimension) {
  int variable = -1;
  std::string units;
  if (nc_inq_varid(file, dimension.c_str(), &variable) == NC_NOERR)
    units = lower(text_attribute(file, variable, "units").value_or(""));
  const std::string name = lower(dimension);
  if (units.starts_with("degrees_north") || units.starts_with("degree_north") || name.starts_with("lat"))
    return Axis::latitude;
  if (units.starts_with("degrees_east") || units.starts_with("degree_east") || name.starts_with("lon"))
    return Axis::longitude;
  for (const char* level : {"lev", "plev", "isobaric", "pres", "z", "depth", "height"})
    if (name.starts_with(level)) return Axis::level;
  for (const char* unit : {"pa", "hpa", "mb", "millibar"})
    if (units == unit || units.starts_with("millibar")) return Axis::level;
  return Axis::other;
}

/// " 500", " 0.5".
std::string level_text(double level) {
  char text[32];
  std::snprintf(text, sizeof text, " %g", level);
  return text;
}

}  // namespace

struct NetcdfFile::Axes {
  int variable = -1;
  std::vector<int> dimension;
  std::vector<std::string> name;
  std::vector<size_t> extent;
  std::vector<Axis> kind;
  std::optional<size_t> find(Axis axis) const {
    const auto found = std::find(kind.begin(), kind.end(), axis);
    return found == kind.end() ? std::nullopt : std::optional(static_cast<size_t>(found - kind.begin()));
  }
};

NetcdfFile::NetcdfFile(const std::string& path) : path_(path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) fail_data(path + ": no such file");
  if (const int code = nc_open(path.c_str(), NC_NOWRITE, &id_); code != NC_NOERR)
    fail_data(path + ": expected a NetCDF file: " + nc_strerror(code));
}

NetcdfFile::~NetcdfFile() {
  nc_close(id_);
}

NetcdfFile::Axes NetcdfFile::axes(const std::string& name) const {
  Axes a;
  if (nc_inq_varid(id_, name.c_str(), &a.variable) != NC_NOERR) {
    std::string found;
    for (const std::string& field : fields()) found += (found.empty() ? "" : ", ") + field;
    fail_data(path_ + ": expected variable " + name + ", found " + (found.empty() ? "no fields" : found));
  }
  int rank = 0;
  nc_inq_varndims(id_, a.variable, &rank);
  a.dimension.resize(static_cast<size_t>(rank));
  nc_inq_vardimid(id_, a.variable, a.dimension.data());
  for (int dimension : a.dimension) {
    char text[NC_MAX_NAME + 1] = {};
    size_t extent = 0;
    nc_inq_dim(id_, dimension, text, &extent);
    a.name.emplace_back(text);
    a.extent.push_back(extent);
    a.kind.push_back(axis_of(id_, text));
  }
  return a;
}

std::vector<std::string> NetcdfFile::fields() const {
  int count = 0;
  nc_inq_nvars(id_, &count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    char text[NC_MAX_NAME + 1] = {};
    nc_inq_varname(id_, i, text);
    const Axes a = axes(text);
    if (a.find(Axis::latitude) && a.find(Axis::longitude)) names.emplace_back(text);
  }
  return names;
}

int64_t NetcdfFile::steps(const std::string& name) const {
  const Axes a = axes(name);
  const auto time = a.find(Axis::other);
  return time ? static_cast<int64_t>(a.extent[*time]) : 1;
}

std::vector<double> NetcdfFile::coordinates(int dimension, const std::string& name) const {
  size_t extent = 0;
  int variable = -1;
  nc_inq_dimlen(id_, dimension, &extent);
  std::vector<double> values(extent);
  int rank = 0, own = -1;
  if (nc_inq_varid(id_, name.c_str(), &variable) != NC_NOERR || nc_inq_varndims(id_, variable, &rank) != NC_NOERR ||
      rank != 1 || nc_inq_vardimid(id_, variable, &own) != NC_NOERR || own != dimension)
    fail_data(path_ + ": expected one coordinate per position of dimension " + name + ", found " +
              (variable < 0 ? "none" : std::to_string(rank) + " dimensions"));
  if (nc_get_var_double(id_, variable, values.data()) != NC_NOERR)
    fail_data(path_ + ": cannot read the coordinates of dimension " + name);
  if (values.empty()) fail_data(path_ + ": dimension " + name + ": expected positions, found none");
  for (double v : values)
    if (!std::isfinite(v)) fail_data(path_ + ": dimension " + name + ": a coordinate is not finite");
  return values;
}

GriddedField NetcdfFile::read(const std::string& name, int64_t step, std::optional<double> level) const {
  const Axes a = axes(name);
  const auto lat = a.find(Axis::latitude), lon = a.find(Axis::longitude), lev = a.find(Axis::level);
  if (!lat || !lon) fail_data(path_ + ": variable " + name + ": expected dimensions latitude and longitude");
  if (*lat > *lon) fail_data(path_ + ": variable " + name + ": expected latitude ahead of longitude");
  std::vector<size_t> start(a.extent.size()), count(a.extent.size(), 1);
  count[*lat] = a.extent[*lat], count[*lon] = a.extent[*lon];
  if (lev) {
    const std::vector<double> levels = coordinates(a.dimension[*lev], a.name[*lev]);
    if (!level && levels.size() > 1)
      fail_data(path_ + ": variable " + name + " has " + std::to_string(levels.size()) +
                " levels: name one (VARIABLE@LEVEL)");
    for (size_t i = 0; i < levels.size() && level; ++i)
      if (std::abs(levels[i] - *level) < std::abs(levels[start[*lev]] - *level)) start[*lev] = i;
    // Rounded coordinates are meant, neighbouring levels are not.
    if (level && std::abs(levels[start[*lev]] - *level) > 0.005 * std::abs(*level)) {
      std::string all;
      for (double l : levels) all += level_text(l);
      fail_data(path_ + ": variable " + name + ": expected level" + level_text(*level) + ", found" + all);
    }
  }
  if (const auto time = a.find(Axis::other)) {
    if (step >= static_cast<int64_t>(a.extent[*time]))
      fail_data(path_ + ": variable " + name + ": expected step " + std::to_string(step) + ", found " +
                std::to_string(a.extent[*time]) + " steps");
    start[*time] = static_cast<size_t>(step);
  }
  const size_t rows = a.extent[*lat], columns = a.extent[*lon];
  std::vector<float> raw(rows * columns);
  if (const int code = nc_get_vara_float(id_, a.variable, start.data(), count.data(), raw.data()); code != NC_NOERR)
    fail_data(path_ + ": variable " + name + ": cannot read: " + nc_strerror(code));
  const double scale = number_attribute(id_, a.variable, "scale_factor").value_or(1),
               offset = number_attribute(id_, a.variable, "add_offset").value_or(0);
  std::vector<double> missing;
  for (const char* attribute : {"_FillValue", "missing_value"})
    if (const auto value = number_attribute(id_, a.variable, attribute)) missing.push_back(*value);
  for (float& v : raw) {
    const bool gone = !std::isfinite(v) || std::abs(v) > 1e30f ||
                      std::any_of(missing.begin(), missing.end(), [&](double m) { return float(m) == v; });
    v = gone ? NAN : float(double(v) * scale + offset);
  }

  GriddedField f;
  const std::vector<double> latitude = coordinates(a.dimension[*lat], a.name[*lat]);
  std::vector<double> longitude = coordinates(a.dimension[*lon], a.name[*lon]);
  for (double& l : longitude) l = std::fmod(std::fmod(l, 360) + 360, 360);
  const auto ascending = [](const std::vector<double>& axis) {
    std::vector<size_t> order(axis.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return axis[i] < axis[j]; });
    // A grid that names its first meridian twice says it once.
    order.erase(std::unique(order.begin(), order.end(), [&](size_t i, size_t j) { return axis[i] == axis[j]; }),
                order.end());
    return order;
  };
  const auto row_order = ascending(latitude), column_order = ascending(longitude);
  for (size_t r : row_order) f.latitude.push_back(latitude[r]);
  for (size_t c : column_order) f.longitude.push_back(longitude[c]);
  for (size_t r : row_order)
    for (size_t c : column_order) f.values.push_back(raw[r * columns + c]);
  return f;
}

bool has_netcdf() {
  return true;
}

}  // namespace convoy
