// One run at a time in a folder: a file names the process that writes there.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace convoy::apps {

/// A process holds one at a time.
class RunLock {
 public:
  /// Makes the folder and, in it, run.lock with this host, process and the process's start. Throws Error(usage) naming
  /// host, process and file where another process that lives holds the lock. One of this host that is gone loses it at
  /// once; one of another host, whose processes cannot be seen from here, when its file has not been touched for
  /// `patience`: a holder touches it every ten seconds.
  explicit RunLock(const std::string& folder, std::chrono::milliseconds patience = std::chrono::seconds(30));
  /// Gives the lock back, and removes the folder if this made it and nothing was written into it.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  void acquire(std::chrono::milliseconds patience);
  void keep_alive();
  std::string path_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::thread heart_;
};

/// Gives back the lock that this process holds, if any: for signal handlers and for ends that run no destructors.
/// SIGINT, SIGHUP, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 and SIGXCPU do so by themselves where nothing else handles them.
void release_run_lock();

}  // namespace convoy::apps
