// What collective operations stand on: messages between two ranks, and memory that ranks of one node share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace convoy {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The node that each rank runs on.
  virtual const std::vector<int>& nodes() const = 0;

  /// Messages between a pair of ranks with equal tags arrive in order. Buffers stay untouched until `done`.
  virtual int send(int peer, int tag, std::span<const std::byte> data) = 0;
  virtual int receive(int peer, int tag, std::span<std::byte> data) = 0;
  /// Whether a message is through; its number is free again then.
  virtual bool done(int message) = 0;

  /// Areas of the ranks of this node, in rank order, each `shared_bytes` long and zero at the start; empty where there
  /// are none.
  virtual const std::vector<std::byte*>& shared() const = 0;
  virtual int64_t shared_bytes() const = 0;

  /// The library's own all-reduce; start returns a message number.
  virtual bool has_native() const { return false; }
  virtual int start_native(std::span<std::byte>, DType) { return -1; }

  /// Called now and then while a caller waits, with what for and for how long; ends the wait where a rank is lost.
  virtual void waiting(const std::string& what, double seconds) = 0;
  /// Called while a caller is at work, or at work again.
  virtual void alive() = 0;
};

}  // namespace convoy
