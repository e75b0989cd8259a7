// Ranks that MPI connects. A session begins and ends MPI, watches over the other ranks and makes communicators.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/collectives.h"

namespace convoy {

/// What the environment says about the launcher.
struct Launch {
  std::string launcher;  ///< "Open MPI's mpirun", "Slurm's srun", ... (launch.cpp); empty: none
  std::string variable;  ///< that says so
  int tasks = 0;         ///< 0: it does not say how many
};
Launch find_launch();

struct MpiOptions {
  double timeout = 30;  ///< seconds of silence after which a rank counts as lost
  /// Timeouts without a sign of its main thread (reading, one long kernel) after which a rank that answers is lost,
  /// too.
  double patience = 20;
  /// Shared memory per rank and communicator; -1: 40 MiB divided by the ranks of a node, 3 to 16; groups 256 KiB.
  int shared_mib = -1;
  int ranks_per_node = 0;  ///< > 0: pretend that nodes hold so many ranks (for tests of hierarchical algorithms)
  /// Called when a rank is lost, with the sentence that names it, mostly in the watchdog's thread, and maybe ahead of
  /// the end of start_mpi: it may not call the session. The process ends with exit code 76 afterwards.
  std::function<void(const std::string&)> lost;
  /// Called on one rank of a communicator, once per process, with what takes more time than it should: ranks of a node
  /// that share no memory.
  std::function<void(const std::string&)> warn;
};

/// The library's first line of its own version text; "none" in a build without MPI.
std::string mpi_version();
/// Whether the process has started MPI already, by itself or by another library.
bool mpi_running();
/// Whether it ran, and starts no more.
bool mpi_over();

/// One per process at a time, and only once where it starts MPI itself, which cannot be started again. It outlives the
/// communicators that it makes.
class MpiSession {
 public:
  virtual ~MpiSession() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::vector<std::string>& hosts() const = 0;  ///< of every rank
  /// A communicator over all ranks; over those with my color.
  virtual std::unique_ptr<Collectives> world(CommunicationOptions options) = 0;
  virtual std::unique_ptr<Collectives> group(int color, CommunicationOptions options) = 0;
  /// MPI_Allreduce itself, the sum in place, for comparisons.
  virtual void library_all_reduce(std::span<float> data) = 0;
  /// While this rank does something long that talks to nobody (checkpoint, validation), silence is no sign of a loss.
  virtual void set_busy(bool busy) = 0;
  /// Seconds by which this rank's steady clock is ahead of rank 0's. Every rank calls it.
  virtual double clock_offset() = 0;
  /// Ends every rank with this exit code, after an error on this one.
  [[noreturn]] virtual void abort(int code) = 0;
  /// Ends MPI in agreement: every rank calls it before it exits.
  virtual void finish() = 0;
};

/// Starts MPI. Throws Error(usage) where the environment says that there are several tasks and MPI sees one.
std::unique_ptr<MpiSession> start_mpi(const MpiOptions& options);

}  // namespace convoy
