// Protobuf's wire format, as it is written: a number is a varint, everything else stands behind its length.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace convoy {

/// Fields of one message, in the order in which they are added. Repeated fields are added one by one.
class ProtobufMessage {
 public:
  void number(int field, int64_t value) { tag(field, 0), varint(static_cast<uint64_t>(value)); }
  void real(int field, float value) {
    tag(field, 5);
    append(std::as_bytes(std::span(&value, 1)));
  }
  void bytes(int field, std::span<const std::byte> content) {
    tag(field, 2), varint(content.size());
    append(content);
  }
  void text(int field, std::string_view content) { bytes(field, std::as_bytes(std::span(content))); }
  void message(int field, const ProtobufMessage& content) { bytes(field, content.data_); }

  const std::vector<std::byte>& data() const { return data_; }

 private:
  void tag(int field, uint64_t type) { varint(uint64_t(field) << 3 | type); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) data_.push_back(std::byte(uint8_t(value) | 0x80));
    data_.push_back(std::byte(uint8_t(value)));
  }
  void append(std::span<const std::byte> content) { data_.insert(data_.end(), content.begin(), content.end()); }
  std::vector<std::byte> data_;
  static_assert(std::endian::native == std::endian::little);
};

}  // namespace convoy
