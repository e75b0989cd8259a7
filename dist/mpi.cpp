// MPI-3.1 calls only. All of them happen under one lock (MPI_THREAD_SERIALIZED): the caller's, a progress thread's and
// the watchdog's. The watchdog is a thread that mostly sleeps; it answers the question "are you there" of others even
// while this rank computes, and asks it when this rank waits for too long.
#include "dist/mpi.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/error.h"
#include "core/round_up.h"
#include "core/tensor.h"
#include "dist/process.h"
#include "dist/shared_buffer.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

double now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::string library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string line(text, static_cast<size_t>(length));
  line = line.substr(0, line.find('\n'));
  for (char& c : line)
    if (c == '\t') c = ' ';
  return line.substr(0, line.find(", package"));
}

/// Questions and answers between watchdogs.
enum class Word : int { ask, answer, lost, leaving };
struct Note {
  Word word;
  int rank;        ///< lost: who
  double silent;   ///< answer: seconds since its main thread gave a sign of life; negative: busy or waiting itself
  char text[200];  ///< lost: the sentence
};
/// In place of seconds of silence: a main thread that has waited for others for a quarter of the timeout.
constexpr double waiting_long = -2;
constexpr int note_tag = 1;

class Session;

/// An area for each rank of a node; none where they do not share memory.
struct Areas {
  std::shared_ptr<Buffer> memory;
  int64_t bytes = 0;  ///< of one
};

class MpiTransport final : public Transport {
 public:
  /// Between the ranks of `comm`, which becomes its own. All run on one node where none are given.
  MpiTransport(Session& session, MPI_Comm comm, std::vector<int> nodes = {}, Areas areas = {});
  ~MpiTransport() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::vector<int>& nodes() const override { return nodes_; }
  int send(int peer, int tag, std::span<const std::byte> data) override;
  int receive(int peer, int tag, std::span<std::byte> data) override;
  bool done(int message) override;
  const std::vector<std::byte*>& shared() const override { return area_of_; }
  int64_t shared_bytes() const override { return areas_.bytes; }
  bool has_native() const override { return true; }
  int start_native(std::span<std::byte> data, DType type) override;
  void waiting(const std::string& what, double seconds) override;
  void alive() override;

 private:
  int keep(int code, MPI_Request request);
  Session& session_;
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  std::vector<int> nodes_;
  Areas areas_;
  std::vector<std::byte*> area_of_;
  std::vector<MPI_Request> requests_;
  std::vector<int> free_;
  int error_ = MPI_SUCCESS;
};

class Session final : public MpiSession {
 public:
  explicit Session(const MpiOptions& options);
  ~Session() override { stop_watching(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  std::unique_ptr<Collectives> world(CommunicationOptions options) override {
    return connect(duplicate(), true, std::move(options));
  }
  std::unique_ptr<Collectives> group(int color, CommunicationOptions options) override {
    MPI_Comm comm;
    {
      const std::lock_guard lock(mutex_);
      MPI_Comm_split(MPI_COMM_WORLD, color, rank_, &comm);
    }
    return connect(comm, false, std::move(options));
  }
  void library_all_reduce(std::span<float> data) override {
    const std::lock_guard lock(mutex_);
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    sign_of_life();
  }
  void set_busy(bool busy) override {
    busy_ = busy;
    sign_of_life();
  }
  double clock_offset() override;
  [[noreturn]] void abort(int code) override;
  void finish() override;

  std::mutex& mutex() { return mutex_; }
  const MpiOptions& options() const { return options_; }
  void sign_of_life() { alive_ = now(); }
  void waits_for(const std::string& what, double seconds);
  void waits_no_longer();
  /// Where an MPI call failed: because a rank is gone, which the watchdog is about to tell, or for a reason of its own.
  /// Throws Error(runtime) where the error can be no other rank's end, else Error(lost_rank).
  [[noreturn]] void failed(int code);

 private:
  MPI_Comm duplicate() {
    const std::lock_guard lock(mutex_);
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    return comm;
  }
  std::unique_ptr<Collectives> connect(MPI_Comm comm, bool everybody, CommunicationOptions options);
  /// The ranks of `comm` on this node, and the node of every rank.
  MPI_Comm ranks_here(MPI_Comm comm, std::vector<int>& nodes);
  /// Waits for a message of `notes_` that was started with `code`, as for any other: a rank that is lost meanwhile is
  /// named.
  void complete(int code, MPI_Request request, const std::string& what);
  void watch();
  /// All ranks count as heard at this time.
  void forgive(double turn);
  void stop_watching();
  void free_notes();
  std::unique_lock<std::mutex> lock_unless_blocked();
  bool read_notes();
  void check_process();
  void question_the_silent();
  double silence();
  bool all_wait() const;
  void send_note(int to, const Note& note);
  void say_goodbye();
  [[noreturn]] void give_up(int lost, const std::string& why);
  [[noreturn]] void end(const std::string& sentence);

  MpiOptions options_;
  bool owns_ = true;  ///< false where the caller had started MPI
  int rank_ = 0, size_ = 1;
  bool warned_ = false;  ///< of nodes whose ranks share no memory
  std::vector<std::string> hosts_;
  std::vector<int> pids_;  ///< of ranks whose processes can be seen from here, 0 elsewhere
  MPI_Comm notes_ = MPI_COMM_NULL;
  std::vector<int> sent_, read_;  ///< notes to and from each rank
  std::mutex mutex_;
  std::thread watchdog_;
  std::atomic<bool> stop_{false}, busy_{false}, waiting_{false};
  std::atomic<double> alive_{0};
  std::mutex reason_mutex_;
  std::string reason_;         ///< what this rank waits for
  double asked_ = 0;           ///< when the silent were asked first, 0: not yet
  std::vector<double> heard_;  ///< when a rank last answered that it is well
  std::vector<double> still_;  ///< since when the main thread of one that answers is stuck, 0: it is not
  std::vector<double> left_;   ///< when ranks said that they are through; 0: not yet
  std::vector<bool> waits_;    ///< ranks whose last answer was that they have waited for long
  std::atomic<bool> finishing_{false};
  int looked_at_ = 0;         ///< whose process was checked last
  double blocked_since_ = 0;  ///< when the watchdog first could not have the lock, 0: it could
};

Session::Session(const MpiOptions& options) : options_(options) {
  int provided = 0, running = 0;
  MPI_Initialized(&running);
  owns_ = !running;
  if (owns_)
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  else
    MPI_Query_thread(&provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  const Launch launch = find_launch();
  if (launch.tasks > 1 && size_ == 1) {
    const std::string text = "started as one of " + std::to_string(launch.tasks) + " tasks by " + launch.launcher +
                             " (" + launch.variable + "), but MPI sees a single one: this program is built for " +
                             library_version() + ", which is not the launcher's MPI";
    if (owns_) MPI_Finalize();
    fail_usage(text);
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    if (owns_) MPI_Finalize();
    fail_runtime("MPI does not allow calls from several threads (MPI_THREAD_SERIALIZED), got level " +
                 std::to_string(provided));
  }
  const Process me = this_process();
  std::vector<Process> peers(static_cast<size_t>(size_));
  MPI_Allgather(&me, sizeof me, MPI_BYTE, peers.data(), sizeof me, MPI_BYTE, MPI_COMM_WORLD);
  for (const Process& p : peers) {
    hosts_.emplace_back(p.host);
    pids_.push_back(see_each_other(p, me) ? p.pid : 0);
  }
  heard_.assign(static_cast<size_t>(size_), 0);
  still_.assign(static_cast<size_t>(size_), 0);
  left_.assign(static_cast<size_t>(size_), 0), waits_.assign(static_cast<size_t>(size_), false);
  sent_.assign(static_cast<size_t>(size_), 0), read_.assign(static_cast<size_t>(size_), 0);
  MPI_Comm_dup(MPI_COMM_WORLD, &notes_);
  // An error would else end all ranks before the watchdogs have named the one that is gone.
  MPI_Comm_set_errhandler(notes_, MPI_ERRORS_RETURN);
  sign_of_life();
  looked_at_ = rank_;
  // Whoever started an MPI that allows one call at a time calls it without taking mutex_.
  const bool may_call = owns_ || provided >= MPI_THREAD_MULTIPLE;
  if (size_ > 1 && may_call) watchdog_ = std::thread([this] { watch(); });
}

void Session::stop_watching() {
  stop_ = true;
  if (watchdog_.joinable()) watchdog_.join();
}

void Session::finish() {
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
  stop_watching();
  read_notes();
  if (owns_)
    MPI_Finalize();
  else
    free_notes();
}

/// MPI goes on. A note that nobody has read would reach whatever communicator gets the number of this one. All ranks
/// have come to the end: one that is lost from here on is the caller's MPI's to find.
void Session::free_notes() {
  const std::lock_guard lock(mutex_);
  std::vector<int> coming(read_.size());
  MPI_Alltoall(sent_.data(), 1, MPI_INT, coming.data(), 1, MPI_INT, notes_);
  for (int r = 0; r < size_; ++r)
    for (const auto i = static_cast<size_t>(r); read_[i] < coming[i]; ++read_[i]) {
      Note note;
      MPI_Recv(&note, sizeof note, MPI_BYTE, r, note_tag, notes_, MPI_STATUS_IGNORE);
    }
  MPI_Comm_free(&notes_);
}

void Session::complete(int code, MPI_Request request, const std::string& what) {
  const double start = now();
  for (int through = 0; !through;) {
    if (code == MPI_SUCCESS) {
      const std::lock_guard lock(mutex_);
      code = MPI_Test(&request, &through, MPI_STATUS_IGNORE);
    }
    if (code != MPI_SUCCESS) failed(code);
    if (const double waited = now() - start; !through && waited > 0.002) {
      waits_for(what, waited);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  waits_no_longer();
}

void Session::say_goodbye() {
  const std::lock_guard lock(mutex_);
  for (int r = 0; r < size_; ++r)
    if (r != rank_) send_note(r, {Word::leaving, rank_, 0, {}});
}

void Session::abort(int code) {
  say_goodbye();  // the others are ended by MPI; they need not say that this rank is gone
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  stop_watching();
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, code);
  _exit(code);
}

double Session::clock_offset() {
  // Cristian 1989: the reply of the fastest of some questions is half a round trip old.
  double offset = 0, best = 1e9;
  constexpr int rounds = 20, tag = 2;
  const auto message = [&](bool sends, int peer, double& value) {
    MPI_Request request = MPI_REQUEST_NULL;
    int code;
    {
      const std::lock_guard lock(mutex_);
      code = sends ? MPI_Isend(&value, 1, MPI_DOUBLE, peer, tag, notes_, &request)
                   : MPI_Irecv(&value, 1, MPI_DOUBLE, peer, tag, notes_, &request);
    }
    complete(code, request, "the clock of rank " + std::to_string(peer));
  };
  for (int r = 1; r < size_; ++r)
    for (int i = 0; i < rounds && (rank_ == 0 || rank_ == r); ++i) {
      double theirs = 0;
      if (rank_ == 0) {
        message(false, r, theirs);
        theirs = now();
        message(true, r, theirs);
      } else {
        double before = now();
        message(true, 0, before);
        message(false, 0, theirs);
        const double after = now();
        if (after - before < best) best = after - before, offset = (before + after) / 2 - theirs;
      }
    }
  return offset;
}

void Session::waits_for(const std::string& what, double seconds) {
  sign_of_life();
  const std::lock_guard lock(reason_mutex_);
  reason_ = what;
  waiting_ = true;
  if (asked_ == 0 && seconds > options_.timeout / 4) asked_ = now();
}

void Session::failed(int code) {
  std::this_thread::sleep_for(std::chrono::seconds(2));
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  // Libraries tell of a process that is gone by many classes, of their own, too; these are not among them.
  constexpr int mistakes[] = {MPI_ERR_NO_MEM, MPI_ERR_TRUNCATE, MPI_ERR_BUFFER, MPI_ERR_COUNT,   MPI_ERR_TYPE,
                              MPI_ERR_TAG,    MPI_ERR_COMM,     MPI_ERR_RANK,   MPI_ERR_REQUEST, MPI_ERR_OP};
  int kind = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &kind);
  const bool mistake = std::find(std::begin(mistakes), std::end(mistakes), kind) != std::end(mistakes);
  throw Error(mistake ? ErrorKind::runtime : ErrorKind::lost_rank,
              "MPI: " + std::string(text, static_cast<size_t>(length)));
}

void Session::waits_no_longer() {
  sign_of_life();
  const std::lock_guard lock(reason_mutex_);
  waiting_ = false;
  asked_ = 0;
}

void Session::watch() {
  double last_question = 0, last_turn = now();
  while (!stop_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    // A batch system may have suspended the job: nobody was silent while nobody could speak.
    const double turn = now();
    if (turn - last_turn > options_.timeout / 2) forgive(turn);
    last_turn = turn;
    check_process();
    if (!read_notes()) continue;
    if (now() - last_question > options_.timeout / 10) {
      last_question = now();
      question_the_silent();
    }
  }
}

void Session::forgive(double turn) {
  sign_of_life();
  std::fill(heard_.begin(), heard_.end(), turn);
  std::fill(still_.begin(), still_.end(), 0.0);
  std::fill(waits_.begin(), waits_.end(), false);
  for (double& when : left_)
    if (when > 0) when = turn;
}

/// The lock, or none where the main thread keeps it inside a call that waits for others (setting up a communicator):
/// the watchdog then still sees the processes of this host.
std::unique_lock<std::mutex> Session::lock_unless_blocked() {
  constexpr double patience = 0.5;  // seconds that are waited once, not at every turn
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock && blocked_since_ == 0) blocked_since_ = now();
  while (!lock && now() - blocked_since_ < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    lock.try_lock();
  }
  if (lock) blocked_since_ = 0;
  return lock;
}

/// One process per turn: ranks begin at different ones, and whoever finds one gone tells all. All of them where this
/// rank can tell nobody.
void Session::check_process() {
  for (int tried = 0; tried < size_; ++tried) {
    looked_at_ = (looked_at_ + 1) % size_;
    const auto i = static_cast<size_t>(looked_at_);
    if (looked_at_ == rank_ || pids_[i] == 0 || left_[i] > 0) continue;
    if (!ended(pids_[i])) {
      if (blocked_since_ == 0) return;
      continue;
    }
    // It may have said goodbye. Where that cannot be read, MPI ends this rank too if the other one called for it.
    if (!read_notes()) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      read_notes();
    }
    if (left_[i] == 0) give_up(looked_at_, "has ended");
  }
}

/// False where MPI could not be asked.
bool Session::read_notes() {
  const std::unique_lock lock = lock_unless_blocked();
  if (!lock) return false;
  for (int there = 1; there;) {
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, note_tag, notes_, &there, &status) != MPI_SUCCESS || !there) break;
    Note note;
    MPI_Recv(&note, sizeof note, MPI_BYTE, status.MPI_SOURCE, note_tag, notes_, MPI_STATUS_IGNORE);
    const auto from = static_cast<size_t>(status.MPI_SOURCE);
    ++read_[from];
    if (note.word == Word::ask) {
      send_note(status.MPI_SOURCE, {Word::answer, rank_, silence(), {}});
    } else if (note.word == Word::answer) {
      // Whoever answers lives; a main thread that has stood still for very long does not count as living.
      waits_[from] = note.silent == waiting_long;
      const bool well = note.silent < options_.patience * options_.timeout;
      if (well) heard_[from] = now();
      still_[from] = well ? 0 : now() - note.silent;
    } else if (note.word == Word::leaving) {
      left_[from] = now();
    } else {
      end(note.text);
    }
  }
  return true;
}

void Session::question_the_silent() {
  double asked;
  {
    const std::lock_guard lock(reason_mutex_);
    asked = asked_;
  }
  if (asked == 0) return;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<size_t>(r);
    if (r == rank_) continue;
    if (left_[i] > 0) {
      // It was through with what this rank waits for, unless all that are left wait, too: for ever.
      if (!finishing_ && now() - std::max(asked, left_[i]) > options_.timeout && all_wait())
        give_up(r, "has ended its run");
      continue;
    }
    const double silent = now() - std::max(asked, heard_[i]);
    if (silent > options_.timeout * 3 / 4) {
      const auto seconds = [](double s) { return std::to_string(int(s)) + " s"; };
      give_up(r, still_[i] > 0 ? "answers, but its main thread has stood still for " + seconds(now() - still_[i])
                               : "has not answered for " + seconds(silent + options_.timeout / 4));
    }
    const std::unique_lock lock = lock_unless_blocked();
    if (!lock) return;
    send_note(r, {Word::ask, rank_, 0, {}});
  }
}

/// What this rank says of itself: seconds without a sign of life, or why there is none.
double Session::silence() {
  constexpr double excused = -1;
  if (busy_) return excused;
  if (!waiting_) return now() - alive_;
  const std::lock_guard lock(reason_mutex_);
  return asked_ > 0 ? waiting_long : excused;
}

/// Whether all others have left or said last that they have waited for long.
bool Session::all_wait() const {
  for (int r = 0; r < size_; ++r)
    if (const auto i = static_cast<size_t>(r); r != rank_ && left_[i] == 0 && !waits_[i]) return false;
  return true;
}

/// Notes fit every library's eager messages: a send that nobody reads does not block.
void Session::send_note(int to, const Note& note) {
  MPI_Request request;
  auto* copy = new Note(note);  // lives until the process ends where the other side never reads it
  if (MPI_Isend(copy, sizeof note, MPI_BYTE, to, note_tag, notes_, &request) != MPI_SUCCESS) return;
  ++sent_[static_cast<size_t>(to)];
  int through = 0;
  MPI_Test(&request, &through, MPI_STATUS_IGNORE);
  if (through)
    delete copy;
  else
    MPI_Request_free(&request);
}

void Session::give_up(int lost, const std::string& why) {
  const auto i = static_cast<size_t>(lost);
  std::string sentence = "rank " + std::to_string(lost) + " on " + hosts_[i];
  if (pids_[i]) sentence += " (process " + std::to_string(pids_[i]) + ")";
  sentence += " " + why;
  Note note{Word::lost, lost, 0, {}};
  std::snprintf(note.text, sizeof note.text, "%s", sentence.c_str());
  {
    const std::unique_lock lock = lock_unless_blocked();
    for (int r = 0; lock && r < size_; ++r)
      if (r != rank_ && r != lost) send_note(r, note);
  }
  end(sentence);
}

void Session::end(const std::string& sentence) {
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

MPI_Comm Session::ranks_here(MPI_Comm comm, std::vector<int>& nodes) {
  const std::lock_guard lock(mutex_);
  int rank = 0, size = 1, lowest = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Comm here;
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &here);
  if (options_.ranks_per_node > 0) {
    int place = 0;
    MPI_Comm_rank(here, &place);
    MPI_Comm part;
    MPI_Comm_split(here, place / options_.ranks_per_node, place, &part);
    MPI_Comm_free(&here);
    here = part;
  }
  // A node's number is the order of its lowest rank.
  lowest = rank;
  MPI_Bcast(&lowest, 1, MPI_INT, 0, here);
  nodes.resize(static_cast<size_t>(size));
  MPI_Allgather(&lowest, 1, MPI_INT, nodes.data(), 1, MPI_INT, comm);
  std::vector<int> order(nodes);
  std::sort(order.begin(), order.end());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  for (int& n : nodes) n = static_cast<int>(std::lower_bound(order.begin(), order.end(), n) - order.begin());
  return here;
}

/// Not a window of MPI's: libraries put those into /dev/shm, and end the program where that is full.
std::unique_ptr<Collectives> Session::connect(MPI_Comm comm, bool everybody, CommunicationOptions options) {
  std::vector<int> nodes;
  Collectives here(std::make_shared<MpiTransport>(*this, ranks_here(comm, nodes)), {});
  // They add up what lies in caches. Groups add up statistics of batch norms, which are small.
  Areas areas;
  areas.bytes = int64_t{options_.shared_mib} << 20;
  if (options_.shared_mib < 0) areas.bytes = everybody ? int64_t{std::clamp(40 / here.size(), 3, 16)} << 20 : 256 << 10;
  const bool wanted = here.size() > 1 && areas.bytes > 0;
  areas.bytes = round_up(std::max(areas.bytes, SharedReduction::least_bytes(here.size())), page_bytes);
  for (const SharedPlace place : {SharedPlace::process, SharedPlace::folder})
    if (wanted && !areas.memory) areas.memory = share_buffer(here, here.size() * areas.bytes, place);
  // All choose the same algorithms.
  int without = wanted && !areas.memory && here.rank() == 0;
  {
    const std::lock_guard lock(mutex_);
    MPI_Allreduce(MPI_IN_PLACE, &without, 1, MPI_INT, MPI_SUM, comm);
  }
  if (without > 0) areas.memory = nullptr;
  auto transport = std::make_shared<MpiTransport>(*this, comm, std::move(nodes), std::move(areas));
  if (without > 0 && !std::exchange(warned_, true) && transport->rank() == 0 && options_.warn)
    options_.warn("ranks of " + std::to_string(without) +
                  " nodes share no memory (none is left, or containers that do "
                  "not see each other's processes have no /dev/shm in common): sums go by messages alone");
  return std::make_unique<Collectives>(std::move(transport), std::move(options));
}

MpiTransport::MpiTransport(Session& session, MPI_Comm comm, std::vector<int> nodes, Areas areas)
    : session_(session), comm_(comm), nodes_(std::move(nodes)), areas_(std::move(areas)) {
  const std::lock_guard lock(session_.mutex());
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  nodes_.resize(static_cast<size_t>(size_));
  if (!areas_.memory) return;
  const auto here = std::count(nodes_.begin(), nodes_.end(), nodes_[static_cast<size_t>(rank_)]);
  for (int64_t i = 0; i < here; ++i) area_of_.push_back(areas_.memory->data() + i * areas_.bytes);
}

MpiTransport::~MpiTransport() {
  int over = 0;
  MPI_Finalized(&over);
  if (over) return;
  const std::lock_guard lock(session_.mutex());
  MPI_Comm_free(&comm_);
}

int MpiTransport::keep(int code, MPI_Request request) {
  if (code != MPI_SUCCESS) error_ = code;
  if (free_.empty()) {
    requests_.push_back(request);
    return static_cast<int>(requests_.size()) - 1;
  }
  const int place = free_.back();
  free_.pop_back();
  requests_[static_cast<size_t>(place)] = request;
  return place;
}

int MpiTransport::send(int peer, int tag, std::span<const std::byte> data) {
  const std::lock_guard lock(session_.mutex());
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, peer, tag, comm_, &request);
  return keep(code, request);
}

int MpiTransport::receive(int peer, int tag, std::span<std::byte> data) {
  const std::lock_guard lock(session_.mutex());
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, peer, tag, comm_, &request);
  return keep(code, request);
}

int MpiTransport::start_native(std::span<std::byte> data, DType type) {
  const std::lock_guard lock(session_.mutex());
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      MPI_Iallreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size() / static_cast<size_t>(size_of(type))),
                     type == DType::f64 ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, comm_, &request);
  return keep(code, request);
}

bool MpiTransport::done(int message) {
  int through = 0;
  {
    const std::lock_guard lock(session_.mutex());
    if (const int code = MPI_Test(&requests_[static_cast<size_t>(message)], &through, MPI_STATUS_IGNORE);
        code != MPI_SUCCESS)
      error_ = code;
    if (through) free_.push_back(message);
  }
  if (error_ != MPI_SUCCESS) session_.failed(error_);
  return through != 0;
}

void MpiTransport::waiting(const std::string& what, double seconds) {
  session_.waits_for(what, seconds);
}
void MpiTransport::alive() {
  session_.waits_no_longer();
}

}  // namespace

std::string mpi_version() {
  return library_version();
}

bool mpi_running() {
  int running = 0;
  MPI_Initialized(&running);
  return running != 0 && !mpi_over();
}

bool mpi_over() {
  int over = 0;
  MPI_Finalized(&over);
  return over != 0;
}

std::unique_ptr<MpiSession> start_mpi(const MpiOptions& options) {
  return std::make_unique<Session>(options);
}

}  // namespace convoy
