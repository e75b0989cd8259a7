#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "io/file.h"

namespace convoy {
namespace {

using nlohmann::json;

std::string type_name(DType type) {
  switch (type) {
    case DType::f64:
      return "F64";
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i32:
      return "I32";
    case DType::i16:
      return "I16";
    case DType::u8:
      return "U8";
  }
  return "";
}

std::optional<DType> parse_type(const std::string& text) {
  for (DType type : all_dtypes)
    if (type_name(type) == text) return type;
  return std::nullopt;
}

/// Bytes of an element of the format's types that hold whole or truth values and that we have no counterpart of.
std::optional<int64_t> bytes_of_other_integer(const std::string& text) {
  static const std::map<std::string_view, int64_t> bytes = {{"I64", 8}, {"U64", 8}, {"U32", 4},
                                                            {"U16", 2}, {"I8", 1},  {"BOOL", 1}};
  const auto found = bytes.find(text);
  return found == bytes.end() ? std::nullopt : std::optional(found->second);
}

[[noreturn]] void fail_type(const std::string& what, const std::string& found) {
  std::string known;
  for (DType type : all_dtypes) known += (known.empty() ? "" : ", ") + type_name(type);
  fail_data(what + ": expected a dtype of " + known + ", found " + found);
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (int64_t e : shape) text.append(text.size() > 1 ? "," : "").append(std::to_string(e));
  return text + "]";
}

/// Where a tensor's bytes lie behind the header.
using Extent = std::pair<uint64_t, uint64_t>;

/// Nothing for a counter of a type that we do not have; its bytes are checked and taken like any others.
std::optional<NamedArray> parse_entry(const std::string& path, const std::string& name, const json& entry,
                                      std::span<const std::byte> data, std::vector<Extent>& extents) {
  NamedArray array;
  array.name = name;
  const auto dtype = entry.at("dtype").get<std::string>();
  const auto type = parse_type(dtype);
  // Each batch norm of PyTorch counts its batches in an int64, which no network here asks for.
  const auto counter = name.ends_with(".num_batches_tracked") ? bytes_of_other_integer(dtype) : std::nullopt;
  if (!type && !counter) fail_type(path + ": tensor " + name, dtype);
  for (const json& extent : entry.at("shape")) {
    if (!extent.is_number_integer())
      fail_data(path + ": tensor " + name + ": expected whole numbers as shape, found " + entry.at("shape").dump());
    array.shape.push_back(extent.get<int64_t>());
  }
  const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
  uint64_t elements = 1;
  for (int64_t e : array.shape) {
    if (e < 0 || e > (int64_t{1} << 40) || elements > (uint64_t{1} << 40))
      fail_data(path + ": tensor " + name + ": impossible shape " + shape_text(array.shape));
    elements *= static_cast<uint64_t>(e);
  }
  const uint64_t bytes = elements * static_cast<uint64_t>(type ? size_of(*type) : *counter);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size() || offsets[1] - offsets[0] != bytes)
    fail_data(path + ": tensor " + name + ": shape " + shape_text(array.shape) + " needs " + std::to_string(bytes) +
              " bytes, the offsets or the file (" + std::to_string(data.size()) + " bytes of data) do not hold them");
  extents.emplace_back(offsets[0], offsets[1]);
  if (!type) return std::nullopt;
  array.dtype = *type;
  const auto part = data.subspan(offsets[0], bytes);
  array.data.assign(part.begin(), part.end());
  return array;
}

/// The length of the header behind the first 8 bytes of a file of `size` bytes.
uint64_t header_bytes(const std::string& path, std::span<const std::byte> first, uint64_t size) {
  uint64_t bytes = 0;
  if (first.size() >= 8) std::memcpy(&bytes, first.data(), 8);
  if (size < 8 || bytes > size - 8)
    fail_data(path + ": a safetensors header of " + std::to_string(bytes) + " bytes does not fit a file of " +
              std::to_string(size));
  return bytes;
}

constexpr const char *metadata = "__metadata__", *note_key = "convoy";

}  // namespace

std::string read_safetensors_note(const std::string& path) {
  std::error_code failed;
  const uint64_t size = std::filesystem::file_size(path, failed);  // ahead of a pipe, which would be waited for
  std::ifstream file;
  if (!failed) file.open(path, std::ios::binary);
  if (!file || failed) fail_data(path + ": cannot open");
  std::array<char, 8> first{};
  file.read(first.data(), first.size());
  std::string text(header_bytes(path, std::as_bytes(std::span(first)), size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  try {
    const json header = json::parse(text);
    return header.is_object() && header.contains(metadata) ? header[metadata].value(note_key, std::string())
                                                           : std::string();
  } catch (const json::exception& error) {
    fail_data(path + ": damaged safetensors header: " + error.what());
  }
}

std::vector<NamedArray> read_safetensors(const std::string& path) {
  const std::vector<std::byte> file = read_file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, header_bytes(path, file, file.size()));
  const auto data = std::span(file).subspan(8 + text.size());
  std::vector<NamedArray> arrays;
  std::vector<Extent> extents;
  try {
    const json header = json::parse(text);
    if (!header.is_object()) fail_data(path + ": expected a safetensors header object");
    for (const auto& [name, entry] : header.items())
      if (name != metadata)
        if (auto array = parse_entry(path, name, entry, data, extents)) arrays.push_back(std::move(*array));
  } catch (const json::exception& error) {
    fail_data(path + ": damaged safetensors header: " + error.what());
  }
  // The format has no gaps: tensors follow each other up to the end of the file.
  std::sort(extents.begin(), extents.end());
  uint64_t end = 0;
  for (const auto& [first, last] : extents) {
    if (first != end)
      fail_data(path + ": expected a tensor at byte " + std::to_string(end) + " of the data, found one at " +
                std::to_string(first));
    end = last;
  }
  if (end != data.size())
    fail_data(path + ": expected " + std::to_string(end) + " bytes of data, found " + std::to_string(data.size()));
  return arrays;
}

void write_safetensors(const std::string& path, const std::vector<NamedArray>& arrays, const std::string& note) {
  json header = {{metadata, {{"format", "pt"}, {"producer", "convoy"}}}};
  if (!note.empty()) header[metadata][note_key] = note;
  uint64_t offset = 0;
  for (const NamedArray& a : arrays) {
    header[a.name] = {
        {"dtype", type_name(a.dtype)}, {"shape", a.shape}, {"data_offsets", {offset, offset + a.data.size()}}};
    offset += a.data.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::vector<std::byte> file(8 + text.size());
  const uint64_t length = text.size();
  std::memcpy(file.data(), &length, 8);
  std::memcpy(file.data() + 8, text.data(), text.size());
  for (const NamedArray& a : arrays) file.insert(file.end(), a.data.begin(), a.data.end());
  write_file(path, file);
}

namespace {

int64_t taps_of(const Shape& s) {
  return s.d() * s.h() * s.w();
}

std::vector<int64_t> torch_shape(const Shape& s, int rank) {
  if (rank == 0) rank = s.rows() == 1 ? 1 : taps_of(s) == 1 ? 2 : s.d() == 1 ? 4 : 5;
  return rank == 1   ? std::vector{s.c()}
         : rank == 2 ? std::vector{s.n(), s.c()}
         : rank == 4 ? std::vector{s.n(), s.c(), s.h(), s.w()}
                     : std::vector{s.n(), s.c(), s.d(), s.h(), s.w()};
}

/// Calls f(ours, PyTorch's) for the places of every element of a parameter.
template <class F>
void for_each_place(const Shape& s, F&& f) {
  const int64_t taps = taps_of(s);
  for (int64_t k = 0; k < s.n(); ++k)
    for (int64_t t = 0; t < taps; ++t)
      for (int64_t c = 0; c < s.c(); ++c)
        f(static_cast<size_t>((k * taps + t) * s.c() + c), static_cast<size_t>((k * s.c() + c) * taps + t));
}

}  // namespace

NamedArray to_torch(const std::string& name, const Tensor& p, int rank) {
  const Shape& s = p.shape();
  NamedArray array{name, p.dtype(), torch_shape(s, rank),
                   std::vector<std::byte>(static_cast<size_t>(p.desc().bytes()))};
  const auto width = static_cast<size_t>(size_of(p.dtype()));
  for_each_place(s, [&](size_t ours, size_t theirs) {
    std::memcpy(&array.data[theirs * width], p.bytes() + ours * width, width);
  });
  return array;
}

void from_torch(const NamedArray& array, const Tensor& p, const std::string& path) {
  const Shape& s = p.shape();
  const std::vector<int64_t> expected = torch_shape(s, 0);
  // A 1x1 kernel may come as a matrix or an image kernel: extents of 1 do not matter.
  const auto essential = [](std::vector<int64_t> shape) {
    std::erase(shape, 1);
    return shape;
  };
  if (essential(array.shape) != essential(expected))
    fail_data(path + ": tensor " + array.name + ": expected shape " + shape_text(expected) + ", found " +
              shape_text(array.shape));
  if (!is_float(array.dtype))
    fail_data(path + ": tensor " + array.name + ": expected floating point, found " +
              std::string(name_of(array.dtype)));
  if (array.dtype == p.dtype()) {
    const auto width = static_cast<size_t>(size_of(p.dtype()));
    for_each_place(s, [&](size_t ours, size_t theirs) {
      std::memcpy(p.bytes() + ours * width, &array.data[theirs * width], width);
    });
    return;
  }
  const Tensor source(TensorDesc(Shape::vector(s.elements()), array.dtype), const_cast<std::byte*>(array.data.data()));
  const Tensor target(TensorDesc(Shape::vector(s.elements()), p.dtype()), p.bytes());
  for_each_place(s, [&](size_t ours, size_t theirs) {
    target.set(0, 0, 0, 0, static_cast<int64_t>(ours), source.at(0, 0, 0, 0, static_cast<int64_t>(theirs)));
  });
}

}  // namespace convoy
