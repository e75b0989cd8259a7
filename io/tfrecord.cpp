#include "io/tfrecord.h"

#include <libdeflate.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "io/crc32c.h"
#include "io/decompressor.h"
#include "io/protobuf.h"

namespace convoy {
namespace {

using Bytes = std::span<const std::byte>;

/// Reads protobuf wire format: varints, length-delimited fields; everything else is skipped.
class Wire {
 public:
  Wire(Bytes data, const std::string& path) : data_(data), path_(path) {}
  bool done() const { return at_ == data_.size(); }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= uint64_t(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return value;
    }
    fail("a number longer than 10 bytes");
  }
  Bytes take(uint64_t count) {
    if (count > data_.size() - at_)
      fail("a field of " + std::to_string(count) + " bytes where " + std::to_string(data_.size() - at_) + " are left");
    const Bytes part = data_.subspan(at_, static_cast<size_t>(count));
    at_ += static_cast<size_t>(count);
    return part;
  }
  Bytes delimited() { return take(varint()); }
  void skip(uint64_t type) {
    if (type == 0)
      varint();
    else if (type == 1)
      take(8);
    else if (type == 2)
      delimited();
    else if (type == 5)
      take(4);
    else
      fail("wire type " + std::to_string(type));
  }
  [[noreturn]] void fail(const std::string& what) const {
    fail_data(path_ + ": damaged tf.train.Example: found " + what);
  }

 private:
  Bytes data_;
  size_t at_ = 0;
  const std::string& path_;
};

/// Calls f(number, content) for every length-delimited field.
template <class F>
void for_fields(Bytes message, const std::string& path, F&& f) {
  Wire wire(message, path);
  while (!wire.done()) {
    const uint64_t tag = wire.varint();
    if ((tag & 7) == 2)
      f(tag >> 3, wire.delimited());
    else
      wire.skip(tag & 7);
  }
}

struct Features {
  std::optional<Bytes> x;
  std::vector<float> y;
};

void read_floats(Bytes list, const std::string& path, std::vector<float>& out) {
  Wire wire(list, path);
  while (!wire.done()) {
    const uint64_t tag = wire.varint();
    if (tag >> 3 != 1 || ((tag & 7) != 2 && (tag & 7) != 5)) {
      wire.skip(tag & 7);
      continue;
    }
    const Bytes raw = (tag & 7) == 2 ? wire.delimited() : wire.take(4);
    if (raw.size() % 4) wire.fail("a float list of " + std::to_string(raw.size()) + " bytes");
    const size_t first = out.size();
    out.resize(first + raw.size() / 4);
    if (!raw.empty()) std::memcpy(out.data() + first, raw.data(), raw.size());
  }
}

Features read_example(Bytes example, const std::string& path) {
  Features features;
  for_fields(example, path, [&](uint64_t number, Bytes map) {
    if (number != 1) return;
    for_fields(map, path, [&](uint64_t entry_number, Bytes entry) {
      if (entry_number != 1) return;
      std::string key;
      Bytes feature;
      for_fields(entry, path, [&](uint64_t part, Bytes content) {
        if (part == 1) key.assign(reinterpret_cast<const char*>(content.data()), content.size());
        if (part == 2) feature = content;
      });
      for_fields(feature, path, [&](uint64_t kind, Bytes list) {
        if (key == "x" && kind == 1)
          for_fields(list, path, [&](uint64_t item, Bytes value) {
            if (item == 1) features.x = value;
          });
        if (key == "y" && kind == 2) read_floats(list, path, features.y);
      });
    });
  });
  return features;
}

uint32_t read_u32(Bytes data, size_t at) {
  uint32_t value;
  std::memcpy(&value, data.data() + at, 4);
  return value;
}

void check_crc(Bytes part, uint32_t stored, const std::string& path, const char* what) {
  const uint32_t found = mask_crc(crc32c(part));
  if (found != stored) {
    char text[80];
    std::snprintf(text, sizeof text, ": CRC of the %s: expected %08x, found %08x", what, stored, found);
    fail_data(path + text);
  }
}

Bytes unwrap_record(Bytes file, const std::string& path) {
  if (file.size() < 16) fail_data(path + ": a TFRecord needs at least 16 bytes, found " + std::to_string(file.size()));
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  check_crc(file.first(8), read_u32(file, 8), path, "record length");
  if (length != file.size() - 16)
    fail_data(path + ": one record of " + std::to_string(file.size() - 16) + " bytes expected, the length field says " +
              std::to_string(length));
  const Bytes payload = file.subspan(12, static_cast<size_t>(length));
  check_crc(payload, read_u32(file, 12 + static_cast<size_t>(length)), path, "record data");
  return payload;
}

bool is_gzip(Bytes file) {
  return file.size() > 2 && file[0] == std::byte{0x1f} && file[1] == std::byte{0x8b};
}

void append(std::vector<std::byte>& out, const void* data, size_t bytes) {
  if (bytes == 0) return;  // memcpy wants a valid pointer even then
  const size_t at = out.size();
  out.resize(at + bytes);
  std::memcpy(out.data() + at, data, bytes);
}

/// An entry of a map from names to features, whose `kind` is 1 for bytes, 2 for floats.
ProtobufMessage map_entry(std::string_view key, int kind, Bytes content) {
  ProtobufMessage list, feature, entry;
  list.bytes(1, content);
  feature.message(kind, list);
  entry.text(1, key);
  entry.message(2, feature);
  return entry;
}

}  // namespace

Sample decode_tfrecord(Bytes file, const std::string& path, int64_t channels) {
  std::vector<std::byte> inflated;
  if (is_gzip(file)) inflated = gzip_decompress(file, path), file = inflated;
  const Features features = read_example(unwrap_record(file, path), path);
  if (!features.x) fail_data(path + ": key x: expected one bytes value, found none");
  if (features.y.empty()) fail_data(path + ": key y: expected floats, found none");
  const auto voxels = static_cast<int64_t>(features.x->size()) / (2 * channels);
  const auto size = static_cast<int64_t>(std::llround(std::cbrt(double(voxels))));
  if (size < 1 || size * size * size * channels * 2 != static_cast<int64_t>(features.x->size()))
    fail_data(path + ": key x: " + std::to_string(features.x->size()) + " bytes are no cube of int16 with " +
              std::to_string(channels) + " channels");
  Sample sample;
  sample.shape = {size, channels, static_cast<int64_t>(features.y.size()), DType::i16};
  sample.voxels.assign(features.x->begin(), features.x->end());
  sample.target = features.y;
  return sample;
}

std::vector<std::byte> encode_tfrecord(Bytes voxels, std::span<const float> target) {
  ProtobufMessage features, message;
  features.message(1, map_entry("x", 1, voxels));
  features.message(1, map_entry("y", 2, std::as_bytes(target)));
  message.message(1, features);
  const std::vector<std::byte>& example = message.data();
  std::vector<std::byte> out;
  out.reserve(example.size() + 16);
  const uint64_t length = example.size();
  append(out, &length, 8);
  const uint32_t length_crc = mask_crc(crc32c(std::as_bytes(std::span(&length, 1))));
  append(out, &length_crc, 4);
  append(out, example.data(), example.size());
  const uint32_t data_crc = mask_crc(crc32c(example));
  append(out, &data_crc, 4);
  return out;
}

std::vector<std::byte> gzip_compress(Bytes data, int level) {
  const std::unique_ptr<libdeflate_compressor, void (*)(libdeflate_compressor*)> compressor(
      libdeflate_alloc_compressor(level), libdeflate_free_compressor);
  if (!compressor) fail_runtime("libdeflate: cannot start compression");
  std::vector<std::byte> out(libdeflate_gzip_compress_bound(compressor.get(), data.size()));
  out.resize(libdeflate_gzip_compress(compressor.get(), data.data(), data.size(), out.data(), out.size()));
  if (out.empty()) fail_runtime("libdeflate: compression failed");
  return out;
}

std::vector<std::byte> gzip_decompress(Bytes data, const std::string& path) {
  const Decompressor decompressor = make_decompressor();  // prefetch threads share the cores with the kernels
  // The last four bytes of a gzip file hold its size modulo 2^32: a hint for the buffer, checked by growing on demand,
  // and no more than is usual at first, since those of a truncated file are anything. No deflate stream expands more
  // than 1032 times, and no sample has more than 8 GiB of voxels.
  uint32_t hint = 0;
  if (data.size() >= 18) std::memcpy(&hint, data.data() + data.size() - 4, 4);
  const size_t most = std::clamp<size_t>(data.size() * 1032, 1024, (size_t{1} << 33) + (1 << 20));
  std::vector<std::byte> out(std::clamp<size_t>(std::min<size_t>(hint, 16 * data.size()), 1024, most));
  size_t done = 0;
  // Parallel compressors write several members, tapes pad with zeros (RFC 1952, 2.2; gzip takes both).
  const auto ended = [](Bytes rest) {
    return std::all_of(rest.begin(), rest.end(), [](auto b) { return b == std::byte{0}; });
  };
  do {
    size_t read = 0, written = 0;
    const libdeflate_result result = libdeflate_gzip_decompress_ex(
        decompressor.get(), data.data(), data.size(), out.data() + done, out.size() - done, &read, &written);
    if (result == LIBDEFLATE_INSUFFICIENT_SPACE && out.size() < most) {
      out.resize(std::min(most, out.size() * 2));
      continue;
    }
    if (result != LIBDEFLATE_SUCCESS) fail_data(path + ": damaged or truncated gzip data");
    done += written, data = data.subspan(read);
    if (data.size() >= 2 && data[0] == std::byte{0x1f} && data[1] == std::byte{0x8b}) continue;
    if (!ended(data)) fail_data(path + ": " + std::to_string(data.size()) + " bytes follow the gzip data");
    data = {};
  } while (!data.empty());
  out.resize(done);
  return out;
}

}  // namespace convoy
