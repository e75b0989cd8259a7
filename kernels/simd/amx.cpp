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
thread_local bool on_trial = false;

/// What the process had for the trial's two signals.
struct sigaction before_illegal, before_fault;
struct sigaction& before(int signal) {
  return signal == SIGILL ? before_illegal : before_fault;
}

/// A fault of another thread is not the trial's: it comes again, and gets what it would have got without.
extern "C" void convoy_amx_trial_failed(int signal) {
  if (on_trial) siglongjmp(trial, 1);
  sigaction(signal, &before(signal), nullptr);
}

/// Takes a signal until the end of the scope, then gives it back as it was: handlers of MPI or sanitizers have flags
/// and masks of their own.
class TrialHandler {
 public:
  explicit TrialHandler(int signal) : signal_(signal) {
    struct sigaction mine = {};
    mine.sa_handler = convoy_amx_trial_failed;
    sigemptyset(&mine.sa_mask);
    sigaction(signal, nullptr, &before(signal));
    sigaction(signal, &mine, nullptr);
  }
  ~TrialHandler() { sigaction(signal_, &before(signal_), nullptr); }
  TrialHandler(const TrialHandler&) = delete;
  TrialHandler& operator=(const TrialHandler&) = delete;

 private:
  int signal_;
};

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
  const TrialHandler illegal(SIGILL), fault(SIGSEGV);
  on_trial = true;
  const bool works = sigsetjmp(trial, 1) == 0;
  if (works) use_tiles();
  on_trial = false;
  return works;
}

}  // namespace

bool amx_granted() {
  static const bool granted = detect();
  return granted;
}

}  // namespace convoy
