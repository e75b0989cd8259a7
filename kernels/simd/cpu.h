// What this CPU can run, found once.
#pragma once

#include <cstdint>
#include <string>

namespace convoy {

enum class Isa : unsigned char { scalar, avx2, avx512, avx512_bf16, avx512_fp16, amx };

struct CpuFeatures {
  bool avx2 = false;    ///< AVX2, FMA and F16C
  bool avx512 = false;  ///< F (Foundation), all that our AVX-512 kernels use
  bool avx512_bf16 = false;
  bool fast_bf16_dot = false;  ///< VDPBF16PS at twice the f32 rate (Intel's before AVX10 issue it at half)
  bool avx512_fp16 = false;
  bool amx_bf16 = false;    ///< announced by CPUID and granted by the kernel (XCR0)
  bool tile_leaf = false;   ///< CPUID leaf 0x1D describes the tiles; some hypervisors hide it
  bool one_stream = false;  ///< a core draws most from memory by one stream (AMD's from Zen 5 on), not by several
  bool limited = false;     ///< CONVOY_MAX_ISA leaves out something that the CPU has; oneDNN is told the same
  std::string model;
};

/// Outputs from this size on do not stay in the caches until they are read: kernels may write them past the caches.
constexpr int64_t streamed_output_bytes = 8 << 20;

/// The CPU's features up to the environment variable CONVOY_MAX_ISA, a name of Isa; throws Error(usage) for another
/// text.
const CpuFeatures& cpu_features();
/// "AMD EPYC ... [avx2 avx512 ...]", for summaries and files of measurements.
std::string describe_cpu();

}  // namespace convoy
