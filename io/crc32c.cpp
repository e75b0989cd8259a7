#include "io/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace convoy {
namespace {

std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? (value >> 1) ^ 0x82F63B78u : value >> 1;
    table[i] = value;
  }
  return table;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(std::span<const std::byte> data, uint32_t crc) {
  uint64_t state = ~crc;
  const std::byte* p = data.data();
  size_t left = data.size();
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; left > 0; --left, ++p) narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*p));
  return ~narrow;
}
#endif

}  // namespace

uint32_t crc32c_table(std::span<const std::byte> data, uint32_t crc) {
  static const std::array<uint32_t, 256> table = make_table();
  uint32_t state = ~crc;
  for (std::byte b : data) state = table[(state ^ static_cast<uint8_t>(b)) & 0xff] ^ (state >> 8);
  return ~state;
}

uint32_t crc32c(std::span<const std::byte> data, uint32_t crc) {
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2");
  if (hardware) return crc32c_sse42(data, crc);
#endif
  return crc32c_table(data, crc);
}

}  // namespace convoy
