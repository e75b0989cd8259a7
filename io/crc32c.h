// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78), as TFRecord and our checkpoints use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace convoy {

/// CRC of `data`, continuing from `crc` (0 to start). crc32c("123456789") = 0xE3069283. Uses SSE4.2 where the CPU has
/// it.
uint32_t crc32c(std::span<const std::byte> data, uint32_t crc = 0);
/// The same by table look-up; for tests and other CPUs.
uint32_t crc32c_table(std::span<const std::byte> data, uint32_t crc = 0);
/// TFRecord stores CRCs rotated and offset, so that a CRC over data containing CRCs stays useful.
inline uint32_t mask_crc(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace convoy
