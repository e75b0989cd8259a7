#!/usr/bin/env bash
# Several ranks end to end: algorithms, both trainers, resume at another rank count, signals, lost ranks, staging, the C
# interface. `short` leaves out what does not depend on the MPI library. LAUNCHER starts ranks where Debian's
# mpirun.openmpi or mpirun.mpich is missing.
# usage: mpi.sh BUILD_DIR openmpi|mpich [full|short] [LAUNCHER]
set -u
build=$1 bin=$1/bin flavour=$2 extent=${3:-full} launcher=${4:-mpirun}
source=$(cd "$(dirname "$0")/.." && pwd)
. "$source/tests/expect.sh"
# For Open MPI as root on few cores; MPICH does not look at them.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none
command -v "mpirun.$flavour" > /dev/null && launcher=mpirun.$flavour
[ "$flavour" = openmpi ] && patient='' || patient=-disable-auto-cleanup
# Programs that were linked for MPICH, too, have a suffix; a build with a single MPI has none.
suffix='' other=''
if [ -x "$bin/cosmoflow_train_mpich" ]; then
  if [ "$flavour" = openmpi ]; then other=$bin/cosmoflow_train_mpich; else suffix=_mpich other=$bin/cosmoflow_train; fi
fi
ranks() { local n=$1; shift; timeout 120 "$launcher" $patient -n "$n" "$@"; }
# near FIELD PART TABLE TABLE: as many rows below the heads, whose numbers differ by no more than this part of the first.
near() {
  [ -s "$3" ] && awk -F, -v field="$1" -v part="$2" 'NR == FNR { one[FNR] = $field; rows = FNR; next }
    FNR > 1 { d = ($field - one[FNR]) / one[FNR]; if (!(d <= part && d >= -part)) far = 1 }
    END { exit far || rows < 2 || FNR != rows }' "$3" "$4" && ok || bad "column $1 of $3 and $4 differs: $(cut -d, -f"$1" "$3" "$4" | tr '\n' ' ')"
}
# messages FOLDER NAME...: the trace of a run has them.
messages() {
  local name folder=$1; shift
  for name in "$@"; do
    grep -q "\"name\":\"$name\",\"cat\":\"messages\"" "$folder/trace.json" && ok || bad "$folder/trace.json: no message $name"
  done
}

# Every algorithm checks its sums against whole numbers: a wrong one ends with 1.
for n in 2 3 4 5; do expect 0 "MPI_Allreduce" ranks $n "$bin/bench_comm$suffix" --min 4 --max 4194304 --factor 128 --seconds 0; done
expect 0 "hierarchical" ranks 4 "$bin/bench_comm$suffix" --ranks-per-node 2 --min 4 --max 1048576 --factor 64 --seconds 0 --table table --json comm.jsonl
present table comm.jsonl
# Few of them, beside what they are compared with.
ranks 2 "$bin/bench_comm$suffix" --size 4096 --seconds 0 --algorithms shared,ring > few.txt 2>&1
[ "$(awk '$1 == 4096 { print $2 }' few.txt | tr '\n' ' ')" = "shared ring MPI_Allreduce " ] && ok || bad "--algorithms shared,ring: $(cat few.txt)"
# A file that cannot be written is told at once, and not as a fault of the network.
expect 1 "nowhere/comm.jsonl: cannot open for writing" timeout 20 "$launcher" -n 2 "$bin/bench_comm$suffix" --min 4 --max 4 --json nowhere/comm.jsonl
# A rank without memory ends the others, too.
expect 1 "bench_comm: error: std::bad_alloc" timeout 20 "$launcher" -n 1 "$bin/bench_comm$suffix" --size 400000000 --seconds 0 : \
  -n 1 sh -c 'ulimit -v 500000 && exec "$@"' run "$bin/bench_comm$suffix" --size 400000000 --seconds 0
expect 0 "doubling: yes" ranks 2 "$bin/bench_comm$suffix" --size 4 --seconds 0 --explain
# Programs that do not divide their work.
expect 2 "expected a single task" ranks 2 "$bin/cosmoflow_simulate" --out never --universes 1 --size 16

# The C interface, from C and from Python.
for n in 2 3; do
  expect 0 "$n ranks: y = 2.0000 x + 1.0000" ranks $n "$bin/convoy_comm_example$suffix"
  expect 0 "$n ranks: largest error" ranks $n /usr/bin/python3 "$source/dist/examples/average.py" "$build/lib/libconvoy_comm$suffix.so"
done

cat > sizes.py <<'P'
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
rank = ctypes.c_int()
assert lib.convoy_comm_initialise((ctypes.c_int * 1)(1), 1) == 0
lib.convoy_comm_rank(ctypes.byref(rank))
count = 40 + 20 * rank.value
data = (ctypes.c_double * count)(*[1.0 + rank.value] * count)
code = lib.convoy_comm_average(0, (ctypes.c_void_p * 1)(ctypes.addressof(data)), (ctypes.c_size_t * 1)(count), 1, 1)
print(f"rank {rank.value}: code {code}, {data[0]}", flush=True)
lib.convoy_comm_finalise()
P
ranks 2 /usr/bin/python3 sizes.py "$build/lib/libconvoy_comm$suffix.so" > sizes.txt 2>&1
grep -q "rank 0: code 2, 1.0" sizes.txt && grep -q "rank 1: code 2, 2.0" sizes.txt && ok || bad "other sizes on each rank: $(tail -3 sizes.txt)"

# An argument that one rank has wrong is refused on all of them, and the next call is right again.
cat > wrong.py <<'P'
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.convoy_comm_error.restype = ctypes.c_char_p
rank = ctypes.c_int()
assert lib.convoy_comm_initialise((ctypes.c_int * 1)(1), 1) == 0
lib.convoy_comm_rank(ctypes.byref(rank))
data = (ctypes.c_double * 8)(*[1.0 + rank.value] * 8)
here, errors = ctypes.addressof(data), []
def average(address=here, number=1, type=1):
    code = lib.convoy_comm_average(0, (ctypes.c_void_p * 1)(address), (ctypes.c_size_t * 1)(8), number, type)
    if code: errors.append(lib.convoy_comm_error().decode())
    return code
wrong = [average(None if rank.value else here), average(number=-1 if rank.value else 1), average(type=9 if rank.value else 1)]
print(f"rank {rank.value}: codes {wrong}, then {average()} {data[0]}: {errors}", flush=True)
data[0], errors[:] = rank.value, []
def broadcast(address=here, size=64, root=0):
    code = lib.convoy_comm_broadcast(0, ctypes.c_void_p(address), ctypes.c_size_t(size), root)
    if code: errors.append(lib.convoy_comm_error().decode())
    return code
wrong = [broadcast(size=32 if rank.value else 64), broadcast(root=rank.value), broadcast(None if rank.value else here), broadcast(root=2 if rank.value else 0), data[0]]
print(f"rank {rank.value}: broadcasts {wrong}, then {broadcast(root=1)} {data[0]}: {errors}", flush=True)
lib.convoy_comm_finalise()
P
ranks 2 /usr/bin/python3 wrong.py "$build/lib/libconvoy_comm$suffix.so" > wrong.txt 2>&1
grep -q "rank 0: codes \[2, 2, 2\], then 0 1.5: .*1 of 2 ranks pass wrong arguments" wrong.txt &&
  grep -q "rank 1: codes \[2, 2, 2\], then 0 1.5: .*tensor 0: .*found no data.*found -1.*found 9" wrong.txt && ok ||
  bad "a wrong argument on one rank: $(tail -3 wrong.txt)"
grep -q "rank 0: broadcasts \[2, 2, 2, 2, 0.0\], then 0 1.0: .*different numbers of bytes.*different roots.*1 of 2 ranks pass wrong arguments" wrong.txt &&
  grep -q "rank 1: broadcasts \[2, 2, 2, 2, 1.0\], then 0 1.0: .*different numbers of bytes.*different roots.*found no data.*root below 2, found 2" wrong.txt && ok ||
  bad "a broadcast that ranks do not agree on: $(tail -3 wrong.txt)"

# More tensors than are under way at a time, and some that travel together.
cat > many.py <<'P'
import array, ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
rank = ctypes.c_int()
assert lib.convoy_comm_initialise((ctypes.c_int * 1)(1), 1) == 0
lib.convoy_comm_rank(ctypes.byref(rank))
counts = [5 if i % 100 == 7 else (1 << 18) + i for i in range(261)]
arrays = [array.array('f', [i + rank.value]) * n for i, n in enumerate(counts)]
tensors = [(ctypes.c_float * n).from_buffer(a) for n, a in zip(counts, arrays)]
code = lib.convoy_comm_average(0, (ctypes.c_void_p * len(counts))(*map(ctypes.addressof, tensors)), (ctypes.c_size_t * len(counts))(*counts), len(counts), 0)
right = sum(a[0] == a[n // 2] == a[-1] == i + 0.5 for i, (n, a) in enumerate(zip(counts, arrays)))
print(f"rank {rank.value}: code {code}, {right} of {len(counts)} averaged", flush=True)
lib.convoy_comm_finalise()
P
expect 0 "rank 1: code 0, 261 of 261 averaged" ranks 2 /usr/bin/python3 many.py "$build/lib/libconvoy_comm$suffix.so"

# In a program that has started MPI itself the library may begin and end again, and leaves no communicator behind.
cat > cycles.c <<'C'
#include <mpi.h>
#include <stdio.h>

#include "dist/convoy_comm.h"

static int made = 0;
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy) { return ++made, PMPI_Comm_dup(comm, copy); }
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *part) { return ++made, PMPI_Comm_split(comm, color, key, part); }
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *part) { return ++made, PMPI_Comm_split_type(comm, type, key, info, part); }
int MPI_Comm_free(MPI_Comm *comm) { return --made, PMPI_Comm_free(comm); }

int main(void) {
  const int threads[] = {1, 1};
  int level, rank, code = 0;
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int cycle = 0; cycle < 3; ++cycle) {
    float value = rank;
    void *tensors[] = {&value};
    const size_t counts[] = {1};
    code = code || convoy_comm_initialise(threads, 2) || convoy_comm_average(1, tensors, counts, 1, CONVOY_COMM_F32) || value != 1 || convoy_comm_finalise();
  }
  printf("rank %d: code %d, %d communicators left\n", rank, code, made);
  MPI_Finalize();
  return code;
}
C
"$(command -v "mpicc.$flavour" || echo mpicc)" -I"$source" -rdynamic -o cycles cycles.c -L"$build/lib" "-lconvoy_comm$suffix" "-Wl,-rpath,$build/lib"
expect 0 "rank 2: code 0, 0 communicators left" ranks 3 ./cycles

# Alone nothing of MPI was started, so that it may be started again.
sed -i '$a for again in range(2): print("again:", lib.convoy_comm_initialise((ctypes.c_int * 1)(1), 1), lib.convoy_comm_finalise())' sizes.py
expect 0 "again: 0 0" /usr/bin/python3 sizes.py "$build/lib/libconvoy_comm$suffix.so"

expect 0 "wrote 12 + 5 universes" "$bin/cosmoflow_simulate" --out data --universes 12 --validation 5 --size 16 --steps 4
common=(--data-dir data --n-epochs 3 --optimizer Adam --augment cube --seed 5 --fc1-size 16 --fc2-size 8 --threads 1 --comm-timeout 8)
train=("$bin/cosmoflow_train$suffix" "${common[@]}")

# Two ranks with one sample each see what one rank with two samples sees, up to the order of sums.
expect 0 "finished: 18 steps" "$bin/cosmoflow_train" "${common[@]}" --batch-size 2 --output-dir one --save one.safetensors
expect 0 "2 ranks on 1 nodes" ranks 2 "${train[@]}" --batch-size 1 --output-dir two --save two.safetensors --trace --profile
present two/history.csv two/metrics.jsonl two/mlperf.log two/summary.json two/trace.json
[ "$(wc -l < two/metrics.jsonl)" -eq 18 ] && ok || bad "two/metrics.jsonl does not have one line per step"
grep -q '"key":"number_of_ranks".*"value":2' two/mlperf.log && ok || bad "no number_of_ranks in mlperf.log"
grep -q '"pid":1' two/trace.json && grep -q '"cat":"messages"' two/trace.json && ok || bad "no second rank, or no messages, in trace.json"
messages two bucket0 loss stop  # as their nodes are called
expect 0 "2 ranks" /usr/bin/python3 -c 'import json; print(len({e["pid"] for e in json.load(open("two/trace.json"))["traceEvents"]}), "ranks")'
near 4 1e-3 one/history.csv two/history.csv
awk -F'[:,]' '/"exposed_seconds_per_step"/ { all = $2 } /"late_ranks_seconds_per_step"/ { late = $2 } END { exit !(late > 0 && late <= all) }' \
  two/summary.json && ok || bad "summary.json: time for late ranks is not a part of what is exposed: $(grep seconds_per_step two/summary.json)"
# Launchers give rank 0 a terminal: what it would draw there does not belong into a file.
ranks 2 "${train[@]}" --batch-size 1 --output-dir quiet_log > quiet.txt 2>&1
grep -q finished quiet.txt && ! grep -q $'\repoch' quiet.txt && ok || bad "a progress bar in a log: $(grep -c $'\repoch' quiet.txt) lines"
# Of all settings a resumed run needs its folder alone; rank 0 locks it.
expect 0 "finished: 4 steps" ranks 2 "${train[@]}" --batch-size 1 --output-dir brief --max-steps 4
# Settings, and what was measured at the first start, are the checkpoint's.
expect 0 "--bucket-mib " ranks 2 "$bin/cosmoflow_train$suffix" --output-dir brief --resume --max-steps 1
expect 0 "--optimizer Adam --seed 5" ranks 2 "$bin/cosmoflow_train$suffix" --output-dir brief --resume --save brief.safetensors
same two.safetensors brief.safetensors
[ ! -e brief/run.lock ] && ok || bad "a lock outlives its run"
# The checkpoint of another run needs nothing else, too.
expect 0 "finished: 6 steps" ranks 2 "$bin/cosmoflow_train$suffix" --checkpoint two/checkpoint-000000012.h5 --output-dir branch --save branch.safetensors
same two.safetensors branch.safetensors
# Sums of a node go through memory whatever the size of /dev/shm, of which containers often have 64 MiB.
small=(unshare -m sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"' run)
if "${small[@]}" true 2> /dev/null; then
  expect 0 "all-reduce shared (first)" "${small[@]}" timeout 120 "$launcher" $patient -n 8 "${train[@]}" --batch-size 1 --max-steps 1 --output-dir small
else
  echo "skipped: a small /dev/shm, which takes the right to mount"
fi
# Ranks in containers that do not see each other's processes have at best that (MPICH does not start there).
if [ "$flavour" = openmpi ] && unshare -U -r true 2> /dev/null; then
  expect 0 "shared: yes" ranks 2 unshare -U -r "$bin/bench_comm$suffix" --size 4096 --seconds 0 --explain
fi
# Where one node has no memory to share, the others go without it, too.
cat > nowhere.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
int memfd_create(const char *name, unsigned flags) {
  errno = EMFILE;
  return -1;
}
int open(const char *path, int flags, int mode) {
  errno = ENOSPC;
  return strstr(path, "/dev/shm/convoy") ? -1 : ((int (*)(const char *, int, int))dlsym(RTLD_NEXT, "open"))(path, flags, mode);
}
C
cc -shared -fPIC -o nowhere.so nowhere.c -ldl
apart=("$bin/bench_comm$suffix" --ranks-per-node 2 --size 4096 --seconds 0)
expect 0 "warning: ranks of 1 nodes share no memory" timeout 60 "$launcher" -n 2 "${apart[@]}" : -n 2 env LD_PRELOAD="$work/nowhere.so" "${apart[@]}"
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
# The launcher of another MPI starts ranks that do not find each other.
[ -z "$other" ] || expect 2 "but MPI sees a single one" ranks 2 "$other" "${common[@]}" --output-dir x
[ "$extent" = short ] && { conclude; exit; }

# The same bits again, by every order of messages; on pretended nodes; with a thread that drives messages on.
expect 0 "finished" ranks 2 "${train[@]}" --batch-size 1 --output-dir again --save again.safetensors
same two.safetensors again.safetensors
# Weights are held once or by every rank: the same bits.
expect 0 "2 ranks hold weights and moments once" ranks 2 "${train[@]}" --batch-size 1 --output-dir shared --max-steps 1
expect 0 "finished" ranks 2 "${train[@]}" --batch-size 1 --output-dir alone --save alone.safetensors --no-share-weights
same two.safetensors alone.safetensors
expect 0 "hierarchical" ranks 4 "${train[@]}" --batch-size 1 --output-dir nodes --ranks-per-node 2
expect 0 "measured" ranks 4 "${train[@]}" --batch-size 1 --output-dir measured --ranks-per-node 2 --comm-table table
expect 0 "warning: --comm-table table: nothing in it is for 2 ranks on 1 nodes" ranks 2 "${train[@]}" --batch-size 1 --output-dir elsewhere --max-steps 1 --comm-table table
expect 0 "finished" ranks 2 "${train[@]}" --batch-size 1 --output-dir thread --save thread.safetensors --comm-thread
same two.safetensors thread.safetensors
# Sums by a team of threads, or by the one that drives messages on.
expect 0 "finished: 4 steps" ranks 2 "${train[@]}" --batch-size 1 --threads 2 --max-steps 4 --output-dir adders --save adders.safetensors
expect 0 "finished: 4 steps" ranks 2 "${train[@]}" --batch-size 1 --threads 2 --max-steps 4 --output-dir adder --save adder.safetensors --comm-thread
same adders.safetensors adder.safetensors
# Gradients that travel when a loss is no longer finite.
expect 4 "step 2: not finite" ranks 2 "${train[@]}" --batch-size 1 --output-dir apart --gradient-lag 1 --optimizer SGD --lr 1e30
expect 0 "as bf16" ranks 2 "${train[@]}" --batch-size 1 --output-dir narrow --gradient-wire bf16 --all-reduce ring

# A checkpoint of four ranks, continued at four (the same bits) and at two.
expect 0 "finished" ranks 4 "${train[@]}" --batch-size 1 --output-dir four --save four.safetensors
expect 0 "finished: 4 steps" ranks 4 "${train[@]}" --batch-size 1 --output-dir part --max-steps 4
cp -r part part2
expect 0 "resuming from" ranks 4 "${train[@]}" --batch-size 1 --output-dir part --resume --save part.safetensors
same four.safetensors part.safetensors
expect 0 "changes from 4 to 2, the samples of a step from 4 to 4" ranks 2 "${train[@]}" --batch-size 2 --output-dir part2 --resume

# The same bits where two teams of two take the states of a checkpoint, and where a team takes given weights.
teams=("${train[@]}" --batch-size 1 --ranks-per-node 2 --bucket-mib 1)
expect 0 "finished" ranks 4 "${teams[@]}" --output-dir teams --save teams.safetensors
expect 0 "finished: 4 steps" ranks 4 "${teams[@]}" --output-dir teams2 --max-steps 4
expect 0 "resuming from" ranks 4 "${teams[@]}" --output-dir teams2 --resume --save teams2.safetensors
same teams.safetensors teams2.safetensors
expect 0 "finished" ranks 2 "${train[@]}" --batch-size 1 --init two.safetensors --output-dir more --save more.safetensors
expect 3 "[rank 0] error: two.safetensors: tensor" ranks 2 "${train[@]}" --batch-size 1 --fc1-size 32 --init two.safetensors --output-dir other
expect 0 "finished" ranks 2 "${train[@]}" --batch-size 1 --init two.safetensors --output-dir more2 --save more2.safetensors --no-share-weights
same more.safetensors more2.safetensors

# Ranks of one and of two threads get theirs back.
own=("${train[@]/--threads/--prefetch}")  # 1 sample ahead, and threads by themselves
uneven=(sh -c 'export OMP_NUM_THREADS=$((1 + ${OMPI_COMM_WORLD_RANK:-$PMI_RANK})); exec "$@"' run)
expect 0 "finished" ranks 2 "${uneven[@]}" "${own[@]}" --batch-size 1 --output-dir threads --save threads.safetensors
expect 0 "finished: 4 steps" ranks 2 "${uneven[@]}" "${own[@]}" --batch-size 1 --output-dir threads2 --max-steps 4
expect 0 "2 threads on cores" ranks 2 env -u OMP_NUM_THREADS "${own[@]}" --batch-size 1 --output-dir threads2 --resume --save threads2.safetensors
same threads.safetensors threads2.safetensors
expect 2 "setting threads: expected [1,2], found 1" ranks 2 env OMP_NUM_THREADS=1 "${own[@]}" --batch-size 1 --output-dir threads2 --resume
# A launcher that leaves most of a node idle is told of.
core=$(taskset -cp $$ | grep -oE '[0-9]+' | sed -n 2p)
[ "$(nproc)" -lt 2 ] || expect 0 "ranks of node 0 may run on 1 of its" ranks 2 env -u OMP_NUM_THREADS taskset -c "$core" "${own[@]}" --batch-size 1 --output-dir bound --max-steps 1

# At another number of ranks the epoch may end in mid-step: 12 samples, 11 seen, then five a step.
expect 0 "finished: 11 steps" "$bin/cosmoflow_train" "${common[@]}" --batch-size 1 --output-dir uneven --max-steps 11
before=$(tail -1 uneven/history.csv | cut -d, -f3)
expect 0 "changes from 1 to 5" ranks 5 "${train[@]}" --batch-size 1 --output-dir uneven --resume
[ "$(sed -n 2p uneven/history.csv | cut -d, -f3)" = "$before" ] && ok || bad "a resume at five ranks changes an epoch's loss: $before, $(cat uneven/history.csv)"
[ "$(wc -l < uneven/history.csv)" -eq 4 ] && ok || bad "a resume at five ranks loses epochs"

# A signal during a validation stops the run behind it: here rank 0 gets one while it writes the first epoch's history.
cat > ask.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
int rename(const char *from, const char *to) {
  if (strstr(to, "/history.csv")) raise(SIGUSR1);
  return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
C
cc -shared -fPIC -o ask.so ask.c -ldl
ranks 2 env LD_PRELOAD="$work/ask.so" "${train[@]}" --batch-size 1 --output-dir between > between.txt 2>&1; rc=$?
[ $rc -eq 75 ] && [ "$(wc -l < between/metrics.jsonl)" -eq 6 ] && ok ||
  { bad "SIGUSR1 in a validation: exit $rc after $(wc -l < between/metrics.jsonl) steps, expected 75 after 6"; tail -5 between.txt >&2; }

# One rank is asked to stop: all save the same step and end with 75.
ranks 3 "${train[@]}" --batch-size 1 --n-epochs 500 --output-dir asked > asked.txt 2>&1 &
victim=$!
for _ in $(seq 600); do [ -s asked/history.csv ] && break; sleep 0.02; done
kill -USR1 "$(pgrep -f "output-dir asked" | tail -1)"
wait $victim; rc=$?
[ $rc -eq 75 ] && ok || { bad "SIGUSR1 on one rank: exit $rc, expected 75"; tail -5 asked.txt >&2; }
expect 0 "resuming from" ranks 3 "${train[@]}" --batch-size 1 --n-epochs 500 --output-dir asked --resume --max-steps "$(($(wc -l < asked/metrics.jsonl) + 2))"

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

# What is left measures no time, and mostly sleeps or starts programs: side by side.
failing_mpi() {
# A rank that is gone while communicators are set up: the other one sits in an MPI call that waits for it.
if [ "$flavour" = openmpi ]; then
  cat > leave.c <<'C'
#include <mpi.h>
#include <stdlib.h>
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *part) {
  int rank;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 1) _Exit(9);
  return PMPI_Comm_split_type(comm, type, key, info, part);
}
C
  "$(command -v mpicc.openmpi || echo mpicc)" -shared -fPIC -o leave.so leave.c
  ranks 2 --enable-recovery -x LD_PRELOAD="$work/leave.so" "${train[@]}" --batch-size 1 --output-dir early > early.txt 2>&1
  grep -q "rank 1 on .* has ended" early.txt && ok || bad "no rank named that was lost during the set-up: $(tail -3 early.txt)"
  # An error of MPI's counts as a lost rank, unless it can be nothing but a mistake.
  cat > fail.c <<'C'
#include <mpi.h>
#include <stdlib.h>
int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  int rank;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) return getenv("TRUNCATES") ? MPI_ERR_TRUNCATE : MPI_ERR_OTHER;
  return PMPI_Irecv(buffer, count, type, from, tag, comm, request);
}
C
  "$(command -v mpicc.openmpi || echo mpicc)" -shared -fPIC -o fail.so fail.c
  for case in "TRUNCATES=1 1" "OTHER=1 76"; do
    rm -f code.0
    ranks 2 --enable-recovery env LD_PRELOAD="$work/fail.so" "${case% *}" sh -c '"$@"; echo $? > code.$OMPI_COMM_WORLD_RANK' run \
      "$bin/standing_still" at-work > failed.txt 2>&1
    [ "$(cat code.0)" = "${case#* }" ] && grep -q "standing_still: error: MPI: MPI_ERR_" failed.txt && ok ||
      bad "MPI fails, $case: exit $(cat code.0): $(tail -3 failed.txt)"
  done
fi
}
mistakes_and_staging() {
# Mistakes: another MPI's launcher, settings that differ, a bad file that one rank meets, impossible wishes.
expect 2 "setting seed differs between ranks: rank 0 has \"5\", rank 1 has \"6\"" timeout 60 "$launcher" \
  -n 1 "${train[@]}" --batch-size 1 --output-dir y : -n 1 "${train[@]}" --batch-size 1 --output-dir y --seed 6
# Algorithms that differ are told, not tried; tables count by what they hold.
differs() { # TEXT "FLAGS OF RANK 0" "FLAGS OF RANK 1"
  expect 2 "$1" timeout 30 "$launcher" -n 1 "${train[@]}" --batch-size 1 --output-dir y $2 : -n 1 "${train[@]}" --batch-size 1 --output-dir y $3
}
differs 'setting all-reduce differs between ranks: rank 0 has "ring", rank 1 has "shared"' '--all-reduce ring' '--all-reduce shared'
differs 'setting comm-table differs between ranks' "--comm-table $work/table" ''
mkdir -p node.0 node.1 && cp table node.0/table && echo '2 1 4 ring' > node.1/table
expect 2 'setting comm-table (contents) differs between ranks' timeout 30 "$launcher" \
  -n 1 sh -c 'cd node.0 && exec "$@"' run "${train[@]}" --data-dir "$work/data" --batch-size 1 --output-dir y --comm-table table : \
  -n 1 sh -c 'cd node.1 && exec "$@"' run "${train[@]}" --data-dir "$work/data" --batch-size 1 --output-dir y --comm-table table
cp -r data fewer
mv "fewer/train/$(ls fewer/train | head -1)" fewer/train/renamed.tfrecord
expect 2 "data-dir differs between ranks" timeout 60 "$launcher" -n 1 "${train[@]}" --batch-size 1 --output-dir y : \
  -n 1 "${train[@]}" --batch-size 1 --output-dir y --data-dir fewer
stage_two() { # Each rank is told of its folder by a link of one name.
  mkdir -p here.$1 && ln -sfn "$work/$2" "here.$1/data"
}
stage_two 0 data; stage_two 1 fewer
expect 3 "rank 1 has no such file" timeout 60 "$launcher" -n 1 sh -c 'cd here.0 && exec "$@"' run "${train[@]}" --batch-size 1 --output-dir y : \
  -n 1 sh -c 'cd here.1 && exec "$@"' run "${train[@]}" --batch-size 1 --output-dir y
expect 3 "expected a name in UTF-8" ranks 2 "${train[@]}" --batch-size 1 --output-dir y --data-dir $'caf\xe9'
expect 2 "--peer-access has no effect on the CPU" ranks 2 "${train[@]}" --batch-size 1 --output-dir y --peer-access
expect 2 "--peer-access and --all-reduce exclude each other" ranks 2 "${train[@]}" --batch-size 1 --output-dir y --peer-access --all-reduce ring
expect 2 "expected 1 on a single rank" "$bin/climseg_train" --data dummy --batchnorm-group-size 2 --output-dir y
expect 2 "expected one of shared" "$bin/cosmoflow_train" "${common[@]}" --output-dir y --all-reduce pigeon
expect 2 "shared refuses" ranks 2 "${train[@]}" --batch-size 1 --output-dir z --ranks-per-node 1 --all-reduce shared
expect 2 "a step takes 24 samples, more than the 12" ranks 2 "${train[@]}" --batch-size 12 --output-dir z
cp -r data broken
truncate -s 3000 "broken/train/$(ls broken/train | tail -1)"
expect 3 "$(ls broken/train | tail -1)" ranks 2 "${train[@]}" --data-dir broken --batch-size 1 --output-dir w

# Staging: every file is read once, a second run copies nothing, a damaged copy is replaced.
stage=("${train[@]}" --batch-size 1 --stage-dir 'stage-{node}' --ranks-per-node 2 --max-steps 1)
expect 0 "staged 17 files" ranks 4 "${stage[@]}" --output-dir s1
grep -q '"key":"staging_stop"' s1/mlperf.log && ok || bad "no staging_stop in mlperf.log"
for node in 0 1; do diff -r data stage-$node -x '.convoy-stage.*' -x '*.svg' -x simulation.json > /dev/null && ok || bad "stage-$node differs from data"; done
expect 0 "17 files reused" ranks 4 "${stage[@]}" --output-dir s2
printf x | dd of="stage-1/train/$(ls stage-1/train | head -1)" bs=1 seek=700 conv=notrunc 2> /dev/null
expect 0 "16 files reused" ranks 4 "${stage[@]}" --output-dir s3
# What one run reads another may read, too, but not replace.
exec 9> stage-0/.convoy-stage.lock
flock -s 9
expect 0 "17 files reused" ranks 4 "${stage[@]}" --output-dir s7
rm -r broken && cp -r data broken && rm "broken/train/$(ls broken/train | head -1)"
expect 2 "stage-0: files there would change while another run reads them" ranks 4 "${stage[@]}" --data-dir broken --output-dir s5
[ "$(ls stage-0/train | wc -l)" -eq "$(ls data/train | wc -l)" ] && ok || bad "a refused run removes staged files"
exec 9>&-
rm -r broken && cp -r data broken && rm "broken/train/$(ls broken/train | head -1)"
expect 0 "staged 16 files" ranks 4 "${stage[@]}" --data-dir broken --output-dir s5
diff -r broken stage-1 -x '.convoy-stage.*' -x '*.svg' -x simulation.json > /dev/null && ok || bad "a second data set mixes with the first"
expect 2 "which is read, or lies in it" ranks 4 "${stage[@]}" --data-dir broken --output-dir stage-0/run
# Of a staging that was broken off the names are known: another data set takes its place.
expect 0 "staged 17 files" ranks 4 "${stage[@]}" --output-dir s8
sed -i 's/,[0-9]*\]/,null]/g' stage-0/.convoy-stage.json && touch "stage-0/train/$(ls data/train | head -1).tmp"
expect 0 "staged 16 files" ranks 4 "${stage[@]}" --data-dir broken --output-dir s9
diff -r broken stage-0 -x '.convoy-stage.*' -x '*.svg' -x simulation.json > /dev/null && ok || bad "what a broken staging left mixes with the next: $(ls stage-0/train)"
cp "data/train/$(ls data/train | head -1)" stage-0/train/mine.tfrecord
expect 3 "mine.tfrecord: is no staged file" ranks 4 "${stage[@]}" --output-dir s6
expect 2 "is --data-dir itself" ranks 2 "${train[@]}" --batch-size 1 --stage-dir data --output-dir s4

# Shares: every node keeps and reads training files of its own, and of the validation files those that its ranks see.
share=("${train[@]}" --batch-size 1 --stage-dir 'share-{node}' --stage-share --ranks-per-node 2)
expect 0 "staged 17 files as shares of 8 to 9" ranks 4 "${share[@]}" --output-dir h1 --save h1.safetensors
for part in "train 6 6 12" "validation 3 2 5"; do
  read -r folder first second both <<< "$part"
  found="$(ls share-0/$folder | wc -l) $(ls share-1/$folder | wc -l) $({ ls share-0/$folder; ls share-1/$folder; } | sort -u | wc -l)"
  [ "$found" = "$first $second $both" ] && ok || bad "shares of $folder: expected $first $second $both, found $found"
done
expect 0 "finished: 4 steps" ranks 4 "${share[@]}" --output-dir h2 --max-steps 4
expect 0 "17 files reused" ranks 4 "${share[@]}" --output-dir h2 --resume --save h2.safetensors
same h1.safetensors h2.safetensors
expect 2 "setting stage-share nodes: expected 2, found 4" ranks 4 "${share[@]}" --ranks-per-node 1 --output-dir h2 --resume
expect 2 "--stage-share: expected as many ranks on every node, found 2 and 1" ranks 3 "${share[@]}" --output-dir h3
expect 2 "--stage-share: expected a training file for each of 2 nodes, found 1" ranks 4 "${share[@]}" --n-train 1 --output-dir h3
expect 2 "--stage-dir one is that of several nodes: write {node}" ranks 2 "${share[@]}" --stage-dir one --ranks-per-node 1 --output-dir h3
expect 0 "wrote 17 samples" "$bin/convoy_data" convert data --out shards --format sharded-hdf5 --shard 4
expect 0 "each node trains on 4 to 8 samples of its own" ranks 4 "${share[@]}" --data-dir shards --output-dir h5
expect 0 "staged 5 files as shares of 2 to 4" ranks 4 "${share[@]}" --data-dir shards --output-dir h5 --resume
expect 2 "--stage-share has no effect without --stage-dir" "$bin/cosmoflow_train" "${common[@]}" --stage-share --output-dir h3
rm -r broken && cp -r data broken && truncate -s 3000 "broken/train/$(ls broken/train | tail -1)"
expect 3 "share-1/train/$(ls broken/train | tail -1)" ranks 4 "${share[@]}" --data-dir broken --output-dir h4
}
climate_over_ranks() {
# Climate segmentation, with batch-norm statistics over both ranks.
expect 0 "wrote" "$bin/climate_simulate" --orography none --height 64 --width 96 --days 2 --validation-days 2 --steps 2 --out weather
climate=("$bin/climseg_train$suffix" --data-dir weather --width-divisor 16 --crop 32x48 --crops-per-image 2 --max-epochs 2 --seed 4 --threads 1)
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c2 --batchnorm-group-size 2 --lr-scaling linear --trace
messages c2 "batch-norm statistics 0" bucket0  # of both communicators
# Milestones count steps, of which other ranks make other numbers.
for rule in "cosine_annealing --lr-t-max 6" "polynomial --lr-t-max 6 --lr-warmup-steps 1"; do
  # shellcheck disable=SC2086
  expect 0 "finished: 2 steps" ranks 2 "${climate[@]}" --lr-schedule $rule --output-dir "decays-${rule%% *}" --max-steps 2
done
expect 0 "--lr-t-max count steps of 1 samples from here on, of which 4 lie behind" "${climate[@]}" --output-dir decays-cosine_annealing --resume --max-steps 5
expect 0 "--lr-warmup-steps and --lr-t-max count steps of 1 samples" "${climate[@]}" --output-dir decays-polynomial --resume --lr-t-max 12 --max-steps 5
late=("${climate[@]}" --lr-schedule multistep --output-dir c10 --max-steps)
expect 0 "finished: 3 steps" ranks 2 "${late[@]}" 3 --lr-milestones 2
expect 0 "--lr-milestones count steps of 1 samples from here on" "${late[@]}" 7 --lr-milestones 4 --resume
expect 2 "setting lr-milestones: expected \"4\", found \"5\"" "${late[@]}" 7 --lr-milestones 5 --resume
expect 0 "staged 8 files as shares of 4 to 4" ranks 2 "${climate[@]}" --output-dir c9 --stage-dir 'sky-{node}' --stage-share --ranks-per-node 1 --max-steps 2
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c4 --batchnorm-group-size 2 --lr-scaling linear --recompute
columns same 3 c2/history.csv c4/history.csv
# Pictures are of the first validation images, whoever evaluates them.
expect 0 "4 images, masks" "$bin/climseg_predict" --data-dir weather --width-divisor 16 --threads 1 --checkpoint c2 --out c2masks
number=0
for image in weather/validation/*.h5; do
  same "c2masks/validation/$(basename "$image" .h5).png" "c2/validation-$number.png"
  number=$((number + 1))
done
# Three images are more than one rank's share of two; members of a team share their weights meanwhile.
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c6 --batch-norm-recalibration 3
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c7 --batch-norm-recalibration 3 --no-share-weights
columns same 3-5 c6/history.csv c7/history.csv
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c8
columns unlike 4 c6/history.csv c8/history.csv
expect 0 "finished" "$bin/climseg_train" "${climate[@]:1}" --output-dir c1 --local-batch-size 2 --lr-scaling linear
near 3 2e-2 c1/history.csv c2/history.csv
expect 2 "--batchnorm-group-size has no effect" ranks 2 "${climate[@]}" --model deeplab --output-dir c5 --batchnorm-group-size 2
expect 2 "do not divide into groups of 2" ranks 3 "${climate[@]}" --output-dir c3 --batchnorm-group-size 2
}
beside failing_mpi
beside mistakes_and_staging
beside climate_over_ranks
join_checks
conclude
