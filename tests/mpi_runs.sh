#!/usr/bin/env bash
# Several ranks end to end, where no time is measured: algorithms, the C interface, training, resume at another rank count,
# signals. Beside other tests. `short` leaves out what does not depend on the MPI library. LAUNCHER starts ranks where
# Debian's mpirun.openmpi or mpirun.mpich is missing.
# usage: mpi_runs.sh BUILD_DIR openmpi|mpich [full|short] [LAUNCHER]
set -u
build=$1 flavour=$2 extent=${3:-full} launcher=${4:-mpirun} silence=60  # others compute meanwhile
. "$(dirname "$0")/ranks.sh"

# Every algorithm checks its sums against whole numbers: a wrong one ends with 1.
for n in 2 3 4 5; do expect 0 "MPI_Allreduce" ranks $n "$bin/bench_comm$suffix" --min 4 --max 4194304 --factor 128 --seconds 0; done
expect 0 "hierarchical" ranks 4 "$bin/bench_comm$suffix" --ranks-per-node 2 --min 4 --max 1048576 --factor 64 --seconds 0 --table table --json comm.jsonl
present table comm.jsonl
# Few of them, beside what they are compared with.
ranks 2 "$bin/bench_comm$suffix" --size 4096 --seconds 0 --algorithms shared,ring > few.txt 2>&1
[ "$(awk '$1 == 4096 { print $2 }' few.txt | tr '\n' ' ')" = "shared ring MPI_Allreduce " ] && ok || bad "--algorithms shared,ring: $(cat few.txt)"
# A file that cannot be written is told at once, and not as a fault of the network.
expect 1 "nowhere/comm.jsonl: cannot open for writing" timeout 60 "$launcher" -n 2 "$bin/bench_comm$suffix" --min 4 --max 4 --json nowhere/comm.jsonl
# A rank without memory ends the others, too.
expect 1 "bench_comm: error: std::bad_alloc" timeout 60 "$launcher" -n 1 "$bin/bench_comm$suffix" --size 400000000 --seconds 0 : \
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
expect 0 "was written with [1,2] threads, found 1: from here on" ranks 2 env OMP_NUM_THREADS=1 "${own[@]}" --batch-size 1 --output-dir threads2 --resume
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
ranks 3 "${train[@]}" --batch-size 1 --n-epochs 500 --output-dir one_asked > one_asked.txt 2>&1 &
victim=$!
for _ in $(seq 3000); do [ -s one_asked/history.csv ] && break; sleep 0.02; done
kill -USR1 "$(pgrep -f "^$bin/cosmoflow_train$suffix .*output-dir one_asked" | sort -n | tail -1)"
wait $victim; rc=$?
[ $rc -eq 75 ] && ok || { bad "SIGUSR1 on one rank: exit $rc, expected 75"; tail -5 one_asked.txt >&2; }
expect 0 "resuming from" ranks 3 "${train[@]}" --batch-size 1 --n-epochs 500 --output-dir one_asked --resume --max-steps "$(($(wc -l < one_asked/metrics.jsonl) + 2))"

conclude
