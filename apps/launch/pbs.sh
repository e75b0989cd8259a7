#!/usr/bin/env bash
# CosmoFlow under PBS:   qsub -v BIN=...,DATA=...,OUT=...,FLAGS="--n-epochs 100" pbs.sh
#
# PBS sends no early signal: this script asks the launcher itself, a little ahead of the limit. Ranks then save the same
# step and end with 75; the job is run again (qrerun) from the checkpoint.
#PBS -N cosmoflow
#PBS -l select=4:ncpus=64:mpiprocs=2
#PBS -l walltime=04:00:00
#PBS -r y
set -u
: "${BIN:?folder of cosmoflow_train}" "${DATA:?folder of the data}" "${OUT:?folder for results}"
cd "$PBS_O_WORKDIR" || exit 1

resume=()
compgen -G "$OUT/checkpoint-*.h5" > /dev/null && resume=(--resume)
# Seconds until the ranks are asked to save: PBS_WALLTIME counts in seconds where the site sets it.
ask=$((${PBS_WALLTIME:-14400} - 300))
# shellcheck disable=SC2086
timeout --signal=USR1 "$ask" mpirun -n "$(wc -l < "$PBS_NODEFILE")" \
  "$BIN/cosmoflow_train" --data-dir "$DATA" --output-dir "$OUT" "${resume[@]}" ${FLAGS:-} &
wait $!
code=$?
# timeout reports 124 where it sent its signal; the ranks have then saved and ended with 75.
if [ $code -eq 75 ] || [ $code -eq 76 ] || [ $code -eq 124 ]; then qrerun "$PBS_JOBID"; fi
exit $code
