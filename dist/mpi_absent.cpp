// This build has no MPI.
#include "core/error.h"
#include "dist/mpi.h"

namespace convoy {

std::string mpi_version() {
  return "none";
}
bool mpi_running() {
  return false;
}
bool mpi_over() {
  return false;
}
std::unique_ptr<MpiSession> start_mpi(const MpiOptions&) {
  const Launch launch = find_launch();
  fail_usage("started by " + launch.launcher + " (" + launch.variable +
             "), but this build has no MPI: configure with -DWITH_MPI=ON");
}

}  // namespace convoy
