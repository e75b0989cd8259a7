#include "dist/mpi_watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "core/error.h"
#include "dist/process.h"

namespace convoy {
namespace {

/// In place of seconds of silence: a main thread that has waited for others for a quarter of the timeout.
constexpr double waiting_long = -2;
constexpr int note_tag = 1;

}  // namespace

Watchdog::Watchdog(const MpiOptions& options, std::vector<WatchedRank> ranks)
    : options_(options), ranks_(std::move(ranks)) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  size_ = static_cast<int>(ranks_.size());
  MPI_Comm_dup(MPI_COMM_WORLD, &notes_);
  // An error would else end all ranks before the watchdogs have named the one that is gone.
  MPI_Comm_set_errhandler(notes_, MPI_ERRORS_RETURN);
  sign_of_life();
  looked_at_ = rank_;
}

void Watchdog::start() {
  thread_ = std::thread([this] { watch(); });
}

void Watchdog::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Watchdog::set_busy(bool busy) {
  busy_ = busy;
  sign_of_life();
}

void Watchdog::waits_for(const std::string& what, double seconds) {
  sign_of_life();
  const std::lock_guard lock(reason_mutex_);
  reason_ = what;
  waiting_ = true;
  if (asked_ == 0 && seconds > options_.timeout / 4) asked_ = seconds_now();
}

void Watchdog::waits_no_longer() {
  sign_of_life();
  const std::lock_guard lock(reason_mutex_);
  waiting_ = false;
  asked_ = 0;
}

void Watchdog::say_goodbye() {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (r != rank_) send_note(r, {Word::leaving, 0, {}});
}

void Watchdog::complete(int code, MPI_Request request, const std::string& what) {
  const double start = seconds_now();
  for (int through = 0; !through;) {
    if (code == MPI_SUCCESS) {
      const std::lock_guard lock(mutex_);
      code = MPI_Test(&request, &through, MPI_STATUS_IGNORE);
    }
    if (code != MPI_SUCCESS) failed(code);
    if (const double waited = seconds_now() - start; !through && waited > 0.002) {
      waits_for(what, waited);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  waits_no_longer();
}

void Watchdog::failed(int code) {
  std::this_thread::sleep_for(std::chrono::seconds(2));
  char text[MPI_MAX_ERROR_STRING];
  int length = 0, kind = MPI_ERR_UNKNOWN;
  {
    const std::lock_guard lock(mutex_);
    MPI_Error_string(code, text, &length);
    MPI_Error_class(code, &kind);
  }
  // Libraries tell of a process that is gone by many classes, of their own, too; these are not among them.
  constexpr int mistakes[] = {MPI_ERR_NO_MEM, MPI_ERR_TRUNCATE, MPI_ERR_BUFFER, MPI_ERR_COUNT,   MPI_ERR_TYPE,
                              MPI_ERR_TAG,    MPI_ERR_COMM,     MPI_ERR_RANK,   MPI_ERR_REQUEST, MPI_ERR_OP};
  const bool mistake = std::find(std::begin(mistakes), std::end(mistakes), kind) != std::end(mistakes);
  throw Error(mistake ? ErrorKind::runtime : ErrorKind::lost_rank,
              "MPI: " + std::string(text, static_cast<size_t>(length)));
}

void Watchdog::finish() {
  // A rank that is through answers no longer; the others must know before its process ends.
  finishing_ = true;
  say_goodbye();
  MPI_Request request = MPI_REQUEST_NULL;
  int code;
  {
    const std::lock_guard lock(mutex_);
    code = MPI_Ibarrier(notes_, &request);
  }
  complete(code, request, "the end of the run");
  stop();
  read_notes();
}

/// A note that nobody has read would reach whatever communicator gets the number of this one. All ranks have come to
/// the end: one that is lost from here on is the caller's MPI's to find.
void Watchdog::free_notes() {
  const std::lock_guard lock(mutex_);
  std::vector<int> sent, coming(ranks_.size());
  for (const WatchedRank& r : ranks_) sent.push_back(r.sent);
  MPI_Alltoall(sent.data(), 1, MPI_INT, coming.data(), 1, MPI_INT, notes_);
  for (int r = 0; r < size_; ++r)
    for (; of(r).read < coming[static_cast<size_t>(r)]; ++of(r).read) {
      Note note;
      MPI_Recv(&note, sizeof note, MPI_BYTE, r, note_tag, notes_, MPI_STATUS_IGNORE);
    }
  MPI_Comm_free(&notes_);
}

void Watchdog::watch() {
  double last_question = 0, last_turn = seconds_now();
  while (!stop_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    // A batch system may have suspended the job: nobody was silent while nobody could speak.
    const double turn = seconds_now();
    if (turn - last_turn > options_.timeout / 2) forgive(turn);
    last_turn = turn;
    check_process();
    if (!read_notes()) continue;
    if (seconds_now() - last_question > options_.timeout / 10) {
      last_question = seconds_now();
      question_the_silent();
    }
  }
}

void Watchdog::forgive(double turn) {
  sign_of_life();
  for (WatchedRank& r : ranks_) {
    r.heard = turn, r.stuck_since = 0, r.waits = false;
    if (r.left > 0) r.left = turn;
  }
}

/// The lock, or none where the main thread keeps it inside a call that waits for others (setting up a communicator):
/// the watchdog then still sees the processes of this host.
std::unique_lock<std::mutex> Watchdog::lock_unless_blocked() {
  constexpr double patience = 0.5;  // seconds that are waited once, not at every turn
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock && blocked_since_ == 0) blocked_since_ = seconds_now();
  while (!lock && seconds_now() - blocked_since_ < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    lock.try_lock();
  }
  if (lock) blocked_since_ = 0;
  return lock;
}

/// One process per turn: ranks begin at different ones, and whoever finds one gone tells all. All of them where this
/// rank can tell nobody.
void Watchdog::check_process() {
  for (int tried = 0; tried < size_; ++tried) {
    looked_at_ = (looked_at_ + 1) % size_;
    const WatchedRank& other = of(looked_at_);
    if (looked_at_ == rank_ || other.pid == 0 || other.left > 0) continue;
    if (!ended(other.pid)) {
      if (blocked_since_ == 0) return;
      continue;
    }
    // It may have said goodbye. Where that cannot be read, MPI ends this rank too if the other one called for it.
    if (!read_notes()) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      read_notes();
    }
    if (other.left == 0) give_up(looked_at_, "has ended");
  }
}

/// False where MPI could not be asked.
bool Watchdog::read_notes() {
  const std::unique_lock lock = lock_unless_blocked();
  if (!lock) return false;
  for (int there = 1; there;) {
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, note_tag, notes_, &there, &status) != MPI_SUCCESS || !there) break;
    Note note;
    MPI_Recv(&note, sizeof note, MPI_BYTE, status.MPI_SOURCE, note_tag, notes_, MPI_STATUS_IGNORE);
    WatchedRank& from = of(status.MPI_SOURCE);
    ++from.read;
    if (note.word == Word::ask) {
      send_note(status.MPI_SOURCE, {Word::answer, silence(), {}});
    } else if (note.word == Word::answer) {
      // Whoever answers lives; a main thread that has stood still for very long does not count as living.
      from.waits = note.silent == waiting_long;
      const bool well = note.silent < options_.patience * options_.timeout;
      if (well) from.heard = seconds_now();
      from.stuck_since = well ? 0 : seconds_now() - note.silent;
    } else if (note.word == Word::leaving) {
      from.left = seconds_now();
    } else {
      end(note.text);
    }
  }
  return true;
}

void Watchdog::question_the_silent() {
  double asked;
  {
    const std::lock_guard lock(reason_mutex_);
    asked = asked_;
  }
  if (asked == 0) return;
  for (int r = 0; r < size_; ++r) {
    const WatchedRank& other = of(r);
    if (r == rank_) continue;
    if (other.left > 0) {
      // It was through with what this rank waits for, unless all that are left wait, too: for ever.
      if (!finishing_ && seconds_now() - std::max(asked, other.left) > options_.timeout && all_wait())
        give_up(r, "has ended its run");
      continue;
    }
    const double silent = seconds_now() - std::max(asked, other.heard);
    if (silent > options_.timeout * 3 / 4) {
      const auto seconds = [](double s) { return std::to_string(int(s)) + " s"; };
      give_up(r, other.stuck_since > 0
                     ? "answers, but its main thread has stood still for " + seconds(seconds_now() - other.stuck_since)
                     : "has not answered for " + seconds(silent + options_.timeout / 4));
    }
    const std::unique_lock lock = lock_unless_blocked();
    if (!lock) return;
    send_note(r, {Word::ask, 0, {}});
  }
}

/// What this rank says of itself: seconds without a sign of life, or why there is none.
double Watchdog::silence() {
  constexpr double excused = -1;
  if (busy_) return excused;
  if (!waiting_) return seconds_now() - alive_;
  const std::lock_guard lock(reason_mutex_);
  return asked_ > 0 ? waiting_long : excused;
}

/// Whether all others have left or said last that they have waited for long.
bool Watchdog::all_wait() const {
  for (int r = 0; r < size_; ++r)
    if (r != rank_ && of(r).left == 0 && !of(r).waits) return false;
  return true;
}

/// Notes fit every library's eager messages: a send that nobody reads does not block.
void Watchdog::send_note(int to, const Note& note) {
  MPI_Request request;
  auto* copy = new Note(note);  // lives until the process ends where the other side never reads it
  if (MPI_Isend(copy, sizeof note, MPI_BYTE, to, note_tag, notes_, &request) != MPI_SUCCESS) return;
  ++of(to).sent;
  int through = 0;
  MPI_Test(&request, &through, MPI_STATUS_IGNORE);
  if (through)
    delete copy;
  else
    MPI_Request_free(&request);
}

void Watchdog::give_up(int lost, const std::string& why) {
  std::string sentence = "rank " + std::to_string(lost) + " on " + of(lost).host;
  if (of(lost).pid) sentence += " (process " + std::to_string(of(lost).pid) + ")";
  sentence += " " + why;
  Note note{Word::lost, 0, {}};
  std::snprintf(note.text, sizeof note.text, "%s", sentence.c_str());
  {
    const std::unique_lock lock = lock_unless_blocked();
    for (int r = 0; lock && r < size_; ++r)
      if (r != rank_ && r != lost) send_note(r, note);
  }
  end(sentence);
}

void Watchdog::end(const std::string& sentence) {
  std::string reason;
  {
    const std::lock_guard lock(reason_mutex_);
    reason = waiting_ ? ", while this rank waited for " + reason_ : "";
  }
  try {
    if (options_.lost) options_.lost(sentence + reason);
  } catch (const std::exception&) {  // the watchdog has nobody to tell
  }
  // The launcher ends all ranks when the first is gone: let the others say what they know.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  _exit(static_cast<int>(ErrorKind::lost_rank));
}

}  // namespace convoy
