#!/usr/bin/env bash
# CosmoFlow on a Slurm cluster:   sbatch --nodes=4 --export=ALL,BIN=...,DATA=...,OUT=... slurm.sh [more flags of the trainer]
#
# Five minutes ahead of the time limit Slurm signals this script, which hands that on: the ranks save the same step and
# end with 75, and the job asks to be queued again. Ranks that lose another one end with 76 and leave OUT/lost, since the
# launcher may return the lost rank's own code; the job then goes on from the last checkpoint. Limits below ten minutes
# want fewer seconds for saving than stand here: sbatch --signal=B:USR1@60.
#SBATCH --job-name=cosmoflow
#SBATCH --time=04:00:00
#SBATCH --exclusive
#SBATCH --ntasks-per-node=2
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
: "${BIN:?folder of the trainer}" "${DATA:?folder of the data}" "${OUT:?folder for results}"

# Each rank computes with the cores that Slurm binds it to. A build with MPICH wants --mpi=pmi2, one with Open MPI
# --mpi=pmix where Slurm has it; LAUNCH="mpirun --bind-to none" works with Open MPI inside an allocation.
launch=${LAUNCH:-srun --kill-on-bad-exit=0 --cpu-bind=cores}
# srun binds a rank to one core unless it is told a number, which since 22.05 it does not learn from sbatch. Without
# sbatch --cpus-per-task that is the rank's share of the node.
ranks=${SLURM_NTASKS_PER_NODE:-${SLURM_TASKS_PER_NODE:-}}
ranks=${ranks%%[!0-9]*} # "2(x4)" on four nodes
share=${SLURM_CPUS_PER_TASK:-}
[ -z "$share" ] && [ "${ranks:-0}" -gt 0 ] && share=$((${SLURM_CPUS_ON_NODE:-0} / ranks))
if [ "${share:-0}" -gt 0 ]; then
  case $launch in srun | 'srun '*) launch="srun --cpus-per-task=$share${launch#srun}" ;; esac
fi
resume=()
compgen -G "$OUT/checkpoint-*.h5" > /dev/null && resume=(--resume)
rm -f "$OUT/lost"

$launch "$BIN/${TRAINER:-cosmoflow_train}" --data-dir "$DATA" --output-dir "$OUT" ${resume[@]+"${resume[@]}"} "$@" &
launcher=$! asked=0
trap 'asked=1; kill -USR1 "$launcher"' USR1
wait "$launcher"
code=$?
# The signal ended the first wait, not the launcher.
[ $asked -eq 1 ] && { wait "$launcher"; code=$?; }
if [ $code -eq 75 ] || [ $code -eq 76 ] || [ -e "$OUT/lost" ]; then
  # A run that is lost again and again should not stay in the queue for ever.
  if [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_RESTARTS:-20}" ]; then
    echo "exit code $code: queueing again (restart ${SLURM_RESTART_COUNT:-0})"
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit $code
