// In place of a team of threads: runs their shares one after the other, to see how even they are on any number of
// threads (bench/thread_shares.h).
#pragma once

namespace convoy {

/// A region's body by reference: a function of the thread's number.
class ThreadBody {
 public:
  template <class F>
  explicit ThreadBody(F& body)
      : what_(&body),
        call_([](const void* what, int thread) { (*static_cast<F*>(const_cast<void*>(what)))(thread); }) {}
  void operator()(int thread) const { call_(what_, thread); }

 private:
  const void* what_;
  void (*call_)(const void*, int);
};

class TeamStandIn {
 public:
  virtual ~TeamStandIn() = default;
  /// Runs body(thread) for every thread in [0, threads).
  virtual void run(int threads, ThreadBody body) = 0;
  /// The thread that runs asks for another unit of those that go to whoever is free: the one before has ended.
  virtual void next_unit() = 0;
  /// It was told that none is left.
  virtual void no_unit() = 0;
};

/// Runs all regions of more than one thread while it is not null; to be set where none runs.
/// One in a process, plugins that hide their symbols included.
__attribute__((visibility("default"))) inline TeamStandIn* team_stand_in = nullptr;

}  // namespace convoy
