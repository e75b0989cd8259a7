// Ranks as threads of a test.
#pragma once

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "dist/local.h"

namespace convoy {

/// Runs body(rank, communicator) on a thread per rank and rethrows the first failure.
template <class Body>
void on_ranks(std::vector<std::unique_ptr<Collectives>>& ranks, Body body) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        body(static_cast<int>(r), *ranks[r]);
      } catch (...) {
        failures[r] = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace convoy
