// What a virtual HDF5 data set is put together from.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/text.h"
#include "io/file.h"
#include "io/hdf5_layout.h"

namespace convoy::hdf5 {
namespace {

namespace fs = std::filesystem;

std::string text_of(ssize_t (*get)(hid_t, size_t, char*, size_t), hid_t properties, size_t mapping) {
  const ssize_t length = get(properties, mapping, nullptr, 0);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) get(properties, mapping, text.data(), text.size() + 1);
  return text;
}

/// Whether a mapping gives elements of a box.
bool meets(hid_t properties, size_t mapping, const std::vector<hsize_t>& from, const std::vector<hsize_t>& box) {
  const Id space(H5Pget_virtual_vspace(properties, mapping), H5Sclose);
  std::vector<hsize_t> low(box.size()), high(box.size());
  if (H5Sget_simple_extent_ndims(space) != static_cast<int>(box.size()) ||
      H5Sget_select_bounds(space, low.data(), high.data()) < 0)
    return true;  // without bounds: unlimited
  for (size_t i = 0; i < box.size(); ++i)
    if (high[i] < from[i] || low[i] >= from[i] + box[i]) return false;
  return true;
}

/// Where HDF5 looks for a source, in its order.
std::vector<std::string> places_of(const std::string& source, const std::string& file) {
  if (source == ".") return {file};
  std::vector<std::string> places;
  fs::path name = source;
  if (name.is_absolute()) places.push_back(source), name = name.filename();
  if (const char* prefixes = std::getenv("HDF5_VDS_PREFIX"))
    for (std::string_view prefix : split(prefixes, ':')) places.push_back((fs::path(prefix) / name).string());
  std::error_code unknown;
  const fs::path behind_links = fs::canonical(file, unknown);
  places.push_back((fs::path(file).parent_path() / name).string());
  places.push_back(name.string());
  if (!unknown) places.push_back((behind_links.parent_path() / name).string());
  return places;
}

}  // namespace

void expect_sources(const std::string& what, hid_t set, const std::vector<hsize_t>& from,
                    const std::vector<hsize_t>& box) {
  const Id properties(H5Dget_create_plist(set), H5Pclose);
  size_t count = 0;
  if (!properties.ok() || H5Pget_virtual_count(properties, &count) < 0) fail_data(what + " has no layout: damaged");
  for (size_t i = 0; i < count; ++i) {
    if (!meets(properties, i, from, box)) continue;
    const std::string source = text_of(H5Pget_virtual_filename, properties, i),
                      inside = text_of(H5Pget_virtual_dsetname, properties, i);
    // A pattern stands for as many files as there are.
    if (source.find('%') != std::string::npos || inside.find('%') != std::string::npos) continue;
    bool there = false;
    std::string withheld;
    for (const std::string& place : places_of(source, file_of(set))) {
      std::error_code unknown;
      if (!fs::exists(place, unknown)) continue;
      const Id file(H5Fopen(place.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
      if (!file.ok()) {
        if (const std::string why = why_withheld(place); !why.empty()) withheld = ": " + place + ": " + why;
        continue;
      }
      there = Id(H5Dopen2(file, inside.c_str(), H5P_DEFAULT), H5Dclose).ok();
      break;
    }
    if (!there)
      fail_data(what + ": is virtual, expected data set " + inside + " of the HDF5 file " + source + ", found none" +
                withheld);
  }
}

}  // namespace convoy::hdf5
