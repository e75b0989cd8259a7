// How long a NetCDF file of a classic format must be: the library reads what is missing of one as zeros or stale bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace convoy {

/// Bytes of the file up to the end of its last value, by its header (CDF-1, CDF-2 and CDF-5: NetCDF Users Guide, "File
/// Format Specifications"). Nothing for other formats, and for other damage, which the library tells. Throws
/// Error(data) where the file ends inside of its header.
std::optional<int64_t> classic_netcdf_bytes(const std::string& path);

}  // namespace convoy
