#!/usr/bin/env bash
# CosmoFlow under PBS:   qsub -v BIN=...,DATA=...,OUT=...,FLAGS="--n-epochs 100" pbs.sh
#
# PBS sends no early signal: this script asks the launcher itself, a little ahead of the limit. Ranks then save the same
# step and end with 75, and the script submits itself once more (qrerun is for operators). Ranks that lose another one
# leave OUT/lost, since the launcher may return the lost rank's own code rather than their 76; the next job then starts
# from the last checkpoint. What the job needs stands here: options of qsub's command line are not repeated.
#PBS -N cosmoflow
#PBS -l select=4:ncpus=64:mpiprocs=2
#PBS -l walltime=04:00:00
set -u
: "${BIN:?folder of the trainer}" "${DATA:?folder of the data}" "${OUT:?folder for results}"
cd "$PBS_O_WORKDIR" || exit 1

resume=()
compgen -G "$OUT/checkpoint-*.h5" > /dev/null && resume=(--resume)
rm -f "$OUT/lost"
# Seconds until the ranks are asked to save: PBS_WALLTIME counts in seconds where the site sets it.
ask=$((${PBS_WALLTIME:-14400} - 300))
# shellcheck disable=SC2086
timeout --preserve-status --signal=USR1 "$ask" mpirun -n "$(wc -l < "$PBS_NODEFILE")" \
  "$BIN/${TRAINER:-cosmoflow_train}" --data-dir "$DATA" --output-dir "$OUT" ${resume[@]+"${resume[@]}"} ${FLAGS:-}
code=$?
if [ $code -eq 75 ] || [ $code -eq 76 ] || [ -e "$OUT/lost" ]; then
  # A run that is lost again and again should not stay in the queue for ever.
  if [ "${RESTARTS:-0}" -lt "${MAX_RESTARTS:-20}" ]; then
    echo "exit code $code: submitting the continuation (restart ${RESTARTS:-0})"
    # PBS runs a copy of the script, which need not have a name of its own. Variables by name, since values may hold
    # commas; all must be set, or qsub refuses them.
    export BIN DATA OUT TRAINER="${TRAINER:-cosmoflow_train}" FLAGS="${FLAGS:-}" SCRIPT="${SCRIPT:-pbs.sh}" \
      MAX_RESTARTS="${MAX_RESTARTS:-20}" RESTARTS=$((${RESTARTS:-0} + 1))
    qsub -v BIN,DATA,OUT,TRAINER,FLAGS,SCRIPT,MAX_RESTARTS,RESTARTS "$SCRIPT"
  fi
fi
exit $code
