// The communicator: walks schedules of all-reduces over a transport. Nothing waits but `wait`; several all-reduces may
// be under way (at most 4096), the shared-memory ones one after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "core/communicator.h"
#include "dist/choice.h"
#include "dist/schedule.h"
#include "dist/shared_reduction.h"
#include "dist/transport.h"

namespace convoy {

/// One all-reduce from start to finish, for the Chrome trace. Microseconds of the steady clock.
struct MessageEvent {
  std::string name;
  int64_t id = 0, bytes = 0;
  double start_us = 0, duration_us = 0;
};

class Collectives final : public Communicator {
 public:
  Collectives(std::shared_ptr<Transport> transport, CommunicationOptions options);
  ~Collectives() override;

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  void start(int64_t id, const AllReduce& what) override;
  void wait(int64_t id) override;
  void progress() override;
  void wait_until(const std::function<bool()>& holds, const std::string& name) override;
  void broadcast(std::span<std::byte> data, int root) override;
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole) override;
  void barrier() override;
  CommunicationTimes times() const override;

  /// When this rank first came to a `wait`, or to a blocking sum, since the last call of this, in seconds of the steady
  /// clock; 0: to none.
  double take_first_wait() { return std::exchange(first_wait_, 0.0); }
  /// Starts collecting one event per all-reduce.
  void start_trace() { tracing_ = true; }
  const std::vector<MessageEvent>& trace() const { return trace_; }

  const std::vector<int>& nodes() const { return transport_->nodes(); }
  /// Whether sums of the ranks of a node go through memory; all ranks alike, but for those that are alone on theirs.
  bool shares_memory() const { return shared_ != nullptr; }
  /// The algorithm for an all-reduce of so many bytes, and why.
  AlgorithmChoice choice(int64_t bytes, DType type, DType wire) const;
  /// From now on; takes effect with the next start. Every rank must change at the same point.
  void set_options(CommunicationOptions options);
  /// Plans an all-reduce of this size, types and scale, which its first start would do else. Throws Error(usage) where
  /// the wished algorithm refuses it.
  void prepare(const AllReduce& what);
  /// A thread that does nothing but drive messages on while this rank computes. Costs a core.
  void start_progress_thread();
  /// All-reduces of what lies in the window go without copies. Every rank of the node has one, in rank order.
  void set_window(const SharedWindow& window);
  /// Broadcast from rank `root` to the listed ranks alone, which all call it with the same list.
  void broadcast_among(std::span<const int> ranks, int root, std::span<std::byte> data);

 private:
  using Clock = std::chrono::steady_clock;
  /// A part of an operation: a schedule, a turn of the shared memory, or the library's own all-reduce.
  struct Stage {
    enum class Kind : uint8_t { schedule, shared, native } kind = Kind::schedule;
    Schedule schedule;
    SharedReduction::Part part = SharedReduction::Part::all_reduce;
    double scale = 1;
  };
  using Stages = std::vector<Stage>;
  struct Operation {
    AllReduce what;
    std::shared_ptr<const Stages> stages;
    bool active = false;
    int tag = 0;
    size_t stage = 0, round = 0;
    bool posted = false;
    std::vector<int> messages;
    std::vector<std::byte> scratch, outgoing, incoming;
    int64_t serial = -1;  ///< place in the queue for the shared memory, -1: none
    Clock::time_point started;
  };
  using PlanKey = std::tuple<int64_t, DType, DType, double>;  ///< bytes, type, type on the wire, scale

  /// So many pieces of shared memory may be written before they are collected.
  static constexpr int64_t everything = INT64_MAX;

  std::shared_ptr<const Stages> plan_for(const AllReduce& what);
  void begin(Operation& op, std::shared_ptr<const Stages> stages, const AllReduce& what, int tag);
  /// True when finished.
  bool advance(Operation& op, int64_t ahead);
  bool advance_schedule(Operation& op, const Stage& stage);
  void post(Operation& op, const Round& round);
  void complete(Operation& op, const Round& round);
  void round_to_wire(Operation& op, Piece piece);
  void advance_all(int64_t ahead = everything);
  /// One schedule from start to end, of values that nothing scales.
  void run(Schedule schedule, const AllReduce& what);
  void wait_for(Operation& op);
  /// Asks `finished(spins)` again and again, and tells the transport of what it waits for.
  void spin(const std::function<bool(int64_t spins)>& finished, const std::function<std::string()>& what);
  /// "bucket3, for ranks 1 2": what is waited for and for whom.
  std::string reason(const Operation& op) const;
  ReductionProblem problem(int64_t bytes, bool narrowed) const;

  std::shared_ptr<Transport> transport_;
  CommunicationOptions options_;
  std::vector<int> all_, node_peers_, column_;  ///< ranks: everybody, those of this node, those with my place elsewhere
  int node_place_ = 0, column_place_ = 0;
  std::unique_ptr<SharedReduction> shared_;
  bool shared_busy_ = false;
  int64_t next_serial_ = 0, serving_ = 0;
  unsigned next_tag_ = 0;
  std::map<PlanKey, std::shared_ptr<const Stages>> plans_;
  std::map<int64_t, Operation> operations_;
  CommunicationTimes times_;
  double first_wait_ = 0;  ///< of the thread that waits
  bool tracing_ = false;
  std::vector<MessageEvent> trace_;
  mutable std::mutex mutex_;
  std::thread progress_;
  std::exception_ptr failure_;  ///< of the progress thread
  std::atomic<bool> stop_{false};
};

}  // namespace convoy
