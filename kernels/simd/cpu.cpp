#include "kernels/simd/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace convoy {
namespace {

CpuFeatures detect() {
  CpuFeatures f;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  __cpuid(0, a, b, c, d);
  const unsigned max_leaf = a;
  constexpr unsigned intel = 0x756e6547, amd = 0x68747541;  // "Genu", "Auth"
  const bool is_intel = b == intel, is_amd = b == amd;
  __cpuid(1, a, b, c, d);
  constexpr unsigned zen5 = 0x1a;
  f.one_stream = is_amd && (a >> 8 & 0xf) + (a >> 20 & 0xff) >= zen5;  // family, and what it is extended by
  uint64_t xcr0 = 0;
  if (c & (1u << 27)) {  // OSXSAVE: the kernel saves extended registers
    unsigned lo = 0, hi = 0;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    xcr0 = uint64_t(hi) << 32 | lo;
  }
  const bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6, tiles = (xcr0 & 0x60000) == 0x60000;
  const bool fma = c & (1u << 12), f16c = c & (1u << 29);
  if (max_leaf >= 7) {
    __cpuid_count(7, 0, a, b, c, d);
    f.avx2 = ymm && fma && f16c && (b & (1u << 5));
    f.avx512 = zmm && f.avx2 && (b & (1u << 16));
    f.avx512_fp16 = f.avx512 && (d & (1u << 23));
    f.amx_bf16 = tiles && (d & (1u << 22)) && (d & (1u << 24));
    __cpuid_count(7, 1, a, b, c, d);
    f.avx512_bf16 = f.avx512 && (a & (1u << 5));
    f.fast_bf16_dot = f.avx512_bf16 && !is_intel;
  }
  if (max_leaf >= 0x1d) {
    __cpuid_count(0x1d, 0, a, b, c, d);
    f.tile_leaf = a != 0;
  }
  unsigned brand[12] = {};
  __cpuid(0x80000000u, a, b, c, d);
  if (a >= 0x80000004u)
    for (unsigned i = 0; i < 3; ++i)
      __cpuid(0x80000002u + i, brand[4 * i], brand[4 * i + 1], brand[4 * i + 2], brand[4 * i + 3]);
  char text[49] = {};
  std::memcpy(text, brand, 48);
  f.model = text;
  while (!f.model.empty() && f.model.back() == ' ') f.model.pop_back();
#endif
  return f;
}

/// Takes away what lies above CONVOY_MAX_ISA, so that programs can be compared and tested as on an older machine.
CpuFeatures limit(CpuFeatures f) {
  const char* text = std::getenv("CONVOY_MAX_ISA");
  if (!text || !*text) return f;
  constexpr std::array names{"scalar", "avx2", "avx512", "avx512_bf16", "avx512_fp16", "amx"};  // as Isa
  size_t most = 0;
  std::string all;
  for (; most < names.size() && std::strcmp(text, names[most]) != 0; ++most)
    all.append(most ? ", " : "").append(names[most]);
  if (most == names.size()) fail_usage("CONVOY_MAX_ISA: expected one of " + all + "; found " + text);
  const auto keep = [&](bool& feature, Isa isa) {
    if (most >= static_cast<size_t>(isa)) return;
    f.limited |= feature;
    feature = false;
  };
  keep(f.avx2, Isa::avx2), keep(f.avx512, Isa::avx512), keep(f.avx512_bf16, Isa::avx512_bf16);
  keep(f.one_stream, Isa::avx512);  // all of them have it
  keep(f.fast_bf16_dot, Isa::avx512_bf16), keep(f.avx512_fp16, Isa::avx512_fp16), keep(f.amx_bf16, Isa::amx);
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = limit(detect());
  return features;
}

std::string describe_cpu() {
  const CpuFeatures& f = cpu_features();
  std::string text;
  const auto add = [&](bool has, const char* name) {
    if (has) text.append(text.empty() ? "" : " ").append(name);
  };
  add(f.avx2, "avx2"), add(f.avx512, "avx512"), add(f.avx512_bf16, "avx512_bf16"), add(f.avx512_fp16, "avx512_fp16");
  add(f.amx_bf16, "amx_bf16");
#ifndef CONVOY_WITH_AVX512
  if (f.avx512) text += "; own kernels built without avx512";
#endif
#ifndef CONVOY_WITH_AVX2
  if (f.avx2 && !f.avx512) text += "; own kernels built without avx2";
#endif
  return f.model + " [" + (text.empty() ? "baseline x86-64" : text) + "]";
}

}  // namespace convoy
