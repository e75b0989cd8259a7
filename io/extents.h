// Extents as files tell them: text for messages, and products that cannot overflow.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace convoy {

/// "768x1152x16", for messages.
inline std::string extents_text(std::span<const int64_t> extents) {
  std::string text;
  for (int64_t e : extents) text.append(text.empty() ? "" : "x").append(std::to_string(e));
  return text.empty() ? "a scalar" : text;
}
/// The product of extents; nothing where one is negative or the product is above `most`: what a damaged header says
/// must not become an allocation.
inline std::optional<int64_t> checked_elements(std::span<const int64_t> extents, int64_t most) {
  int64_t elements = 1;
  for (int64_t e : extents) {
    if (e < 0 || (e > 0 && elements > most / e)) return std::nullopt;
    elements *= e;
  }
  return elements;
}

}  // namespace convoy
