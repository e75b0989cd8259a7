#include "apps/common/stop_signal.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "apps/common/run_lock.h"

namespace convoy::apps {
namespace {

volatile std::sig_atomic_t signal_received = 0;

/// Of the first one, by a clock that only goes on.
std::atomic<int64_t> signal_milliseconds{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);  // what a signal handler may use

/// Launchers pass the same request on by more than one way: only one that comes two seconds later is a second request.
extern "C" void on_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t milliseconds = int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
  // Beyond a limit of processor time the system sends another SIGXCPU each second.
  if (signal_received && number != SIGXCPU && milliseconds - signal_milliseconds >= 2000) {
    release_run_lock();
    _exit(128 + number);
  }
  if (!signal_received) signal_milliseconds = milliseconds;
  signal_received = number;
}

}  // namespace

void install_signal_handlers() {
  for (int number : {SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGINT}) std::signal(number, on_signal);
  // A terminal that goes away, unless nohup asked for nothing to happen then.
  if (std::signal(SIGHUP, on_signal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
}

bool stop_signalled() {
  return signal_received != 0;
}

}  // namespace convoy::apps
