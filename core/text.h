// Small string helpers shared by the text forms (problems, descriptors, overrides).
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace convoy {

inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

inline std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t' || text.front() == '\n')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\n' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

/// Parses the whole text as a number; `what` names the thing in the error.
template <class T>
T parse_number(std::string_view text, std::string_view what) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size())
    fail_usage(std::string(what) + ": expected a number, found \"" + std::string(text) + "\"");
  return value;
}

/// A field of a CSV table: quoted where it holds a comma, a quote or a line break (RFC 4180).
inline std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

/// Whether the bytes are UTF-8 (RFC 3629), as JSON wants them.
inline bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t i) -> unsigned { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  for (size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i), second = byte(i + 1);
    const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length == 0) return false;
    // Longer than need be, a surrogate, beyond the last code point.
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second >= 0xa0) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second >= 0x90))
      return false;
    for (size_t k = 1; k < length; ++k)
      if (byte(i + k) < 0x80 || byte(i + k) >= 0xc0) return false;
    i += length;
  }
  return true;
}

/// A JSON string, quotes included (RFC 8259): for programs that build without a JSON library.
inline std::string json_string(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      quoted += {'\\', 'u', '0', '0', digits[byte / 16], digits[byte % 16]};
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace convoy
