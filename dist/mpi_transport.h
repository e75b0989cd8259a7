// Messages between the ranks of an MPI communicator.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "core/tensor.h"
#include "dist/mpi_watchdog.h"
#include "dist/transport.h"

namespace convoy {

/// An area for each rank of a node; none where they do not share memory.
struct Areas {
  std::shared_ptr<Buffer> memory;
  int64_t bytes = 0;  ///< of one
};

class MpiTransport final : public Transport {
 public:
  /// Between the ranks of `comm`, which becomes its own. All run on one node where none are given.
  MpiTransport(Watchdog& watchdog, MPI_Comm comm, std::vector<int> nodes = {}, Areas areas = {});
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
  void waiting(const std::string& what, double seconds) override { watchdog_.waits_for(what, seconds); }
  void alive() override { watchdog_.waits_no_longer(); }

 private:
  int keep(int code, MPI_Request request);
  Watchdog& watchdog_;
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  std::vector<int> nodes_;
  Areas areas_;
  std::vector<std::byte*> area_of_;
  std::vector<MPI_Request> requests_;
  std::vector<int> free_;
  int error_ = MPI_SUCCESS;
};

}  // namespace convoy
