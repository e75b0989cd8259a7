// Weights and inputs that PyTorch's scripts and the tests compute alike, so that no file has to hold them.
#pragma once

#include <cstdint>
#include <string>

#include "core/philox.h"

namespace convoy::testing {

/// Uniform in [-1, 1): murmur's finaliser of position plus the name's hash.
inline float hash_number(uint64_t name_hash, int64_t i) {
  auto h = static_cast<uint32_t>(static_cast<uint64_t>(i) + (name_hash & 0xffffffffu));
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  h ^= h >> 16;
  return float(double(h) / 2147483648.0 - 1);
}
inline float hash_number(const std::string& name, int64_t i) {
  return hash_number(hash_name(name), i);
}

}  // namespace convoy::testing
