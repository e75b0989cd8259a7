#!/usr/bin/env bash
# CosmoFlow under PBS:   BIN=... DATA=... OUT=... FLAGS="--n-epochs 100" qsub -v BIN,DATA,OUT,FLAGS pbs.sh
#
# qsub hands on the variables that -v names, and no arguments: FLAGS holds more flags of the trainer.
#
# PBS sends no early signal: this script asks the launcher itself, a little ahead of the limit. Ranks then save the same
# step and end with 75, and the script submits itself once more (qrerun is for operators). Ranks that lose another one
# leave OUT/lost, since the launcher may return the lost rank's own code rather than their 76; the next job then starts
# from the last checkpoint. What the job needs stands here: options of qsub's command line are not repeated.
#
# ompthreads is a rank's share of ncpus: PBS sets OMP_NUM_THREADS to it, and to all of ncpus where it is missing.
#PBS -N cosmoflow
#PBS -l select=4:ncpus=64:mpiprocs=2:ompthreads=32
#PBS -l walltime=04:00:00
set -u
: "${BIN:?folder of the trainer}" "${DATA:?folder of the data}" "${OUT:?folder for results}"
cd "$PBS_O_WORKDIR" || exit 1

# PBS runs a copy of the script, which goes with the job: the continuation needs one that stays.
mkdir -p "$OUT"
[ "$0" -ef "$OUT/pbs.sh" ] || cp -- "$0" "$OUT/pbs.sh" || echo "warning: there will be no continuation" >&2
# Open MPI would bind ranks to fewer cores than they have threads; others do not know these variables.
[ -n "${LAUNCH:-}" ] || export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
resume=()
compgen -G "$OUT/checkpoint-*.h5" > /dev/null && resume=(--resume)
rm -f "$OUT/lost"
# Seconds until the ranks are asked to save: of PBS_WALLTIME where the site sets it, else of the walltime above. Of a
# short job that is half of them.
limit=${PBS_WALLTIME:-14400}
ask=$((limit > 600 ? limit - 300 : (limit + 1) / 2))
# shellcheck disable=SC2086
timeout --preserve-status --signal=USR1 "$ask" ${LAUNCH:-mpirun} -n "$(wc -l < "$PBS_NODEFILE")" \
  "$BIN/${TRAINER:-cosmoflow_train}" --data-dir "$DATA" --output-dir "$OUT" ${resume[@]+"${resume[@]}"} ${FLAGS:-}
code=$?
if [ $code -eq 75 ] || [ $code -eq 76 ] || [ -e "$OUT/lost" ]; then
  # A run that is lost again and again should not stay in the queue for ever.
  if [ "${RESTARTS:-0}" -lt "${MAX_RESTARTS:-20}" ]; then
    echo "exit code $code: submitting the continuation (restart ${RESTARTS:-0})"
    # Variables by name, since values may hold commas, and only those that are set: qsub refuses others.
    export RESTARTS=$((${RESTARTS:-0} + 1))
    names=BIN,DATA,OUT,RESTARTS
    for name in FLAGS TRAINER LAUNCH MAX_RESTARTS LD_LIBRARY_PATH $(compgen -e CONVOY_); do
      [ -n "${!name+set}" ] && names+=,$name
    done
    qsub -v "$names" "$OUT/pbs.sh"
  fi
fi
exit $code
