#!/usr/bin/env bash
# Several ranks end to end, where it matters how long they are silent and wait: ranks that are lost, stall or stand still,
# and a slow disk. Nothing else may run meanwhile. `short` leaves out what does not depend on the MPI library. LAUNCHER
# starts ranks where Debian's mpirun.openmpi or mpirun.mpich is missing.
# usage: mpi.sh BUILD_DIR openmpi|mpich [full|short] [LAUNCHER]
set -u
build=$1 flavour=$2 extent=${3:-full} launcher=${4:-mpirun}
. "$(dirname "$0")/ranks.sh"

# A rank that dies, and one that stalls, is named by every other. $reach gets the step to which a run was resumed.
reach=0
lost() { # FOLDER SIGNAL
  # MPICH's launcher at times ends the survivors at once; a shell between them takes its signals.
  ranks 4 sh -c 'trap : USR1 TERM; "$@"; echo $? >> "$0"' "$work/$1.codes" "${train[@]}" --batch-size 1 --n-epochs 500 --output-dir "$1" > "$1.txt" 2>&1 &
  local run=$! victim
  for _ in $(seq 600); do [ -s "$1/history.csv" ] && break; sleep 0.02; done
  victim=$(pgrep -f "^$bin/cosmoflow_train$suffix .*output-dir $1" | sort -n | sed -n 3p)
  kill "-$2" "$victim"
  named() { grep -c "error: rank [0-3] on .* (process $victim) has" "$1.txt"; }
  for _ in $(seq 600); do [ "$(named "$1")" -ge 3 ] && break; sleep 0.05; done
  kill -KILL "$victim" 2> /dev/null  # launchers may wait for a stalled process for ever
  wait $run
  [ "$(named "$1")" -ge 3 ] && ok || { bad "$2: not named by all others"; grep rank "$1.txt" >&2; }
  # The launcher may end a survivor's shell before it has written.
  grep -q '^76$' "$1.codes" && ! grep -qvE '^(76|137)$' "$1.codes" && ok || bad "$2: survivors end with $(tr '\n' ' ' < "$1.codes")"
  # Job scripts look for it, since launchers return the code of the rank that was killed.
  grep -q "(process $victim) has" "$1/lost" && ok || bad "$2: no file tells job scripts of a lost rank"
  # A few epochs of three steps behind its last checkpoint.
  local saved; saved=$(ls "$1"/checkpoint-*.h5 | tail -1 | grep -o '[1-9][0-9]*\.h5')
  local steps=$((${saved%.h5} + 12))
  [ $steps -le $reach ] || reach=$steps
  expect 0 "resuming from" ranks 4 "${train[@]}" --batch-size 1 --n-epochs 500 --output-dir "$1" --resume --max-steps $steps
  [ ! -e "$1/lost" ] && ok || bad "$2: the mark of a lost rank outlives the next start"
}
lost killed KILL
# Also one that is lost before anything was written into a folder of this run's own.
ranks 3 sh -c 'trap : USR1 TERM; "$@"' run "${train[@]}" --batch-size 1 --n-epochs 500 --output-dir sudden > sudden.txt 2>&1 &
run=$!
# Ranks that have not met cannot miss each other, and the launcher ends those that have not begun to train.
for _ in $(seq 600); do grep -q "3 ranks on" sudden.txt && break; sleep 0.01; done
victim=$(pgrep -f "^$bin/cosmoflow_train$suffix .*output-dir sudden" | sort -n | sed -n 2p)
kill -KILL "$victim"; wait $run
grep -q "(process $victim) has" sudden/lost && ok || bad "a rank lost at the start leaves no mark: $(tail -3 sudden.txt)"
# A rank that answers and computes is waited for; one that only answers is not. They all sleep: side by side.
coded=(sh -c 'trap : USR1 TERM; "$@"; echo "${OMPI_COMM_WORLD_RANK:-$PMI_RANK} $?" >> "$2.codes"' run "$bin/standing_still$suffix")
ranks 2 "${coded[@]}" still > still.txt 2>&1 &
ranks 2 "${coded[@]}" leaves > leaves.txt 2>&1 &
expect 0 "met" ranks 2 "$bin/standing_still$suffix" at-work
wait
for what in still leaves; do  # who waited ends first, before the launcher ends anyone
  grep -q '^0 76$' $what.codes && ok || bad "a rank that waited for one that $what ends with: $(cat $what.codes)"
done
grep -q "rank 1 on .* answers, but its main thread has stood still for [2-9] s, while this rank waited for a blocking sum" still.txt && ok ||
  bad "a rank that stands still is not told from one that is silent: $(tail -3 still.txt)"
# One that was through before the others is no reason to wait for ever.
grep -q "rank 1 on .* has ended its run, while this rank waited for" leaves.txt && ok || bad "who leaves early is not named: $(tail -3 leaves.txt)"
[ "$extent" = short ] && { conclude; exit; }

lost stalled STOP
grep -q "has not answered for" stalled.txt && ok || bad "a stalled rank is not told from a dead one"
# The resumed runs continue the same curve.
expect 0 "finished" ranks 4 "${train[@]}" --batch-size 1 --n-epochs 500 --output-dir quiet --max-steps $reach
for run in killed stalled; do
  head -n "$(wc -l < $run/history.csv)" quiet/history.csv > as_long.csv
  columns same 1-5 as_long.csv $run/history.csv
done

# Who waits for rank 0's checkpoints does not wait for gradients. Rank 0 has a slow disk here.
cat > slow.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int fsync(int file) {
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  if (!rank) rank = getenv("PMI_RANK");
  if (rank && *rank == '0') usleep(200000);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
C
cc -shared -fPIC -o slow.so slow.c -ldl
expect 0 "finished" ranks 2 env LD_PRELOAD="$work/slow.so" "${train[@]}" --batch-size 1 --n-epochs 1 --output-dir disk --checkpoint-steps 1
# In gradients the other rank would wait for all of that: half of it in the mean of two.
awk -F'[:,]' '/"exposed_seconds_per_step"/ { seconds = $2 } /"exposed_fraction"/ { share = $2 } /"steps"/ { steps = $2 } /"checkpoints"/ { disk = $2 }
  END { exit !(disk > 0 && seconds * steps < disk / 4 && share < 1) }' \
  disk/summary.json && ok || bad "checkpoints count as communication: $(grep '"exposed\|"steps"\|"checkpoints"' disk/summary.json)"

conclude
