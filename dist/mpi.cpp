// MPI-3.1 calls only. All of them happen under one lock, the watchdog's (MPI_THREAD_SERIALIZED): the caller's, a
// progress thread's and the watchdog's own; but for MPI_Finalize and MPI_Abort, behind which there are none.
#include "dist/mpi.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/error.h"
#include "core/round_up.h"
#include "dist/mpi_transport.h"
#include "dist/mpi_watchdog.h"
#include "dist/process.h"
#include "dist/shared_buffer.h"

namespace convoy {
namespace {

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

class Session final : public MpiSession {
 public:
  explicit Session(const MpiOptions& options);
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  std::unique_ptr<Collectives> world(CommunicationOptions options) override {
    return connect(duplicate(), true, std::move(options));
  }
  std::unique_ptr<Collectives> group(int color, CommunicationOptions options) override {
    MPI_Comm comm;
    {
      const std::lock_guard lock(watchdog_->mutex());
      MPI_Comm_split(MPI_COMM_WORLD, color, rank_, &comm);
    }
    return connect(comm, false, std::move(options));
  }
  void library_all_reduce(std::span<float> data) override {
    const std::lock_guard lock(watchdog_->mutex());
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    watchdog_->sign_of_life();
  }
  void set_busy(bool busy) override { watchdog_->set_busy(busy); }
  double clock_offset() override;
  [[noreturn]] void abort(int code) override;
  void finish() override;

 private:
  MPI_Comm duplicate() {
    const std::lock_guard lock(watchdog_->mutex());
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    return comm;
  }
  std::unique_ptr<Collectives> connect(MPI_Comm comm, bool everybody, CommunicationOptions options);
  /// The ranks of `comm` on this node, and the node of every rank.
  MPI_Comm ranks_here(MPI_Comm comm, std::vector<int>& nodes);

  MpiOptions options_;
  bool owns_ = true;  ///< false where the caller had started MPI
  int rank_ = 0, size_ = 1;
  bool warned_ = false;  ///< of nodes whose ranks share no memory
  std::vector<std::string> hosts_;
  std::unique_ptr<Watchdog> watchdog_;
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
  std::vector<WatchedRank> ranks;
  for (const Process& p : peers) {
    hosts_.emplace_back(p.host);
    ranks.push_back({.host = p.host, .pid = see_each_other(p, me) ? p.pid : 0});
  }
  watchdog_ = std::make_unique<Watchdog>(options, std::move(ranks));
  // Whoever started an MPI that allows one call at a time calls it without taking the lock.
  const bool may_call = owns_ || provided >= MPI_THREAD_MULTIPLE;
  if (size_ > 1 && may_call) watchdog_->start();
}

void Session::finish() {
  watchdog_->finish();
  if (owns_)
    MPI_Finalize();
  else
    watchdog_->free_notes();
}

void Session::abort(int code) {
  watchdog_->say_goodbye();  // the others are ended by MPI
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  watchdog_->stop();
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
      const std::lock_guard lock(watchdog_->mutex());
      code = sends ? MPI_Isend(&value, 1, MPI_DOUBLE, peer, tag, watchdog_->notes(), &request)
                   : MPI_Irecv(&value, 1, MPI_DOUBLE, peer, tag, watchdog_->notes(), &request);
    }
    watchdog_->complete(code, request, "the clock of rank " + std::to_string(peer));
  };
  for (int r = 1; r < size_; ++r)
    for (int i = 0; i < rounds && (rank_ == 0 || rank_ == r); ++i) {
      double theirs = 0;
      if (rank_ == 0) {
        message(false, r, theirs);
        theirs = seconds_now();
        message(true, r, theirs);
      } else {
        double before = seconds_now();
        message(true, 0, before);
        message(false, 0, theirs);
        const double after = seconds_now();
        if (after - before < best) best = after - before, offset = (before + after) / 2 - theirs;
      }
    }
  return offset;
}

MPI_Comm Session::ranks_here(MPI_Comm comm, std::vector<int>& nodes) {
  const std::lock_guard lock(watchdog_->mutex());
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
  Collectives here(std::make_shared<MpiTransport>(*watchdog_, ranks_here(comm, nodes)), {});
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
    const std::lock_guard lock(watchdog_->mutex());
    MPI_Allreduce(MPI_IN_PLACE, &without, 1, MPI_INT, MPI_SUM, comm);
  }
  if (without > 0) areas.memory = nullptr;
  auto transport = std::make_shared<MpiTransport>(*watchdog_, comm, std::move(nodes), std::move(areas));
  if (without > 0 && !std::exchange(warned_, true) && transport->rank() == 0 && options_.warn)
    options_.warn("ranks of " + std::to_string(without) +
                  " nodes share no memory (none is left, or containers that do "
                  "not see each other's processes have no /dev/shm in common): sums go by messages alone");
  return std::make_unique<Collectives>(std::move(transport), std::move(options));
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
