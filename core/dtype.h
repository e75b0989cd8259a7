// Element types. bf16 and f16 are storage types: arithmetic widens to float, stores round to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace convoy {

enum class DType : uint8_t { f64, f32, bf16, f16, i32, i16, u8 };

inline constexpr DType all_dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                                       DType::i32, DType::i16, DType::u8};

/// Upper half of an IEEE binary32: 8 exponent bits, 7 fraction bits.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    // A NaN whose payload sits in the low half must not round to infinity.
    bits = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t((u >> 16) | 0x40u)
                                           : uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

/// IEEE binary16, converted in software so that any compiler and CPU gives the same bits.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      bits = uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more: infinity
      bits = uint16_t(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {  // subnormal: let the float adder round at the right place
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      bits = uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    } else {
      const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
      bits = uint16_t(sign | ((rounded - 0x38000000u) >> 13));
    }
  }
  explicit operator float() const {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
    if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(fraction) * 0x1p-24f));
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  }
};

constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType type) {
  constexpr std::string_view names[] = {"f64", "f32", "bf16", "f16", "i32", "i16", "u8"};
  return names[static_cast<int>(type)];
}

inline std::optional<DType> parse_dtype(std::string_view text) {
  for (DType type : all_dtypes)
    if (name_of(type) == text) return type;
  return std::nullopt;
}

constexpr bool is_float(DType type) {
  return type <= DType::f16;
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<f16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::i16;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}

/// Calls f with a default-constructed element of the given type, for code that is generic over storage types.
template <class F>
decltype(auto) dispatch_dtype(DType type, F&& f) {
  switch (type) {
    case DType::f64:
      return f(double{});
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    case DType::i32:
      return f(int32_t{});
    case DType::i16:
      return f(int16_t{});
    case DType::u8:
      return f(uint8_t{});
  }
  fail_runtime("unknown element type");
}

/// The same over the four floating-point types only; throws for integers.
template <class F>
decltype(auto) dispatch_float(DType type, F&& f) {
  switch (type) {
    case DType::f64:
      return f(double{});
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    default:
      fail_runtime("floating-point element type expected, found " + std::string(name_of(type)));
  }
}

template <class T>
double to_double(T value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
    return static_cast<double>(static_cast<float>(value));
  else
    return static_cast<double>(value);
}
template <class T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
    return T(static_cast<float>(value));
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(std::llrint(value));
  else
    return static_cast<T>(value);
}

/// What sums over values of a type are kept in, and what gradients of parameters are stored as.
constexpr DType accumulation_type(DType type) {
  return type == DType::f64 ? DType::f64 : DType::f32;
}

/// Distance from 1 to the next larger value of the type: 2^-52, 2^-23, 2^-7, 2^-10.
constexpr double epsilon_of(DType type) {
  switch (type) {
    case DType::f64:
      return 0x1p-52;
    case DType::f32:
      return 0x1p-23;
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    default:
      return 0;
  }
}

}  // namespace convoy
