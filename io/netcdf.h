// Fields on latitude-longitude grids from NetCDF files (classic, 64-bit offset, NetCDF-4), and their way onto another
// grid. NetCDF-4 calls HDF5 outside of Hdf5File's lock: for programs of one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/netcdf_header.h"

namespace convoy {

/// Values by latitude (south to north) and longitude (west to east, degrees in [0, 360)); missing ones are NaN.
struct GriddedField {
  std::vector<double> latitude, longitude;
  std::vector<float> values;
  float at(size_t row, size_t column) const { return values[row * longitude.size() + column]; }
};

class NetcdfFile {
 public:
  /// Throws Error(data) naming the file where it cannot be read.
  explicit NetcdfFile(const std::string& path);
  ~NetcdfFile();
  NetcdfFile(const NetcdfFile&) = delete;

  /// Names of variables with a latitude and a longitude.
  std::vector<std::string> fields() const;
  /// Extent of the time, or where no dimension is called so, of the one that is neither level, latitude nor longitude;
  /// nothing where there is none. Throws Error(data) where yet another dimension would need a choice.
  std::optional<int64_t> steps(const std::string& name) const;
  /// The day of every step, "2106-03-04"; none where no time axis says them by units like "days since 2106-01-01".
  /// `undated`, where given, names file, dimension and what is not understood of the first step without a day.
  std::vector<std::optional<std::string>> days(const std::string& name, std::string* undated = nullptr) const;
  /// One step of a variable, at the level whose coordinate is nearest to `level`, at most 0.5 % away: to be given where
  /// there are several, and only where there are levels. scale_factor, add_offset and _Unsigned are applied, to
  /// coordinates, too, which have to be degrees. Fill values (where no attribute names one, NetCDF's default of the
  /// type), missing values and what lies outside of the valid range become NaN; its bounds count as values where they
  /// are of the type of scale_factor and add_offset and wider than the data, else as stored numbers. Throws Error(data)
  /// naming file, variable and what is expected.
  GriddedField read(const std::string& name, int64_t step, std::optional<double> level) const;

 private:
  struct Axes;
  Axes axes(const std::string& name) const;
  Axes axes_of(int variable) const;
  /// Throws Error(data), beginning with `what`, where the file ends ahead of a variable's values, of this record where
  /// it has records.
  void expect_held(int variable, int64_t record, const std::string& what) const;
  std::vector<double> coordinates(int dimension, const std::string& name) const;
  std::vector<double> degrees(int dimension, const std::string& name, double low, double high) const;
  std::string path_;
  std::optional<ClassicLayout> layout_;
  int64_t bytes_ = 0;  ///< of the file
  int id_ = -1;
};

bool has_netcdf();

/// Bilinear, periodic in longitude where the source spans the circle. Cell centres as in simulated and official images:
/// row 0 is the southernmost, column 0 at longitude 0. Where a source value is missing or outside, or in a gap of the
/// source's grid (a step of more than 1.6 times the usual around it), the result is NaN.
std::vector<float> regrid(const GriddedField& field, int64_t height, int64_t width);
/// Replaces NaNs by the nearest value of their row, rows without any by the nearest that has some; returns how many
/// there were. Throws Error(data) with `what` where nothing is left.
int64_t fill_missing(std::vector<float>& values, int64_t height, int64_t width, const std::string& what);

}  // namespace convoy
