// The ranks of a run: started by an MPI launcher or alone.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "apps/common/options.h"
#include "core/passes/average.h"
#include "dist/mpi.h"
#include "models/program.h"

namespace convoy::apps {

class Ranks {
 public:
  /// Starts MPI where a launcher's environment says so, else this is the only rank.
  explicit Ranks(const OptionTable& options);
  /// Makes the communicator of all ranks, who must have been given the same settings. Ranks above 0 lose their standard
  /// output.
  void connect(const OptionTable& options);
  /// Makes the other communicators, when settings are complete; every rank gets its share of the node's cores where
  /// nothing else says how many threads to use.
  void divide(const OptionTable& options);
  ~Ranks();

  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  bool root() const { return rank() == 0; }
  int nodes() const;
  /// The node of this rank.
  int node() const { return world_->nodes()[static_cast<size_t>(rank())]; }
  /// How many ranks this rank's node has, and how many of them come ahead of this one.
  int on_node() const;
  int place_on_node() const;
  Collectives& world() { return *world_; }
  /// The communicator of all ranks, null where this rank is alone.
  Communicator* others() { return size() > 1 ? world_.get() : nullptr; }
  /// Communicators by AllReduceAttrs::group; empty where this rank is alone.
  std::vector<Communicator*> groups();
  /// The ranks that hold weights once: those of a node whose cores lie in one NUMA domain. Null where this rank shares
  /// with nobody.
  Communicator* team() { return team_.get(); }
  int team_size() const { return team_ ? team_->size() : 1; }
  int team_place() const { return team_ ? team_->rank() : 0; }
  /// Returns when all of the team have called it.
  void meet_team();
  /// All-reduces of buckets in this memory go without copies where the team is the whole node; an empty window ends it.
  void set_window(const SharedWindow& window);
  /// Tells the others of this rank's device. Collective.
  void show_device(const Device& device);
  /// How many devices the ranks of this node have; 0 before show_device.
  int devices_on_node() const { return devices_on_node_; }
  /// Lets gradients go from device to device where all ranks are on one node, the devices can, no algorithm was asked
  /// for and --no-peer-access does not forbid it. Says which way they go, and why if not that one.
  std::string meet_devices(Executor& step);
  /// What a program of these plans needs to share; null for nothing. Throws Error(usage) where members of a team chose
  /// different kernels, Error(runtime) where there is not so much memory.
  std::shared_ptr<Buffer> share(const ProgramPlans& plans);
  /// Of the gradients, of the batch-norm statistics, and of waiting for the team.
  CommunicationTimes times() const;
  /// From now on every all-reduce of gradients and of batch-norm statistics is noted for `messages`.
  void start_trace();
  std::vector<MessageEvent> messages() const;
  /// How gradients are averaged; measures latency and bandwidth where the settings leave the bucket size open.
  AveragingOptions averaging(const OptionTable& options, DType compute);
  /// Ranks, nodes, threads, algorithm, as lines; warns where the ranks of a node use more threads than it has cores.
  std::string report(int threads, const AveragingOptions& averaging);

  /// A number that every rank gives: as it is where all give the same one, else of all in rank order.
  nlohmann::json of_all(int number);
  /// Throws Error(usage) on the ranks whose values differ from rank 0's, naming the first key.
  void agree(const nlohmann::json& values);
  /// Rank 0's text on every rank.
  std::string broadcast_text(const std::string& text);
  /// Rank 0's values of these states on every rank, and on their devices.
  void broadcast_states(Program& program, std::span<const std::string> states);
  /// On rank 0 the texts of all ranks in rank order, elsewhere nothing.
  std::vector<std::string> collect_text(const std::string& text);
  double clock_offset() { return session_ ? session_->clock_offset() : 0; }
  /// This rank is about to do something long that talks to nobody, or is back from it.
  void set_busy(bool busy) {
    if (session_) session_->set_busy(busy);
  }
  MpiSession* session() { return session_.get(); }

 private:
  void gather_cores();
  void share_cores(const OptionTable& options);
  void find_team();
  std::unique_ptr<MpiSession> session_;
  std::unique_ptr<Collectives> world_, batch_norm_, team_;
  std::vector<std::vector<int>> cores_;  ///< of every rank: those that it may run on
  bool divides_cores_ = false;           ///< nobody chose the number of threads
  double latency_ = 0, seconds_per_byte_ = 0;
  bool peer_access_ = false, peer_access_asked_ = false;
  std::string algorithm_flag_;  ///< that asked for an algorithm
  int devices_on_node_ = 0;
};

/// A file by which job scripts know that a rank was lost: a launcher may return the code of that rank, not the 76 of
/// the others. Empty for a run without an output folder.
std::string lost_mark(const OptionTable& options);

/// Settings of the programs that run on several ranks.
std::vector<Option> rank_options();
CommunicationOptions communication_options(const OptionTable& options);

/// Runs `body` on every rank, behind `complete`, which may still change settings. An exception on one of them is told
/// with the rank's number and ends all with its exit code.
int run_ranks(const char* name, const OptionTable& options, const std::function<void(Ranks&)>& complete,
              const std::function<int(Ranks&)>& body);
/// For programs that know nothing of other ranks: throws Error(usage) where a launcher has started several of them,
/// which would all do the same work over each other's files.
void expect_single_task();

}  // namespace convoy::apps
