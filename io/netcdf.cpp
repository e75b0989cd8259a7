#include "io/netcdf.h"

#include <netcdf.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <numeric>
#include <string_view>

#include "core/error.h"
#include "io/dates.h"
#include "io/extents.h"

namespace convoy {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// What a dimension measures, by its coordinate's units, standard_name or axis, or by its name.
enum class Axis : uint8_t { latitude, longitude, level, time, other };

std::optional<std::string> text_attribute(int file, int variable, const char* name) {
  size_t length = 0;
  nc_type type = 0;
  if (nc_inq_att(file, variable, name, &type, &length) != NC_NOERR) return std::nullopt;
  if (type == NC_STRING) {  // as h5netcdf writes them; several: with blanks between them
    std::vector<char*> strings(length);
    if (nc_get_att_string(file, variable, name, strings.data()) != NC_NOERR) return std::nullopt;
    std::string text;
    for (const char* one : strings) text += (text.empty() ? "" : " ") + std::string(one ? one : "");
    nc_free_string(length, strings.data());
    return text;
  }
  if (type != NC_CHAR) return std::nullopt;
  std::string text(length, '\0');
  if (nc_get_att_text(file, variable, name, text.data()) != NC_NOERR) return std::nullopt;
  return text.c_str();
}

/// Numbers written as text, with commas or blanks between them, a sign or C's suffix; nullopt for other text.
std::optional<std::vector<double>> numbers_in(const std::string& text) {
  std::vector<double> values;
  constexpr const char* between = " ,\t\n";
  for (size_t at = 0; (at = text.find_first_not_of(between, at)) != std::string::npos;) {
    const size_t behind = std::min(text.find_first_of(between, at), text.size());
    const char *digit = text.data() + at + (text[at] == '+'), *end = text.data() + behind;
    at = behind;
    if (digit < end && std::string_view("fFdD").find(end[-1]) != std::string_view::npos) --end;
    double value = 0;
    const auto [read, failed] = std::from_chars(digit, end, value);
    if (failed != std::errc() || read != end) return std::nullopt;
    values.push_back(value);
  }
  return values;
}

/// The numbers of an attribute, also of one that is text; none where it is not there, or empty. Throws Error(data) with
/// `what` where it holds something else, which as nothing at all would let fill values pass for data.
std::vector<double> number_attributes(int file, int variable, const char* name, const std::string& what) {
  size_t length = 0;
  if (nc_inq_attlen(file, variable, name, &length) != NC_NOERR) return {};
  std::vector<double> values(length);
  if (nc_get_att_double(file, variable, name, values.data()) == NC_NOERR) return values;
  const std::optional<std::string> text = text_attribute(file, variable, name);
  const auto numbers = text ? numbers_in(*text) : std::nullopt;
  if (!numbers)
    fail_data(what + ": attribute " + name + ": expected numbers, found " +
              (text ? "\"" + *text + "\"" : std::string("another type")));
  return *numbers;
}

/// The same of an attribute of one number.
std::optional<double> number_attribute(int file, int variable, const char* name, const std::string& what) {
  const std::vector<double> values = number_attributes(file, variable, name, what);
  if (values.size() > 1)
    fail_data(what + ": attribute " + name + ": expected one number, found " + std::to_string(values.size()));
  return values.empty() ? std::nullopt : std::optional(values[0]);
}

/// What NetCDF fills a variable with that nobody writes to. Bytes are all meant; floating point is filled with 1e37.
std::optional<double> default_fill(int file, int variable) {
  nc_type type = 0;
  if (nc_inq_vartype(file, variable, &type) != NC_NOERR) return std::nullopt;
  switch (type) {
    case NC_SHORT:
      return NC_FILL_SHORT;
    case NC_USHORT:
      return NC_FILL_USHORT;
    case NC_INT:
      return NC_FILL_INT;
    case NC_UINT:
      return NC_FILL_UINT;
    case NC_INT64:
      return double(NC_FILL_INT64);
    case NC_UINT64:
      return double(NC_FILL_UINT64);
    default:
      return std::nullopt;
  }
}

/// " 500", " 0.5".
std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, " %g", number);
  return text;
}

/// The place of a type of numbers in the order of how much they hold; of text it is that of f64.
int width_of(nc_type type) {
  if (type == NC_CHAR || type == NC_STRING) return width_of(NC_DOUBLE);
  constexpr nc_type narrow_to_wide[] = {NC_BYTE, NC_UBYTE, NC_SHORT,  NC_USHORT, NC_INT,
                                        NC_UINT, NC_INT64, NC_UINT64, NC_FLOAT,  NC_DOUBLE};
  return static_cast<int>(std::find(std::begin(narrow_to_wide), std::end(narrow_to_wide), type) -
                          std::begin(narrow_to_wide));
}

/// How stored numbers stand for values, by the CF conventions: value = stored * scale_factor + add_offset, where types
/// with a sign are read without it, or bytes without one with it, if _Unsigned says so.
struct Packing {
  /// Throws Error(data) with `what` where an attribute is there and no single number.
  Packing(int file, int variable, const std::string& what) {
    for (const auto& [name, value] : {std::pair{"scale_factor", &scale}, std::pair{"add_offset", &offset}}) {
      const auto number = number_attribute(file, variable, name, what);
      if (!number) continue;
      *value = *number;
      nc_type of = 0;
      nc_inq_atttype(file, variable, name, &of);
      width = std::max(width, width_of(of));
    }
    nc_type type = 0;
    const std::string no_sign = lower(text_attribute(file, variable, "_Unsigned").value_or(""));
    if (nc_inq_vartype(file, variable, &type) != NC_NOERR) return;
    if (no_sign == "true") wraps = type == NC_BYTE ? 0x1p8 : type == NC_SHORT ? 0x1p16 : type == NC_INT ? 0x1p32 : 0;
    signed_bytes = no_sign == "false" && type == NC_UBYTE;
  }
  /// A number as it was meant ahead of scale and offset, of the data or of an attribute in the data's type.
  double stored(double v) const { return v < 0 ? v + wraps : signed_bytes && v > 127 ? v - 256 : v; }
  double value(double stored) const { return stored * scale + offset; }
  double scale = 1, offset = 0;
  int width = -1;    ///< of the wider type of these two
  double wraps = 0;  ///< what negative numbers are short of
  bool signed_bytes = false;
};

/// Which stored values stand for nothing, by the CF conventions: all attributes are in the units of the file, ahead of
/// scale_factor and add_offset, but for bounds of the valid range that are of these two's type and wider than the data:
/// those are values (NetCDF Users Guide, Attribute Conventions).
class Missing {
 public:
  /// Throws Error(data) with `what` where no value is valid, or an attribute does not say which are.
  Missing(int file, int variable, const Packing& packing, const std::string& what) {
    nc_type type = 0;
    nc_inq_vartype(file, variable, &type);
    whole_ = type != NC_FLOAT && type != NC_DOUBLE;
    const auto stored = [&](double v) { return narrow(packing.stored(v)); };
    for (const char* attribute : {"_FillValue", "missing_value"})  // the latter may name several
      for (double value : number_attributes(file, variable, attribute, what)) {
        fill_.push_back(stored(value));
        nc_type of = 0;
        if (whole_ && nc_inq_atttype(file, variable, attribute, &of) == NC_NOERR && of == NC_FLOAT)
          rounded_.push_back(float(packing.stored(value)));
      }
    int filled = 0;
    if (nc_inq_attid(file, variable, "_FillValue", &filled) != NC_NOERR)
      if (const auto value = default_fill(file, variable)) fill_.push_back(stored(*value));
    std::string units;
    const auto bound = [&](const char* attribute, double value, bool lower) {
      nc_type of = 0;
      nc_inq_atttype(file, variable, attribute, &of);
      const bool packed = width_of(of) != packing.width || packing.width <= width_of(type);
      if (packed) return within(lower, stored(value));
      if (packing.scale == 0)
        fail_data(what + ": attribute scale_factor: expected none of 0 beside a valid range, found 0");
      // A stored number that means the bound is within, however that was rounded to its type.
      const double rounding = of == NC_FLOAT ? double(std::numeric_limits<float>::epsilon())
                                             : std::numeric_limits<double>::epsilon(),
                   slack = 4 * rounding * (std::abs(value) + std::abs(packing.offset));
      within(lower == (packing.scale >= 0),
             narrow((value + (lower ? -slack : slack) - packing.offset) / packing.scale));
      units = " in packed units";
    };
    if (const auto range = number_attributes(file, variable, "valid_range", what); !range.empty()) {
      if (range.size() != 2)
        fail_data(what + ": attribute valid_range: expected two numbers, found " + std::to_string(range.size()));
      bound("valid_range", range[0], true), bound("valid_range", range[1], false);
    } else {
      if (const auto least = number_attribute(file, variable, "valid_min", what)) bound("valid_min", *least, true);
      if (const auto most = number_attribute(file, variable, "valid_max", what)) bound("valid_max", *most, false);
    }
    if (least_ > most_)
      fail_data(what + ": expected a valid range, found" + number_text(least_) + " to" + number_text(most_) + units);
  }
  bool operator()(double value) const {
    const double v = narrow(value);
    return !(std::abs(v) <= largest) || v < least_ || v > most_ ||
           std::find(fill_.begin(), fill_.end(), v) != fill_.end() ||
           std::find(rounded_.begin(), rounded_.end(), float(v)) != rounded_.end();
  }

 private:
  static constexpr double largest = 1e30;  ///< of what is meant
  /// A bound more: with a negative scale two may be of the same side.
  void within(bool lower, double bound) {
    if (lower)
      least_ = std::max(least_, bound);
    else
      most_ = std::min(most_, bound);
  }
  /// Attributes may have another type than their variable: with floating point all are compared as f32, what is beyond
  /// that as infinite. Whole numbers are what they are (f32 would make one of neighbours beyond 2^24), unless the
  /// attribute is f32 itself.
  double narrow(double v) const {
    if (whole_) return v;
    return std::abs(v) > std::numeric_limits<float>::max() ? std::copysign(INFINITY, v) : double(float(v));
  }
  bool whole_ = false;
  std::vector<double> fill_;
  std::vector<float> rounded_;  ///< what f32 attributes of whole numbers name
  double least_ = -INFINITY, most_ = INFINITY;
};

/// The product of extents that some grid may have.
size_t checked_count(std::initializer_list<size_t> extents, const std::string& what) {
  const std::vector<int64_t> list(extents.begin(), extents.end());
  const auto count = checked_elements(list, int64_t{1} << 30);
  if (!count) fail_data(what + ": expected at most 2^30 positions, found " + extents_text(list));
  return static_cast<size_t>(*count);
}

/// The spellings of CF 4.1 and 4.2, in lower case: degrees_north, degree_north, degree_n, degrees_n, degreen, degreesn.
bool are_degrees(std::string_view units, std::string_view direction) {
  for (const std::string_view degree : {"degrees", "degree"}) {
    if (!units.starts_with(degree)) continue;
    std::string_view rest = units.substr(degree.size());
    if (rest.starts_with('_')) rest.remove_prefix(1);
    if (rest.starts_with(direction) || rest == direction.substr(0, 1)) return true;
  }
  return false;
}

Axis axis_of(int file, const std::string& dimension) {
  int variable = -1;
  const bool has_coordinates = nc_inq_varid(file, dimension.c_str(), &variable) == NC_NOERR;
  const auto attribute = [&](const char* name) {
    return has_coordinates ? lower(text_attribute(file, variable, name).value_or("")) : std::string();
  };
  const std::string units = attribute("units"), standard = attribute("standard_name"), letter = attribute("axis"),
                    name = lower(dimension);
  if (are_degrees(units, "north") || standard == "latitude" || name.starts_with("lat")) return Axis::latitude;
  if (are_degrees(units, "east") || standard == "longitude" || name.starts_with("lon")) return Axis::longitude;
  if (standard == "time" || letter == "t") return Axis::time;
  if (letter == "z") return Axis::level;
  for (const char* level : {"lev", "plev", "isobaric", "pres", "z", "depth", "height"})
    if (name.starts_with(level)) return Axis::level;
  for (const char* unit : {"pa", "hpa", "mb", "millibar"})
    if (units == unit || units.starts_with("millibar")) return Axis::level;
  if (name.starts_with("time") || units.find(" since ") != std::string::npos) return Axis::time;
  return Axis::other;
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
  /// The dimension whose positions are steps: time, or where none is called so, the one that is nothing else.
  std::optional<size_t> steps() const {
    const auto time = find(Axis::time);
    if (time) return time;
    std::optional<size_t> longest = find(Axis::other);
    for (size_t i = 0; i < kind.size(); ++i)
      if (kind[i] == Axis::other && extent[i] > extent[*longest]) longest = i;
    return longest;
  }
  /// Throws Error(data) where a dimension is left over that would need a choice.
  void refuse_more(const std::string& what) const {
    const auto used = {find(Axis::latitude), find(Axis::longitude), find(Axis::level), steps()};
    for (size_t i = 0; i < kind.size(); ++i)
      if (extent[i] > 1 && std::find(used.begin(), used.end(), i) == used.end())
        fail_data(what + ": dimension " + name[i] + " of " + std::to_string(extent[i]) +
                  ": expected an extent of 1 beside time, level, latitude and longitude");
  }
};

NetcdfFile::NetcdfFile(const std::string& path) : path_(path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) fail_data(path + ": no such file");
  if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) fail_data(path + ": expected a file, found a device or a pipe");
  layout_ = classic_netcdf_layout(path), bytes_ = info.st_size;
  if (const int code = nc_open(path.c_str(), NC_NOWRITE, &id_); code != NC_NOERR)
    fail_data(path + ": expected a NetCDF file: " + nc_strerror(code));
}

NetcdfFile::~NetcdfFile() {
  nc_close(id_);
}

void NetcdfFile::expect_held(int variable, int64_t record, const std::string& what) const {
  if (!layout_ || variable < 0 || static_cast<size_t>(variable) >= layout_->variables.size()) return;
  const double end = layout_->end_of(static_cast<size_t>(variable), record);
  if (end > double(bytes_))
    fail_data(what + ": its values end at byte " + std::to_string(static_cast<int64_t>(std::min(end, 0x1p62))) +
              " of the file, which has " + std::to_string(bytes_) + ": truncated, or never written");
}

NetcdfFile::Axes NetcdfFile::axes(const std::string& name) const {
  int variable = -1;
  if (nc_inq_varid(id_, name.c_str(), &variable) != NC_NOERR) {
    std::string found;
    for (const std::string& field : fields()) found += (found.empty() ? "" : ", ") + field;
    fail_data(path_ + ": expected variable " + name + ", found " + (found.empty() ? "no fields" : found));
  }
  return axes_of(variable);
}

NetcdfFile::Axes NetcdfFile::axes_of(int variable) const {
  Axes a;
  a.variable = variable;
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
    const Axes a = axes_of(i);  // names of damaged files may not be found again
    if (a.find(Axis::latitude) && a.find(Axis::longitude)) names.emplace_back(text);
  }
  return names;
}

std::optional<int64_t> NetcdfFile::steps(const std::string& name) const {
  const Axes a = axes(name);
  a.refuse_more(path_ + ": variable " + name);
  const auto time = a.steps();
  return time ? std::optional(static_cast<int64_t>(a.extent[*time])) : std::nullopt;
}

std::vector<double> NetcdfFile::coordinates(int dimension, const std::string& name) const {
  size_t extent = 0;
  int variable = -1;
  nc_inq_dimlen(id_, dimension, &extent);
  std::vector<double> values(checked_count({extent}, path_ + ": dimension " + name));
  int rank = 0, own = -1;
  if (nc_inq_varid(id_, name.c_str(), &variable) != NC_NOERR || nc_inq_varndims(id_, variable, &rank) != NC_NOERR ||
      rank != 1 || nc_inq_vardimid(id_, variable, &own) != NC_NOERR || own != dimension)
    fail_data(path_ + ": expected one coordinate per position of dimension " + name + ", found " +
              (variable < 0 ? "none" : std::to_string(rank) + " dimensions"));
  expect_held(variable, std::max<int64_t>(1, static_cast<int64_t>(extent)) - 1, path_ + ": dimension " + name);
  if (nc_get_var_double(id_, variable, values.data()) != NC_NOERR)
    fail_data(path_ + ": cannot read the coordinates of dimension " + name);
  const std::string what = path_ + ": dimension " + name;
  if (values.empty()) fail_data(what + ": expected positions, found none");
  const Packing packing(id_, variable, what);
  for (double& v : values) {
    v = packing.value(packing.stored(v));
    if (!std::isfinite(v)) fail_data(what + ": a coordinate is not finite");
  }
  return values;
}

std::vector<double> NetcdfFile::degrees(int dimension, const std::string& name, double low, double high) const {
  std::vector<double> values = coordinates(dimension, name);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  int variable = -1;
  nc_inq_varid(id_, name.c_str(), &variable);
  const std::string units = lower(text_attribute(id_, variable, "units").value_or(""));
  constexpr double rounding = 0.01;
  if (units.starts_with("rad") || *least < low - rounding || *most > high + rounding || *most - *least > 360 + rounding)
    fail_data(path_ + ": dimension " + name + ": expected degrees from" + number_text(low) + " to" + number_text(high) +
              ", found" + number_text(*least) + " to" + number_text(*most) + (units.empty() ? "" : " " + units));
  return values;
}

std::vector<std::optional<std::string>> NetcdfFile::days(const std::string& name, std::string* undated) const {
  const Axes a = axes(name);
  const auto time = a.find(Axis::time);
  int variable = -1;
  if (!time || nc_inq_varid(id_, a.name[*time].c_str(), &variable) != NC_NOERR) return {};
  const auto units = text_attribute(id_, variable, "units");
  if (!units) return {};
  const std::string calendar = lower(text_attribute(id_, variable, "calendar").value_or(""));
  std::vector<std::optional<std::string>> days;
  std::string why;
  for (double when : coordinates(a.dimension[*time], a.name[*time]))
    days.push_back(day_since(lower(*units), calendar, when, why.empty() ? &why : nullptr));
  if (undated && !why.empty()) *undated = path_ + ": dimension " + a.name[*time] + ": " + why;
  return days;
}

GriddedField NetcdfFile::read(const std::string& name, int64_t step, std::optional<double> level) const {
  const Axes a = axes(name);
  const auto lat = a.find(Axis::latitude), lon = a.find(Axis::longitude), lev = a.find(Axis::level);
  if (!lat || !lon) fail_data(path_ + ": variable " + name + ": expected dimensions latitude and longitude");
  if (*lat > *lon) fail_data(path_ + ": variable " + name + ": expected latitude ahead of longitude");
  a.refuse_more(path_ + ": variable " + name);
  if (level && !lev)
    fail_data(path_ + ": variable " + name + ": expected levels to choose" + number_text(*level) + " from, found none");
  std::vector<size_t> start(a.extent.size()), count(a.extent.size(), 1);
  count[*lat] = a.extent[*lat], count[*lon] = a.extent[*lon];
  if (lev && (level || a.extent[*lev] != 1)) {  // a single one needs no coordinate
    const std::vector<double> levels = coordinates(a.dimension[*lev], a.name[*lev]);
    if (!level)
      fail_data(path_ + ": variable " + name + " has " + std::to_string(levels.size()) +
                " levels: name one (VARIABLE@LEVEL)");
    for (size_t i = 0; i < levels.size() && level; ++i)
      if (std::abs(levels[i] - *level) < std::abs(levels[start[*lev]] - *level)) start[*lev] = i;
    // Rounded coordinates are meant, neighbouring levels are not.
    if (level && std::abs(levels[start[*lev]] - *level) > 0.005 * std::abs(*level)) {
      std::string all;
      for (double l : levels) all += number_text(l);
      fail_data(path_ + ": variable " + name + ": expected level" + number_text(*level) + ", found" + all);
    }
  }
  if (const auto time = a.steps()) {
    if (step >= static_cast<int64_t>(a.extent[*time]))
      fail_data(path_ + ": variable " + name + ": expected step " + std::to_string(step) + ", found " +
                std::to_string(a.extent[*time]) + " steps");
    start[*time] = static_cast<size_t>(step);
  }
  const size_t rows = a.extent[*lat], columns = a.extent[*lon];
  // All of the first dimension that is read: records, if the file has some.
  const size_t end = std::max<size_t>(start[0] + count[0], 1);
  expect_held(a.variable, static_cast<int64_t>(end - 1), path_ + ": variable " + name);
  // As f64: what a fill value of that type does not fit would be an error of the library.
  std::vector<double> raw(checked_count({rows, columns}, path_ + ": variable " + name));
  if (const int code = nc_get_vara_double(id_, a.variable, start.data(), count.data(), raw.data()); code != NC_NOERR)
    fail_data(path_ + ": variable " + name + ": cannot read: " + nc_strerror(code));
  const std::string what = path_ + ": variable " + name;
  const Packing packing(id_, a.variable, what);
  const Missing missing(id_, a.variable, packing, what);
  for (double& v : raw) {
    const double stored = packing.stored(v);
    if (missing(stored)) {
      v = NAN;
      continue;
    }
    v = packing.value(stored);
    if (!(std::abs(v) <= double(std::numeric_limits<float>::max())))
      fail_data(path_ + ": variable " + name + ": expected values that f32 holds, found" + number_text(stored) +
                " with scale_factor" + number_text(packing.scale) + " and add_offset" + number_text(packing.offset));
  }

  GriddedField f;
  const std::vector<double> latitude = degrees(a.dimension[*lat], a.name[*lat], -90, 90);
  std::vector<double> longitude = degrees(a.dimension[*lon], a.name[*lon], -360, 720);
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
    for (size_t c : column_order) f.values.push_back(float(raw[r * columns + c]));
  return f;
}

bool has_netcdf() {
  return true;
}

}  // namespace convoy
