#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace convoy {

/// Channels-first values (c, then the space) in channels-last order. The bytes of `from` hold T.
template <typename T, typename Element>
std::vector<Element> to_channels_last(const std::vector<Element>& from, int64_t channels) {
  std::vector<Element> to(from.size());
  const auto* source = reinterpret_cast<const T*>(from.data());
  auto* target = reinterpret_cast<T*>(to.data());
  const int64_t points = static_cast<int64_t>(from.size() * sizeof(Element) / sizeof(T)) / channels;
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t i = 0; i < points; ++i) target[i * channels + c] = source[c * points + i];
  return to;
}

}  // namespace convoy
