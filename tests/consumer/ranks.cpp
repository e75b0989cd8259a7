// A program outside the tree that runs as ranks of an MPI launcher, or alone.
#include <cstdio>

#include "dist/local.h"
#include "dist/mpi.h"

int main() {
  std::unique_ptr<convoy::MpiSession> session;  // outlives its communicators
  // Not every launcher says how many tasks it has started; one of a single task may have no MPI to offer.
  const convoy::Launch launch = convoy::find_launch();
  if (!launch.launcher.empty() && launch.tasks != 1) session = convoy::start_mpi({});
  const auto ranks = session ? session->world({}) : convoy::make_self_communicator();
  float one = 1;
  ranks->all_reduce_sum(std::span(&one, 1));
  std::printf("%g ranks, %s\n", double(one), convoy::mpi_version().c_str());
  if (session) session->finish();
  return one == float(ranks->size()) ? 0 : 1;
}
