// Which of the other ranks are still there. A thread that mostly sleeps looks at the processes of this host, answers
// the question "are you there" of others even while this rank computes, asks it when this rank waits for too long, and
// ends the process where a rank is lost.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dist/mpi.h"

namespace convoy {

/// Seconds of the steady clock.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Another rank, or this one, as the watchdog knows it.
struct WatchedRank {
  std::string host;
  int pid = 0;             ///< 0: its process cannot be seen from here
  int sent = 0, read = 0;  ///< notes to and from it
  double heard = 0;        ///< when it last answered that it is well
  double stuck_since = 0;  ///< it answers, but its main thread stands still since then; 0: it does not
  double left = 0;         ///< when it said that it is through; 0: not yet
  bool waits = false;      ///< its last answer was that it has waited for long
};

class Watchdog {
 public:
  /// `ranks`: all of MPI_COMM_WORLD, their hosts and process numbers. Collective.
  Watchdog(const MpiOptions& options, std::vector<WatchedRank> ranks);
  ~Watchdog() { stop(); }
  /// Starts the thread; before, nobody is watched, nor answered.
  void start();
  void stop();

  /// Taken around every MPI call of the session, its transports and this (MPI_THREAD_SERIALIZED), but for those that
  /// end MPI.
  std::mutex& mutex() { return mutex_; }
  /// A communicator of its own over all ranks, for notes and other small messages (with tags above 1).
  MPI_Comm notes() const { return notes_; }

  /// This rank is at work.
  void sign_of_life() { alive_ = seconds_now(); }
  void set_busy(bool busy);
  /// It has waited for `what` for so many seconds, and goes on to.
  void waits_for(const std::string& what, double seconds);
  void waits_no_longer();
  /// It is through; the others need not say that it is gone.
  void say_goodbye();

  /// Waits for a message of `notes` that was started with `code`: a rank that is lost meanwhile is named.
  void complete(int code, MPI_Request request, const std::string& what);
  /// Where an MPI call failed: because a rank is gone, which the watchdog is about to tell within the two seconds that
  /// this waits, or for a reason of its own.
  /// Throws Error(runtime) where the error can be no other rank's end, else Error(lost_rank).
  [[noreturn]] void failed(int code);

  /// The end in agreement: every rank calls it, and is no longer watched.
  void finish();
  /// Behind finish(), where the caller goes on using MPI: receives notes that nobody has read, frees the communicator.
  void free_notes();

 private:
  /// Questions and answers between watchdogs.
  enum class Word : int { ask, answer, lost, leaving };
  struct Note {
    Word word;
    double silent;   ///< answer: seconds since its main thread gave a sign of life; negative: busy or waiting itself
    char text[200];  ///< lost: the sentence
  };
  WatchedRank& of(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const WatchedRank& of(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  void watch();
  /// All ranks count as heard at this time.
  void forgive(double turn);
  std::unique_lock<std::mutex> lock_unless_blocked();
  bool read_notes();
  void check_process();
  void question_the_silent();
  double silence();
  bool all_wait() const;
  void send_note(int to, const Note& note);
  [[noreturn]] void give_up(int lost, const std::string& why);
  [[noreturn]] void end(const std::string& sentence);

  MpiOptions options_;
  int rank_ = 0, size_ = 1;
  MPI_Comm notes_ = MPI_COMM_NULL;
  std::thread thread_;
  std::atomic<bool> stop_{false}, busy_{false}, waiting_{false}, finishing_{false};
  std::atomic<double> alive_{0};

  std::mutex reason_mutex_;
  std::string reason_;  ///< what this rank waits for
  double asked_ = 0;    ///< when the silent were asked first, 0: not yet

  std::mutex mutex_;
  // Of the thread, until it is stopped; what was sent, under mutex_.
  std::vector<WatchedRank> ranks_;
  int looked_at_ = 0;         ///< whose process was checked last
  double blocked_since_ = 0;  ///< when the watchdog first could not have the lock, 0: it could
};

}  // namespace convoy
