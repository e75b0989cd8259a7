// Which positions of NetCDF variables become images, and which values are missing, on files of the classic format.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "io/dates.h"
#include "io/file.h"
#include "io/netcdf.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

#ifdef CONVOY_WITH_NETCDF
#include <netcdf.h>
#endif

using namespace convoy;
using convoy::testing::TemporaryFolder;

namespace {

enum class Type : uint32_t { text = 2, i16 = 3, i32 = 4, f32 = 5, f64 = 6 };

struct Attribute {
  std::string name;
  Type type;
  std::string text;
  std::vector<double> numbers;
};
Attribute units(const std::string& text) {
  return {"units", Type::text, text, {}};
}

struct Dimension {
  std::string name, units;
  uint32_t extent;
  std::vector<Attribute> attributes = {};
};
struct Variable {
  std::string name;
  std::vector<uint32_t> dimensions;
  Type type = Type::f64;
  std::vector<double> values;
  std::vector<Attribute> attributes;
};

/// The bytes of a file of the classic format (CDF-1), everything big-endian and padded to four bytes.
class Bytes {
 public:
  void word(uint32_t v) { big_endian(v, 4); }
  void string(const std::string& s) {
    word(static_cast<uint32_t>(s.size()));
    text(s);
  }
  void text(const std::string& s) {
    for (char c : s) data_.push_back(std::byte(c));
    pad();
  }
  void values(Type type, const std::vector<double>& numbers) {
    for (double v : numbers)
      if (type == Type::i16)
        big_endian(static_cast<uint16_t>(static_cast<int16_t>(v)), 2);
      else if (type == Type::i32)
        big_endian(static_cast<uint32_t>(static_cast<int32_t>(v)), 4);
      else if (type == Type::f32)
        big_endian(std::bit_cast<uint32_t>(static_cast<float>(v)), 4);
      else
        big_endian(std::bit_cast<uint64_t>(v), 8);
    pad();
  }
  uint32_t size() const { return static_cast<uint32_t>(data_.size()); }
  const std::vector<std::byte>& data() const { return data_; }

 private:
  void big_endian(uint64_t v, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) data_.push_back(std::byte(v >> (8 * i) & 0xff));
  }
  void pad() {
    while (data_.size() % 4) data_.push_back(std::byte{0});
  }
  std::vector<std::byte> data_;
};

Bytes header(const std::vector<Dimension>& dimensions, const std::vector<Variable>& variables, uint32_t begin) {
  Bytes b;
  b.text("CDF\1");
  b.word(0);
  b.word(10), b.word(static_cast<uint32_t>(dimensions.size()));
  for (const Dimension& d : dimensions) b.string(d.name), b.word(d.extent);
  b.word(0), b.word(0);
  b.word(11), b.word(static_cast<uint32_t>(variables.size()));
  for (const Variable& v : variables) {
    b.string(v.name);
    b.word(static_cast<uint32_t>(v.dimensions.size()));
    for (uint32_t d : v.dimensions) b.word(d);
    b.word(v.attributes.empty() ? 0 : 12), b.word(static_cast<uint32_t>(v.attributes.size()));
    for (const Attribute& a : v.attributes) {
      b.string(a.name), b.word(static_cast<uint32_t>(a.type));
      if (a.type == Type::text)
        b.string(a.text);
      else
        b.word(static_cast<uint32_t>(a.numbers.size())), b.values(a.type, a.numbers);
    }
    Bytes values;
    values.values(v.type, v.values);
    b.word(static_cast<uint32_t>(v.type)), b.word(values.size()), b.word(begin);
    begin += values.size();
  }
  return b;
}

/// A file with the variable "field" over these dimensions, each with its coordinates 0, 1, ...
std::string write_field(const std::string& path, const std::vector<Dimension>& dimensions, Variable field) {
  std::vector<Variable> variables;
  size_t elements = 1;
  field.name = "field";
  for (uint32_t d = 0; d < dimensions.size(); ++d) {
    Variable v{dimensions[d].name, {d}, Type::f64, {}, {units(dimensions[d].units)}};
    for (uint32_t i = 0; i < dimensions[d].extent; ++i) v.values.push_back(i);
    v.attributes.insert(v.attributes.end(), dimensions[d].attributes.begin(), dimensions[d].attributes.end());
    variables.push_back(v);
    field.dimensions.push_back(d);
    elements *= dimensions[d].extent;
  }
  for (size_t i = field.values.size(); i < elements; ++i) field.values.push_back(double(i));
  variables.push_back(std::move(field));
  const uint32_t begin = header(dimensions, variables, 0).size();
  Bytes file = header(dimensions, variables, begin);
  for (const Variable& v : variables) file.values(v.type, v.values);
  write_file(path, file.data());
  return path;
}

const Dimension latitude{"lat", "degrees_north", 2}, longitude{"lon", "degrees_east", 3};
Dimension time_of(uint32_t extent) {
  return {"when", "days since 2000-01-01", extent};
}

}  // namespace

TEST_CASE("steps are times, and no other dimension is chosen from silently", "[netcdf]") {
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  const NetcdfFile plain(write_field(folder / "plain.nc", {time_of(3), latitude, longitude}, {}));
  CHECK(plain.steps("field") == 3);
  CHECK_FALSE(NetcdfFile(write_field(folder / "still.nc", {latitude, longitude}, {})).steps("field"));
  CHECK(plain.read("field", 2, std::nullopt).at(1, 2) == 17);
  // One dimension of an unknown meaning is steps; an extent of 1 is no choice.
  CHECK(NetcdfFile(write_field(folder / "run.nc", {{"run", "", 4}, latitude, longitude}, {})).steps("field") == 4);
  const NetcdfFile one(write_field(folder / "one.nc", {{"member", "", 1}, time_of(5), latitude, longitude}, {}));
  CHECK(one.steps("field") == 5);
  CHECK(one.read("field", 4, std::nullopt).at(0, 0) == 24);
  const auto refused = [&](const std::string& name, const std::vector<Dimension>& dimensions) {
    const NetcdfFile file(write_field(folder / name, dimensions, {}));
    const auto message = Catch::Contains(name + ": variable field: dimension member of ");
    CHECK_THROWS_WITH(file.steps("field"), message);
    CHECK_THROWS_WITH(file.read("field", 0, std::nullopt), message);
  };
  refused("behind.nc", {time_of(3), {"member", "", 4}, latitude, longitude});
  refused("ahead.nc", {{"member", "", 2}, time_of(5), latitude, longitude});
  refused("unnamed.nc", {{"run", "", 5}, {"member", "", 2}, latitude, longitude});
}

TEST_CASE("values that a file ends ahead of are no zeros", "[netcdf]") {
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  const std::string whole = write_field(folder / "whole.nc", {time_of(3), latitude, longitude}, {}),
                    cut = folder / "cut.nc";
  const std::vector<std::byte> file = read_file(whole);
  CHECK(classic_netcdf_layout(whole).value().end_of(3, 0) == double(file.size()));
  for (const size_t missing : {1, 64, 144}) {  // up to all of the field
    write_file(cut, std::span(file).first(file.size() - missing));
    CHECK_THROWS_WITH(NetcdfFile(cut).read("field", 0, std::nullopt),
                      Catch::Contains("cut.nc: variable field: its values end at byte " + std::to_string(file.size()) +
                                      " of the file, which has " + std::to_string(file.size() - missing) +
                                      ": truncated, or never written"));
  }
  write_file(cut, std::span(file).first(file.size() - 144 - 8 * 7));  // the times' last one, too
  CHECK_THROWS_WITH(NetcdfFile(cut).days("field"), Catch::Contains(": truncated, or never written"));
  // What is behind the last value, and headers that cannot be read, are the library's business.
  std::vector<std::byte> longer = file;
  longer.resize(file.size() + 100);
  write_file(cut, longer);
  CHECK(NetcdfFile(cut).read("field", 2, std::nullopt).at(1, 2) == 17);
  for (size_t size : {0, 3}) {
    write_file(cut, std::span(file).first(size));
    CHECK_THROWS_WITH(NetcdfFile(cut), Catch::Contains("cut.nc: expected a NetCDF file"));
  }
  for (size_t size : {4, 7, 20, 60, 300}) {
    write_file(cut, std::span(file).first(size));
    CHECK_THROWS_WITH(NetcdfFile(cut), Catch::Contains("cut.nc: ends inside of its header: truncated"));
  }
}

TEST_CASE("a variable whose name is not found again is none", "[netcdf]") {
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  const std::string path = write_field(folder / "odd.nc", {latitude, longitude}, {});
  std::vector<std::byte> file = read_file(path);
  const std::string name = "field";
  const auto at = std::search(file.begin(), file.end(), name.begin(), name.end(),
                              [](std::byte b, char c) { return static_cast<char>(b) == c; });
  REQUIRE(at != file.end());
  *at = std::byte{0xff};  // no UTF-8
  write_file(path, file);
  CHECK_THROWS_WITH(NetcdfFile(path).steps("field"), Catch::Contains("odd.nc: expected"));
}

#ifdef CONVOY_WITH_NETCDF
TEST_CASE("the library's own files are as long as their headers say", "[netcdf]") {
  const TemporaryFolder folder;
  for (const int format : {0, NC_64BIT_OFFSET, NC_64BIT_DATA})
    for (const int recorded : {1, 2}) {  // a lone variable's records are not padded
      const std::string path = folder / ("file" + std::to_string(format) + "-" + std::to_string(recorded) + ".nc");
      int file = 0, when = 0, x = 0, fixed = 0, variables[2] = {};
      REQUIRE(nc_create(path.c_str(), NC_CLOBBER | format, &file) == NC_NOERR);
      nc_put_att_text(file, NC_GLOBAL, "title", 5, "whole");
      nc_def_dim(file, "when", NC_UNLIMITED, &when), nc_def_dim(file, "x", 3, &x);
      const int dimensions[] = {when, x};
      nc_def_var(file, "fixed", NC_DOUBLE, 1, &x, &fixed);
      for (int i = 0; i < recorded; ++i)
        nc_def_var(file, ("v" + std::to_string(i)).c_str(), NC_BYTE, 2, dimensions, &variables[i]);
      nc_enddef(file);
      const signed char values[] = {1, 2, 3};
      for (size_t t = 0; t < 5; ++t)
        for (int i = 0; i < recorded; ++i) {
          const size_t start[] = {t, 0}, count[] = {1, 3};
          nc_put_vara_schar(file, variables[i], start, count, values);
        }
      REQUIRE(nc_close(file) == NC_NOERR);
      const auto held = static_cast<int64_t>(read_file(path).size());
      const ClassicLayout layout = classic_netcdf_layout(path).value();
      const auto end = [&](int variable, int64_t record) {
        return static_cast<int64_t>(layout.end_of(static_cast<size_t>(variable), record));
      };
      const int64_t needed = end(variables[recorded - 1], 4);
      CHECK(end(fixed, 0) < end(variables[0], 0));
      INFO(path << " of " << held << " bytes");
      CHECK(needed <= held);
      CHECK(needed > held - 4);  // the last value may be padded
    }
}

TEST_CASE("rows that are records are looked for up to the last one", "[netcdf]") {
  const TemporaryFolder folder;
  const std::string whole = folder / "rows.nc", cut = folder / "cut.nc";
  int file = 0, dimensions[2] = {}, axis[2] = {}, field = 0;
  REQUIRE(nc_create(whole.c_str(), NC_CLOBBER, &file) == NC_NOERR);
  nc_def_dim(file, "lat", NC_UNLIMITED, &dimensions[0]), nc_def_dim(file, "lon", 3, &dimensions[1]);
  const char *names[] = {"lat", "lon"}, *units[] = {"degrees_north", "degrees_east"};
  for (int i : {0, 1}) {
    nc_def_var(file, names[i], NC_DOUBLE, 1, &dimensions[i], &axis[i]);
    nc_put_att_text(file, axis[i], "units", std::strlen(units[i]), units[i]);
  }
  nc_def_var(file, "field", NC_DOUBLE, 2, dimensions, &field);
  nc_enddef(file);
  const double longitudes[] = {0, 120, 240};
  nc_put_var_double(file, axis[1], longitudes);
  for (size_t row : {0, 1, 2}) {
    const size_t start[] = {row, 0}, count[] = {1, 3};
    const double latitude = 45 * double(row) - 45, values[] = {1, 2, 3};
    nc_put_var1_double(file, axis[0], start, &latitude);
    nc_put_vara_double(file, field, start, count, values);
  }
  REQUIRE(nc_close(file) == NC_NOERR);
  CHECK(NetcdfFile(whole).read("field", 0, std::nullopt).at(2, 2) == 3);
  const std::vector<std::byte> bytes = read_file(whole);
  write_file(cut, std::span(bytes).first(bytes.size() - 8));  // the last latitude is there, its row is not whole
  CHECK_THROWS_WITH(NetcdfFile(cut).read("field", 0, std::nullopt), Catch::Contains(": truncated, or never written"));
}
#endif

TEST_CASE("a level is refused where there are none to choose from", "[netcdf]") {
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  const NetcdfFile flat(write_field(folder / "flat.nc", {time_of(2), latitude, longitude}, {}));
  CHECK_THROWS_WITH(flat.read("field", 0, 500),
                    Catch::Contains("flat.nc: variable field: expected levels to choose 500 from, found none"));
  const NetcdfFile deep(write_field(folder / "deep.nc", {time_of(2), {"lev", "hPa", 2}, latitude, longitude}, {}));
  CHECK(deep.read("field", 1, 1).at(0, 0) == 18);
}

TEST_CASE("packed values outside of their valid range are missing", "[netcdf]") {
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  const auto read = [&](std::vector<Attribute> attributes) {
    attributes.push_back({"scale_factor", Type::f64, "", {0.5}});
    attributes.push_back({"add_offset", Type::f64, "", {100}});
    Variable packed{"", {}, Type::i16, {-5, 0, 50, 100, 101, -999}, attributes};
    const NetcdfFile file(write_field(folder / "packed.nc", {latitude, longitude}, packed));
    std::string text;
    for (float v : file.read("field", 0, std::nullopt).values)
      text += std::isnan(v) ? "- " : std::to_string(static_cast<int>(std::floor(v))) + " ";
    return text;
  };
  CHECK(read({}) == "97 100 125 150 150 -400 ");
  CHECK(read({{"_FillValue", Type::i16, "", {-999}}}) == "97 100 125 150 150 - ");
  CHECK(read({{"valid_range", Type::i16, "", {0, 100}}}) == "- 100 125 150 - - ");
  CHECK(read({{"valid_min", Type::i16, "", {-5}}}) == "97 100 125 150 150 - ");
  CHECK(read({{"valid_max", Type::i16, "", {50}}}) == "97 100 125 - - -400 ");
}

TEST_CASE("bounds of the type that data are unpacked to are values", "[netcdf]") {
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  const auto read = [&](Type type, double scale, double offset, std::vector<Attribute> attributes) {
    attributes.push_back({"scale_factor", type, "", {scale}});
    attributes.push_back({"add_offset", type, "", {offset}});
    const Variable packed{"", {}, Type::i16, {-20000, -10000, 0, 9999, 10000, 10001}, attributes};
    std::string missing;
    for (float v : NetcdfFile(write_field(folder / "values.nc", {latitude, longitude}, packed))
                       .read("field", 0, std::nullopt)
                       .values)
      missing += std::isnan(v) ? '-' : 'x';
    return missing;
  };
  for (const Type type : {Type::f32, Type::f64}) {
    INFO("type " << int(type));
    // 180, 230, 280, 329.995, 330 and 330.005 kelvin; the offsets and bounds of f32 are rounded.
    CHECK(read(type, 0.005, 280, {{"valid_range", type, "", {230, 330}}}) == "-xxxx-");
    CHECK(read(type, 0.005, 280, {{"valid_min", type, "", {230}}}) == "-xxxxx");
    CHECK(read(type, 0.005, 280, {{"valid_max", type, "", {330}}}) == "xxxxx-");
    CHECK(read(type, 0.001, 273.15, {{"valid_range", type, "", {263.15, 283.15}}}) == "-xxxx-");
    // Upside down: 380, 330, 280, 230.005, 230 and 229.995.
    CHECK(read(type, -0.005, 280, {{"valid_range", type, "", {230, 330}}}) == "-xxxx-");
    CHECK(read(type, -0.005, 280, {{"valid_min", type, "", {230}}}) == "xxxxx-");
    CHECK(read(type, -0.005, 280, {{"valid_max", type, "", {330}}}) == "-xxxxx");
  }
  // Of the data's type, or of one that is not what they are unpacked to: stored numbers.
  CHECK(read(Type::f64, 0.005, 280, {{"valid_range", Type::i16, "", {-10000, 10000}}}) == "-xxxx-");
  CHECK(read(Type::f32, 0.005, 280, {{"valid_range", Type::f64, "", {-10000, 10000}}}) == "-xxxx-");
  CHECK(read(Type::i16, 2, 0, {{"valid_range", Type::i16, "", {-10000, 10000}}}) == "-xxxx-");
  // With a negative scale the least value is the largest number, which the other attribute bounds as well.
  CHECK(read(Type::f32, -0.005, 280, {{"valid_min", Type::f32, "", {280}}, {"valid_max", Type::i16, "", {9999}}}) ==
        read(Type::f32, -0.005, 280, {{"valid_min", Type::f32, "", {280}}}));
  CHECK_THROWS_WITH(
      read(Type::f32, 0, 280, {{"valid_min", Type::f32, "", {280}}}),
      Catch::Contains("values.nc: variable field: attribute scale_factor: expected none of 0 beside a valid range"));
  CHECK_THROWS_WITH(
      read(Type::f32, 0.5, 0, {{"valid_range", Type::f32, "", {10, 5}}}),
      Catch::Contains("values.nc: variable field: expected a valid range, found 20 to 10 in packed units"));
}

TEST_CASE("every missing value is missing: of several, by default, beyond f32", "[netcdf]") {
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  const auto read = [&](Type type, const std::vector<double>& values, std::vector<Attribute> attributes) {
    const Variable field{"", {}, type, values, std::move(attributes)};
    std::vector<int> result;
    for (float v : NetcdfFile(write_field(folder / "field.nc", {latitude, longitude}, field))
                       .read("field", 0, std::nullopt)
                       .values)
      result.push_back(std::isnan(v) ? -1 : static_cast<int>(v));
    return result;
  };
  CHECK(read(Type::i16, {1, -888, -999, 4, 5, 6}, {{"missing_value", Type::i16, "", {-888, -999}}}) ==
        std::vector<int>{1, -1, -1, 4, 5, 6});
  CHECK(read(Type::i16, {1, -32767, 3, 4, 5, 6}, {}) == std::vector<int>{1, -1, 3, 4, 5, 6});
  // Whole numbers that f32 would round to a fill value or a bound are none.
  CHECK(read(Type::i32, {16777217, 16777216, 16777215, 4, -16777217, -16777216},
             {{"_FillValue", Type::i32, "", {16777216}}, {"valid_min", Type::i32, "", {-16777216}}}) ==
        std::vector<int>{16777216, -1, 16777215, 4, -1, -16777216});  // as f32
  // An attribute that f32 has rounded means what it was rounded from.
  CHECK(read(Type::i32, {-999999999, 2, 3, 4, 5, 6}, {{"missing_value", Type::f32, "", {-1e9}}}) ==
        std::vector<int>{-1, 2, 3, 4, 5, 6});
  // A fill value that is named stands in place of the default.
  CHECK(read(Type::i16, {1, -32767, 3, 4, 5, 6}, {{"_FillValue", Type::i16, "", {3}}}) ==
        std::vector<int>{1, -32767, -1, 4, 5, 6});
  // Text that is a number is meant; what says nothing is no reason to take fill values for data.
  CHECK(read(Type::f32, {1, -99, 3, 4, 5, 6}, {{"missing_value", Type::text, " -99. ", {}}}) ==
        std::vector<int>{1, -1, 3, 4, 5, 6});
  CHECK(read(Type::f32, {1, -99, 3, 4, 5, 6}, {{"valid_min", Type::text, "0", {}}}) ==
        std::vector<int>{1, -1, 3, 4, 5, 6});
  CHECK(read(Type::f32, {1, -99, 3, -98, 5, 6}, {{"missing_value", Type::text, "-99.f, -98", {}}}) ==
        std::vector<int>{1, -1, 3, -1, 5, 6});
  CHECK(read(Type::f32, {1, 2, 3, 4, 5, 6}, {{"valid_range", Type::text, "+2 4.5", {}}}) ==
        std::vector<int>{-1, 2, 3, 4, -1, -1});
  CHECK(read(Type::f32, {1, -99, 3, 4, 5, 6}, {{"missing_value", Type::text, "", {}}}) ==
        std::vector<int>{1, -99, 3, 4, 5, 6});
  // A bound of the type of the scale speaks of values; text is as wide as f64.
  CHECK(read(Type::i16, {100, 200, 300, 400, 500, 600},
             {{"scale_factor", Type::text, "0.01", {}}, {"valid_range", Type::f64, "", {2, 5}}}) ==
        std::vector<int>{-1, 2, 3, 4, 5, -1});
  for (const char* attribute : {"missing_value", "valid_min", "valid_range", "scale_factor"})
    CHECK_THROWS_WITH(read(Type::f32, {1, 2, 3, 4, 5, 6}, {{attribute, Type::text, "none", {}}}),
                      Catch::Contains("field.nc: variable field: attribute " + std::string(attribute) +
                                      ": expected numbers, found \"none\""));
  CHECK_THROWS_WITH(read(Type::f32, {1, 2, 3, 4, 5, 6}, {{"valid_range", Type::f32, "", {0, 1, 2}}}),
                    Catch::Contains("attribute valid_range: expected two numbers, found 3"));
  CHECK_THROWS_WITH(read(Type::f32, {1, 2, 3, 4, 5, 6}, {{"valid_max", Type::f32, "", {0, 1}}}),
                    Catch::Contains("attribute valid_max: expected one number, found 2"));
  const double most = std::numeric_limits<double>::max(), usual = 9.9692099683868690e+36;
  CHECK(read(Type::f64, {1, -most, usual, 4, 5, -most}, {{"_FillValue", Type::f64, "", {-most}}}) ==
        std::vector<int>{1, -1, -1, 4, 5, -1});
  CHECK_THROWS_WITH(read(Type::f64, {1, 2, 3e20, 4, 5, 6}, {{"scale_factor", Type::f64, "", {1e20}}}),
                    Catch::Contains("field.nc: variable field: expected values that f32 holds, found 3e+20 with "
                                    "scale_factor 1e+20 and add_offset 0"));
}

TEST_CASE("numbers are what they were packed from, coordinates too", "[netcdf]") {
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  const Attribute half{"scale_factor", Type::f64, "", {0.5}}, no_sign{"_Unsigned", Type::text, "true", {}},
      fill{"_FillValue", Type::i16, "", {-1}};
  const auto read = [&](const Dimension& rows, std::vector<Attribute> attributes) {
    const Variable field{"", {}, Type::i16, {0, 3, -2, -32768, 100, -1}, std::move(attributes)};
    return NetcdfFile(write_field(folder / "packed.nc", {rows, longitude}, field)).read("field", 0, std::nullopt);
  };
  // Without a sign -2 is 65534, and the fill value is 65535.
  const GriddedField field = read(latitude, {half, no_sign, fill});
  CHECK(std::vector<float>(field.values.begin(), field.values.begin() + 5) ==
        std::vector<float>{0, 1.5f, 32767, 16384, 50});
  CHECK(std::isnan(field.values[5]));
  CHECK_THROWS_WITH(read(latitude, {{"add_offset", Type::f64, "", {0.5, 1}}}),
                    Catch::Contains("packed.nc: variable field: attribute add_offset: expected one number, found 2"));
  CHECK_THROWS_WITH(read(latitude, {no_sign, {"valid_range", Type::i16, "", {-100, 100}}}),
                    Catch::Contains("packed.nc: variable field: expected a valid range, found 65436 to 100"));
  const auto rows = [](const std::string& units, double scale) {
    return Dimension{"lat", units, 2, {{"scale_factor", Type::f64, "", {scale}}, {"add_offset", Type::f64, "", {-20}}}};
  };
  CHECK(read(rows("degrees_north", 30), {}).latitude == std::vector<double>{-20, 10});
  CHECK_THROWS_WITH(
      read(rows("degrees_north", 120), {}),
      Catch::Contains("packed.nc: dimension lat: expected degrees from -90 to 90, found -20 to 100 degrees_north"));
  CHECK_THROWS_WITH(read(rows("radians", 1), {}), Catch::Contains("found -20 to -19 radians"));
}

#ifdef CONVOY_WITH_NETCDF
TEST_CASE("attributes that are strings of NetCDF-4 count as text", "[netcdf]") {
  const TemporaryFolder folder;
  const std::string path = folder / "strings.nc";
  int file = 0, dimensions[3] = {}, variable[3] = {}, field = 0;
  const char *names[] = {"valid_time", "y", "x"}, *units[] = {"days since 2001-02-03", "degrees_north", "degrees_east"};
  const double places[] = {1, 2};
  REQUIRE(nc_create(path.c_str(), NC_NETCDF4, &file) == NC_NOERR);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(nc_def_dim(file, names[i], 2, &dimensions[i]) == NC_NOERR);
    REQUIRE(nc_def_var(file, names[i], NC_DOUBLE, 1, &dimensions[i], &variable[i]) == NC_NOERR);
    REQUIRE(nc_put_att_string(file, variable[i], "units", 1, &units[i]) == NC_NOERR);
    REQUIRE(nc_put_var_double(file, variable[i], places) == NC_NOERR);
  }
  REQUIRE(nc_def_var(file, "field", NC_INT64, 3, dimensions, &field) == NC_NOERR);
  const long long values[] = {1, 2, 3, 4, 5, 6, 7};  // the last is not written
  const size_t start[] = {0, 0, 0}, second[] = {1, 0, 0}, all[] = {1, 2, 2}, three[] = {1, 1, 2};
  REQUIRE(nc_put_vara_longlong(file, field, start, all, values) == NC_NOERR);
  REQUIRE(nc_put_vara_longlong(file, field, second, three, values + 4) == NC_NOERR);
  REQUIRE(nc_close(file) == NC_NOERR);
  const NetcdfFile strings(path);
  CHECK(strings.steps("field") == 2);
  CHECK(strings.days("field").at(1) == "2001-02-05");
  const GriddedField last = strings.read("field", 1, std::nullopt);
  CHECK(last.at(0, 1) == 6);
  CHECK(std::isnan(last.at(1, 0)));  // the default fill of 64-bit integers
}
#endif

TEST_CASE("times are days by their units and calendar", "[netcdf]") {
  const std::string hours = "hours since 2000-2-28 12:00:00", days = "days since 1999-12-31";
  CHECK(day_since(hours, "", 11.9) == "2000-02-28");
  CHECK(day_since(hours, "standard", 12) == "2000-02-29");
  CHECK(day_since(hours, "noleap", 12) == "2000-03-01");
  CHECK(day_since(hours, "360_day", 36) == "2000-02-30");
  CHECK(day_since("hours since 2001-02-28t12", "all_leap", 12) == "2001-02-29");
  CHECK(day_since(days, "gregorian", -0.5) == "1999-12-30");
  CHECK(day_since(days, "365_day", 366) == "2001-01-01");
  CHECK(day_since(days, "365_day", -365) == "1998-12-31");
  CHECK(day_since(days, "", 1 - 1e-9) == "2000-01-01");  // a fraction that was meant to be whole
  CHECK(day_since("second since 0-1-1", "proleptic_gregorian", 86400) == "0000-01-02");
  // Two days of the year 1 lie between the calendars; reanalyses of the 1990s count from there.
  CHECK(day_since("hours since 1-1-1 00:00:0.0", "", 17067072) == "1948-01-01");
  CHECK(day_since("hours since 1-1-1", "proleptic_gregorian", 17067072) == "1948-01-03");
  CHECK(day_since("days since 1582-10-04", "standard", 1) == "1582-10-15");
  CHECK(day_since("days since 1582-10-15", "gregorian", -1) == "1582-10-04");
  CHECK(day_since("days since 1500-02-29", "standard", 1) == "1500-03-01");
  CHECK(day_since("days since 1600-01-01", "standard", -365 * 1200.0) == "0400-10-17");
  CHECK(day_since("days since 0-03-01", "", -1) == "0000-02-29");
  for (const char* units : {"months since 2000-01-01", "days", "days since today", "days since 2000-13-01"})
    CHECK_FALSE(day_since(units, "", 1));
  CHECK_FALSE(day_since(days, "julian", 1));
  for (double time : {1e300, -1e6, 3e6, double(NAN)}) CHECK_FALSE(day_since(days, "noleap", time));
  const auto why = [](const std::string& units, const std::string& calendar, double time) {
    std::string reason;
    CHECK_FALSE(day_since(units, calendar, time, &reason));
    return reason;
  };
  const std::string usual = "expected units like \"days since 2106-01-01\", found ";
  CHECK(why("months since 2000-01-01", "", 1) ==
        "expected units of seconds, minutes, hours or days, found \"months since 2000-01-01\"");
  CHECK(why("day as %Y%m%d.%f", "", 1) == usual + "\"day as %Y%m%d.%f\"");
  CHECK(why("days since today", "", 1) == usual + "\"days since today\"");
  CHECK(why("days since 2001-02-29", "", 1) == usual + "\"days since 2001-02-29\"");
  CHECK(why(days, "julian", 1) ==
        "expected a calendar of standard, gregorian, proleptic_gregorian, noleap, 365_day, "
        "all_leap, 366_day, 360_day, found \"julian\"");
  CHECK(why(days, "", 3e6) == "expected a day of the years 0 to 9999, found 3e+06 \"days since 1999-12-31\"");
  CHECK(why(days, "noleap", 1e300) == "expected a day of the years 0 to 9999, found 1e+300 \"days since 1999-12-31\"");
  if (!has_netcdf()) return;
  const TemporaryFolder folder;
  Dimension julian = time_of(3);
  julian.attributes.push_back({"calendar", Type::text, "julian", {}});
  const NetcdfFile foreign(write_field(folder / "foreign.nc", {julian, latitude, longitude}, {}));
  std::string undated;
  CHECK_FALSE(foreign.days("field", &undated).at(2));
  CHECK_THAT(undated, Catch::Contains("foreign.nc: dimension when: expected a calendar of standard, ") &&
                          Catch::EndsWith("found \"julian\""));
  const NetcdfFile dated(write_field(folder / "dated.nc", {time_of(3), latitude, longitude}, {}));
  CHECK(dated.days("field").at(2) == "2000-01-03");
  CHECK_FALSE(
      NetcdfFile(write_field(folder / "run.nc", {{"run", "", 4}, latitude, longitude}, {})).days("field").size() > 0);
}
