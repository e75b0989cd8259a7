#include <cstdlib>
#include <string>

#include "dist/mpi.h"

namespace convoy {

Launch find_launch() {
  struct Sign {
    const char *variable, *launcher;
    bool counts;
  };
  constexpr Sign signs[] = {{"OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun", true},
                            {"PMI_SIZE", "MPICH's mpiexec (PMI)", true},
                            {"MV2_COMM_WORLD_SIZE", "MVAPICH's mpirun", true},
                            {"PALS_SIZE", "PALS", true},
                            {"FLUX_JOB_SIZE", "Flux", true},
                            {"SLURM_STEP_NUM_TASKS", "Slurm's srun", true},
                            {"PMIX_RANK", "a PMIx launcher", false},
                            {"ALPS_APP_PE", "ALPS' aprun", false}};
  for (const Sign& sign : signs)
    if (const char* value = std::getenv(sign.variable))
      return {sign.launcher, std::string(sign.variable) + "=" + value, sign.counts ? std::atoi(value) : 0};
  return {};
}

}  // namespace convoy
