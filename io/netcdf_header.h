// Where the values of a NetCDF file of a classic format lie: the library reads what is missing of one as zeros or stale
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace convoy {

/// By the header of CDF-1, CDF-2 and CDF-5 (NetCDF Users Guide, "File Format Specifications"), in bytes.
struct ClassicLayout {
  struct Variable {
    double begin = 0, bytes = 0;  ///< of one record, where it has records
    bool recorded = false;
  };
  std::vector<Variable> variables;  ///< in the order of their ids
  double record_bytes = 0;          ///< from one record to the next

  /// How long the file must be for a variable's values, of this record where it has records.
  double end_of(size_t variable, int64_t record) const {
    const Variable& v = variables[variable];
    return v.begin + v.bytes + (v.recorded ? double(record) * record_bytes : 0);
  }
};

/// Nothing for other formats, and for damage that the library tells. Throws Error(data) where the file ends inside of
/// its header.
std::optional<ClassicLayout> classic_netcdf_layout(const std::string& path);

}  // namespace convoy
