// What ranks can say to each other. Self is one rank; Thread is several ranks inside one process; Mpi lives in dist/.
#pragma once

#include <cstddef>
#include <span>

namespace convoy {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Element-wise sum over all ranks, in rank order, so that every rank gets the same bits on every run.
  virtual void all_reduce_sum(std::span<float> data) = 0;
  virtual void all_reduce_sum(std::span<double> data) = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  virtual void barrier() = 0;
};

}  // namespace convoy
