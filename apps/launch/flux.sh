#!/usr/bin/env bash
# CosmoFlow under Flux:   BIN=... DATA=... OUT=... flux batch -N 4 --time-limit=4h flux.sh [more flags of the trainer]
#
# Flux signals the ranks five minutes ahead of the limit, or half way through a short job; they save the same step and end with 75, and the script submits
# its own continuation. Ranks that lose another one leave OUT/lost, since the launcher may return the lost rank's own
# code rather than their 76; the continuation then starts from the last checkpoint.
# flux: --job-name=cosmoflow
set -u
: "${BIN:?folder of the trainer}" "${DATA:?folder of the data}" "${OUT:?folder for results}"

# The next job gets the time that this one had: what is left at its start. 2^32 - 1 seconds and more mean no limit.
left=$(flux job timeleft 2> /dev/null)
[[ $left =~ ^[0-9]+ ]] && left=${BASH_REMATCH[0]} || left=14400
ahead=$((left > 600 ? 300 : (left + 1) / 2))
[ "$left" -ge 4294967295 ] && left='' || left+=s
export TIME_LIMIT=${TIME_LIMIT:-$left}
limit=()
[ -n "$TIME_LIMIT" ] && limit=(--time-limit="$TIME_LIMIT")
resume=()
compgen -G "$OUT/checkpoint-*.h5" > /dev/null && resume=(--resume)
rm -f "$OUT/lost"
nodes=$(flux resource list -s free -no '{nnodes}')
# Whole nodes, whose cores per-task divides among their ranks.
flux run -N "$nodes" --exclusive --tasks-per-node="${TASKS_PER_NODE:-2}" -o cpu-affinity=per-task --signal="USR1@${ahead}s" \
  "$BIN/${TRAINER:-cosmoflow_train}" --data-dir "$DATA" --output-dir "$OUT" ${resume[@]+"${resume[@]}"} "$@"
code=$?
if [ $code -eq 75 ] || [ $code -eq 76 ] || [ -e "$OUT/lost" ]; then
  # A run that is lost again and again should not stay in the queue for ever; the next job inherits the count.
  if [ "${RESTARTS:-0}" -lt "${MAX_RESTARTS:-20}" ]; then
    echo "exit code $code: submitting the continuation (restart ${RESTARTS:-0})"
    export RESTARTS=$((${RESTARTS:-0} + 1))
    # The batch script runs inside its own instance: the next job belongs to the one above it.
    flux --parent batch -N "$nodes" ${limit[@]+"${limit[@]}"} "$0" "$@"
  fi
fi
exit $code
