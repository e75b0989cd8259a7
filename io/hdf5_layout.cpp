#include "io/hdf5_layout.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"
#include "io/extents.h"

namespace convoy::hdf5 {
namespace {

/// IEEE half precision, which HDF5 1.10 has no name for.
hid_t half_type() {
  static const hid_t type = [] {
    const hid_t half = H5Tcopy(H5T_IEEE_F32LE);
    if (half < 0 || H5Tset_fields(half, 15, 10, 5, 0, 10) < 0 || H5Tset_size(half, 2) < 0 || H5Tset_ebias(half, 15) < 0)
      fail_runtime("HDF5 cannot describe half precision");
    return half;
  }();
  return type;
}

std::vector<Filter> filters_of(hid_t properties) {
  std::vector<Filter> list;
  for (int i = 0; i < H5Pget_nfilters(properties); ++i) {
    unsigned flags = 0;
    size_t values = 0;
    char name[64] = "";
    const H5Z_filter_t id =
        H5Pget_filter2(properties, static_cast<unsigned>(i), &flags, &values, nullptr, sizeof name, name, nullptr);
    list.push_back({id, (flags & H5Z_FLAG_OPTIONAL) != 0, name});
  }
  return list;
}

bool is_lacking(const Filter& f) {
  return f.id >= 0 && H5Zfilter_avail(f.id) <= 0;
}

/// Throws Error(data) where this library has no code for a filter that all chunks went through.
void expect_code(const std::string& what, const std::vector<Filter>& filters) {
  for (const Filter& f : filters)
    if (!f.optional && is_lacking(f)) fail_lacking(what, f);
}

/// Chunks that a box meets.
hsize_t count_chunks(const Layout& layout, const std::vector<hsize_t>& from, const std::vector<hsize_t>& box) {
  hsize_t count = 1;
  for (size_t i = 0; i < box.size(); ++i)
    count *= (from[i] + box[i] + layout.chunk[i] - 1) / layout.chunk[i] - from[i] / layout.chunk[i];
  return count;
}

/// Calls f(its first element) for every chunk that a box meets, until one answers false; whether all answered true.
template <class F>
bool for_chunks(const Layout& layout, const std::vector<hsize_t>& from, const std::vector<hsize_t>& box, F&& f) {
  std::vector<hsize_t> first(from);
  for (size_t i = 0; i < first.size(); ++i) first[i] -= first[i] % layout.chunk[i];
  std::vector<hsize_t> at(first);
  while (f(std::as_const(at))) {
    size_t axis = at.size();
    while (axis-- > 0 && (at[axis] += layout.chunk[axis]) >= from[axis] + box[axis]) at[axis] = first[axis];
    if (axis == SIZE_MAX) return true;
  }
  return false;
}

}  // namespace

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

void fail_lacking(const std::string& what, const Filter& f) {
  fail_data(what + ": was written with filter " + std::to_string(f.id) + (f.name.empty() ? "" : " (" + f.name + ")") +
            ", which the HDF5 library here lacks: expected none, shuffle or gzip, or its plugin in HDF5_PLUGIN_PATH");
}

std::string file_of(hid_t object) {
  const ssize_t length = H5Fget_name(object, nullptr, 0);
  std::string name(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) H5Fget_name(object, name.data(), name.size() + 1);
  return name;
}

Layout layout_of(const std::string& what, hid_t set, hid_t space, const std::string& path) {
  const Id properties(H5Dget_create_plist(set), H5Pclose);
  if (!properties.ok()) fail_data(what + " has no layout: damaged");
  H5D_fill_value_t fill = H5D_FILL_VALUE_DEFAULT;
  Layout layout;
  layout.kind = H5Pget_layout(properties);
  layout.means_fill = H5Pfill_value_defined(properties, &fill) >= 0 && fill == H5D_FILL_VALUE_USER_DEFINED;
  layout.elsewhere = H5Pget_external_count(properties) != 0 || file_of(set) != path;
  if (layout.kind != H5D_CHUNKED) return layout;
  unsigned options = 0;
  layout.uneven = H5Pget_chunk_opts(properties, &options) < 0 || options != 0;
  layout.filters = filters_of(properties);
  expect_code(what, layout.filters);
  const int rank = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> chunk(static_cast<size_t>(std::max(0, rank))), held(chunk.size()), most(chunk.size());
  if (rank < 1 || H5Pget_chunk(properties, rank, chunk.data()) != rank ||
      H5Sget_simple_extent_dims(space, held.data(), most.data()) != rank)
    fail_data(what + ": expected chunks of as many dimensions as the data set has: damaged");
  layout.chunks = 1;
  for (size_t i = 0; i < chunk.size(); ++i) {
    if (chunk[i] == 0 || chunk[i] > most[i]) {  // without a limit, `most` is the largest number
      const std::vector<int64_t> found(chunk.begin(), chunk.end()), extents(held.begin(), held.end());
      fail_data(what + ": expected chunks within " + extents_text(extents) + ", found " + extents_text(found) +
                ": damaged");
    }
    layout.chunks *= (held[i] + chunk[i] - 1) / chunk[i];
  }
  layout.chunk = std::move(chunk);
  return layout;
}

void expect_written(const std::string& what, hid_t set, hid_t space, const Layout& layout,
                    const std::vector<hsize_t>& from, const std::vector<hsize_t>& box) {
  if (H5Sget_simple_extent_npoints(space) <= 0 || layout.means_fill) return;
  if (layout.kind == H5D_VIRTUAL) return expect_sources(what, set, from, box);
  if (layout.kind != H5D_CHUNKED) {
    if (H5Dget_storage_size(set) == 0) fail_data(what + ": expected values, found none: nobody wrote them");
    return;
  }
  const auto box_is_there = [&] {
    return for_chunks(layout, from, box, [&](const std::vector<hsize_t>& at) {
      hsize_t bytes = 0;
      return H5Dget_chunk_storage_size(set, at.data(), &bytes) >= 0 && bytes > 0;
    });
  };
  // The library looks for one chunk as in a dictionary, and counts them by a walk through all: of a sample among
  // thousands its own are asked for.
  const bool few = count_chunks(layout, from, box) < layout.chunks / 2;
  if (few && box_is_there()) return;
  hsize_t found = 0;
  if (H5Dget_num_chunks(set, space, &found) < 0) fail_data(what + ": cannot count its chunks: damaged");
  if (found >= layout.chunks) return;
  // Some are not there: those of the box count.
  if (few || !box_is_there())
    fail_data(what + ": of " + std::to_string(layout.chunks) + " chunks " + std::to_string(found) +
              " are there, one that is asked for is not: nobody wrote it");
}

std::optional<Filter> lacking_filter(hid_t set, const Layout& layout, const std::vector<hsize_t>& from,
                                     const std::vector<hsize_t>& box) {
  std::optional<Filter> lacking;
  if (layout.kind != H5D_CHUNKED || std::none_of(layout.filters.begin(), layout.filters.end(), is_lacking))
    return lacking;
  for_chunks(layout, from, box, [&](const std::vector<hsize_t>& at) {
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    unsigned skipped = 0;
    if (H5Dget_chunk_info_by_coord(set, at.data(), &skipped, &address, &bytes) < 0 || address == HADDR_UNDEF)
      return true;
    for (size_t i = 0; i < layout.filters.size() && !lacking; ++i)
      if (!(skipped >> i & 1) && is_lacking(layout.filters[i])) lacking = layout.filters[i];
    return !lacking;
  });
  return lacking;
}

std::optional<StoredValues> stored_values(hid_t set, hid_t space, const Layout& layout, DType type,
                                          const std::vector<hsize_t>& from, const std::vector<hsize_t>& box) {
  const Id held(H5Dget_type(set), H5Tclose);
  if (box.empty() || layout.elsewhere || H5Tequal(held, native(type)) <= 0) return std::nullopt;
  StoredValues stored;
  stored.element = size_of(type);
  std::vector<hsize_t> extents(box.size());
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  if (layout.kind == H5D_CONTIGUOUS) {
    const haddr_t address = H5Dget_offset(set);
    const hsize_t bytes = H5Dget_storage_size(set);
    if (address == HADDR_UNDEF ||
        bytes != static_cast<hsize_t>(H5Sget_simple_extent_npoints(space)) * static_cast<hsize_t>(stored.element))
      return std::nullopt;
    stored.piece.assign(extents.begin(), extents.end());
    stored.pieces.push_back({std::vector<int64_t>(box.size(), 0), static_cast<int64_t>(address),
                             static_cast<int64_t>(bytes), false, false});
    return stored;
  }
  const std::vector<Filter>& filters = layout.filters;
  const bool shuffles = !filters.empty() && filters.front().id == H5Z_FILTER_SHUFFLE,
             deflates = !filters.empty() && filters.back().id == H5Z_FILTER_DEFLATE;
  const bool simple = filters.size() == size_t{shuffles} + size_t{deflates};
  if (layout.kind != H5D_CHUNKED || !simple || layout.uneven) return std::nullopt;
  // The library walks through all chunks of a data set to say where one lies: a step takes as long as some bytes of
  // values, and only so much of them is worth it.
  constexpr hsize_t few_steps = 1000, most_steps = 1'000'000, bytes_per_step = 32;
  hsize_t bytes = static_cast<hsize_t>(stored.element);
  for (hsize_t e : box) bytes *= e;
  const hsize_t steps = std::clamp(bytes / bytes_per_step, few_steps, most_steps);
  if (count_chunks(layout, from, box) > steps / std::max<hsize_t>(1, layout.chunks)) return std::nullopt;
  stored.piece.assign(layout.chunk.begin(), layout.chunk.end());
  int64_t whole = stored.element;
  for (int64_t e : stored.piece) whole *= e;  // HDF5 holds chunks below 4 GiB
  const bool all = for_chunks(layout, from, box, [&](const std::vector<hsize_t>& at) {
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    unsigned skipped = 0;
    if (H5Dget_chunk_info_by_coord(set, at.data(), &skipped, &address, &bytes) < 0 || address == HADDR_UNDEF)
      return false;
    const bool shuffled = shuffles && !(skipped & 1), deflated = deflates && !(skipped & (shuffles ? 2 : 1));
    stored.pieces.push_back(
        {{at.begin(), at.end()}, static_cast<int64_t>(address), static_cast<int64_t>(bytes), shuffled, deflated});
    // What does not shrink grows by little; more is damage, for which memory is not asked.
    return deflated ? static_cast<int64_t>(bytes) <= whole + whole / 8 + 1024 : static_cast<int64_t>(bytes) == whole;
  });
  return all ? std::optional(std::move(stored)) : std::nullopt;
}

}  // namespace convoy::hdf5
