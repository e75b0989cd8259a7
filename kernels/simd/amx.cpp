#include "kernels/simd/amx.h"

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>

#include "kernels/simd/cpu.h"
#include "kernels/simd/tile_config.h"

namespace convoy {
namespace {

sigjmp_buf trial;
extern "C" void convoy_amx_trial_failed(int) { siglongjmp(trial, 1); }

__attribute__((target("amx-tile,amx-bf16"))) void use_tiles() {
  _tile_loadconfig(&tile_config);
  _tile_zero(0);
  _tile_release();
}

bool detect() {
  if (!cpu_features().amx_bf16) return false;
  // The kernels around the tiles are AVX-512, and round and pool with what every CPU with AMX has.
  const bool around = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (!cpu_features().avx512 || !cpu_features().avx512_bf16 || !around) return false;
  constexpr long request_permission = 0x1023, tile_data = 18;
  if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0) return false;
  const auto illegal = std::signal(SIGILL, convoy_amx_trial_failed);
  const auto fault = std::signal(SIGSEGV, convoy_amx_trial_failed);
  const bool works = sigsetjmp(trial, 1) == 0;
  if (works) use_tiles();
  std::signal(SIGILL, illegal);
  std::signal(SIGSEGV, fault);
  return works;
}

}  // namespace

bool amx_granted() {
  static const bool granted = detect();
  return granted;
}

}  // namespace convoy
