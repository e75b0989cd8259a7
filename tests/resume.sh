#!/usr/bin/env bash
# What a run may count on when it is continued: settings, checkpoints that cannot be read, data that changed, two runs in
# one folder, files that cannot be written, logs of every start.   usage: resume.sh BIN_DIR
set -u
bin=$1
. "$(dirname "$0")/expect.sh"

expect 0 "wrote 12 + 4 universes" "$bin/cosmoflow_simulate" --out data --universes 12 --validation 4 --size 16 --steps 4
train=("$bin/cosmoflow_train" --data-dir data --batch-size 2 --n-epochs 3 --optimizer Adam --seed 5 --conv-size 8 --fc1-size 16 --fc2-size 8)
resume=("$bin/cosmoflow_train" --resume --output-dir)
expect 0 "finished: 18 steps" "${train[@]}" --output-dir whole --save whole.safetensors
"${train[@]}" --output-dir rates --n-epochs 1 > rates.txt &&
  grep -qE 'finished: 6 steps.*samples/s \([0-9.]* in the mean of all steps\)' rates.txt && ok || bad "no mean rate beside the median's"

# Settings that are not given are the checkpoint's, those that are must agree with it.
expect 0 "finished: 4 steps" "${train[@]}" --output-dir part --max-steps 4
expect 2 "setting optimizer: expected \"Adam\", found \"SGD\"" "${resume[@]}" part --optimizer SGD
for other in "augment cube" "seed 77" "dropout 0.25" "loss l1" "batch-size 3" "decay-schedule 1:0.5" "adam-eps 0.1"; do
  expect 2 "setting ${other% *}: expected" "${resume[@]}" part --${other% *} ${other#* }
done
expect 0 "settings of the checkpoint: --batch-size 2 --conv-size 8 --data-dir data" "${resume[@]}" part --max-steps 5
expect 0 "finished: 13 steps" "${resume[@]}" part --save part.safetensors
same whole.safetensors part.safetensors
columns same 1-5 whole/history.csv part/history.csv

# Every start has a log of its own, with one beginning and one end.
for log in mlperf mlperf-1 mlperf-2; do
  grep -o '"key":"\(init_stop\|run_start\|run_stop\)"' part/$log.log > keys.txt
  [ "$(tr -d '\n' < keys.txt)" = '"key":"init_stop""key":"run_start""key":"run_stop"' ] && ok || bad "part/$log.log: $(cat keys.txt)"
done
# Who resumes a finished run has no steps to report.
cp part/summary.json before.json
expect 0 "finished: 0 steps" "${resume[@]}" part
same before.json part/summary.json
# Its log ends also where a signal comes while the weights are judged, here as the log is opened.
cat > early.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
static FILE *opened(const char *which, const char *path, const char *mode) {
  if (strstr(path, "/mlperf-")) raise(SIGUSR1);
  return ((FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, which))(path, mode);
}
FILE *fopen(const char *path, const char *mode) { return opened("fopen", path, mode); }
FILE *fopen64(const char *path, const char *mode) { return opened("fopen64", path, mode); }
C
cc -shared -fPIC -o early.so early.c -ldl
expect 75 "" env LD_PRELOAD="$work/early.so" "${resume[@]}" part
last=$(ls part/mlperf-*.log | sort -t- -k2 -n | tail -1)
grep -q '"key":"run_stop".*aborted' "$last" && ok || bad "no run_stop in the log of a run that was stopped in its last validation: $(cat "$last")"
# What a disk refuses to keep is told, also a folder's names; some file systems cannot be asked for those.
cat > folder.c <<'C'
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
int fsync(int file) {
  struct stat of;
  if (fstat(file, &of) != 0 || !S_ISDIR(of.st_mode)) return 0;
  errno = atoi(getenv("FOLDERS_FAIL"));
  return -1;
}
C
cc -shared -fPIC -o folder.so folder.c
refusing() { env LD_PRELOAD="$work/folder.so" FOLDERS_FAIL="$1" "${train[@]}" --n-epochs 1 --output-dir "folder$1"; }
expect 0 "finished: 6 steps" refusing 22   # EINVAL
expect 1 "cannot sync to disk: Input/output error" refusing 5

# The checkpoint of another run: the same bits in another folder, whose own checkpoints come first afterwards.
branch=("$bin/cosmoflow_train" --checkpoint whole/checkpoint-000000012.h5 --output-dir)
sum=$(cat whole/* | cksum)
expect 0 "finished: 6 steps" "${branch[@]}" branch --save branch.safetensors
same whole.safetensors branch.safetensors
columns same 1-5 whole/history.csv branch/history.csv
[ "$(cat whole/* | cksum)" = "$sum" ] && ok || bad "a run that was branched off was changed"
expect 2 "branch holds checkpoints of another run" "${branch[@]}" branch
expect 0 "finished: 0 steps" "${branch[@]}" branch --resume
expect 0 "resuming from whole/checkpoint-000000012.h5" "${branch[@]}" branch2 --resume --max-steps 13
# What a run without checkpoints has left is none of the branch's steps.
mkdir begun && echo '{"step":3,"loss":9}' > begun/metrics.jsonl
expect 0 "resuming from whole/checkpoint-000000012.h5" "${branch[@]}" begun --resume --max-steps 13
[ "$(grep -o '"step":[0-9]*' begun/metrics.jsonl)" = '"step":12' ] && ok || bad "steps of a branch: $(cat begun/metrics.jsonl)"
expect 2 "--checkpoint: whole/checkpoint-000000012.h5: setting lr: expected \"0.001\", found \"0.5\"" "${branch[@]}" x --lr 0.5
expect 2 "--init has no effect on a run that continues a checkpoint" "${branch[@]}" x --init whole.safetensors
expect 3 "none.h5: no such file" "${train[@]}" --checkpoint none.h5 --output-dir x
head -c 1000 whole/checkpoint-000000012.h5 > cut.h5
expect 3 "cut.h5: not an HDF5 file, truncated or damaged" "${train[@]}" --checkpoint cut.h5 --output-dir x

# A checkpoint that cannot be read is no damaged one: nothing is undone, nothing begins anew.
cp -r whole locked
flock -x locked/checkpoint-000000018.h5 sleep 600 & holder=$!
for _ in $(seq 100); do flock -n locked/checkpoint-000000018.h5 true || break; sleep 0.05; done
expect 3 "locked/checkpoint-000000018.h5: cannot open: another process holds a lock on it" "${resume[@]}" locked --n-epochs 4
kill $(pgrep -P $holder) 2> /dev/null; kill $holder 2> /dev/null; wait $holder 2> /dev/null
cp -r whole unreadable; mkdir unreadable/checkpoint-000000019.h5
expect 3 "unreadable/checkpoint-000000019.h5: cannot read: Is a directory" "${resume[@]}" unreadable --n-epochs 4
cp -r whole damaged
for file in damaged/checkpoint-*.h5; do truncate -s 1000 "$file"; done
sum=$(cat damaged/* | cksum)
expect 3 "damaged: no checkpoint is intact: damaged/checkpoint-000000018.h5: not an HDF5 file, truncated or damaged; damaged/checkpoint-000000012.h5" "${resume[@]}" damaged --data-dir data
[ "$(cat damaged/* | cksum)" = "$sum" ] && ok || bad "a run without an intact checkpoint was changed"
expect 0 "no checkpoint in fresh: starting from the beginning" "${train[@]}" --output-dir fresh --resume --max-steps 1
cp -r whole line; echo 5 >> line/metrics.jsonl
expect 3 "line/metrics.jsonl:19: expected an object with a step, found 5" "${resume[@]}" line --n-epochs 4

# The samples must be those of before; a file that was repaired is one of them.
expect 0 "wrote" "$bin/cosmoflow_simulate" --out others --universes 12 --validation 4 --size 16 --steps 4 --seed 9
expect 3 "trained on other samples: 16 of 16 files" "${resume[@]}" whole --n-epochs 4 --data-dir others
cp -r data renamed; mv renamed/train/univ_0000003_000.tfrecord renamed/train/univ_0000003_001.tfrecord
expect 3 "trained on other samples" "${resume[@]}" whole --n-epochs 4 --data-dir renamed

# A bad validation file costs no epoch: the resumed run begins with the validation and ends as one that never stopped.
cp -r data repaired
head -c 900 data/validation/univ_0000015_000.tfrecord > repaired/validation/univ_0000015_000.tfrecord
expect 3 "univ_0000015_000.tfrecord" "${train[@]}" --data-dir repaired --output-dir late
expect 3 "univ_0000015_000.tfrecord" "${resume[@]}" late
cp data/validation/univ_0000015_000.tfrecord repaired/validation/
expect 0 "1 of 16 files have other contents than before, the first univ_0000015_000.tfrecord" "${resume[@]}" late --save late.safetensors
same whole.safetensors late.safetensors
[ "$(wc -l < late/metrics.jsonl)" -eq 18 ] && ok || bad "an epoch was repeated: $(wc -l < late/metrics.jsonl) steps"
columns same 1-5 whole/history.csv late/history.csv
# Only as many checkpoints as asked for stay, although one is there ahead of the validation.
expect 0 "finished" "${train[@]}" --output-dir one --keep-checkpoints 1
[ "$(ls one/checkpoint-*.h5 | wc -l)" -eq 1 ] && ok || bad "--keep-checkpoints 1 keeps $(ls one/checkpoint-*.h5)"

# Hang-ups, where nohup has started this test (coreutils 8.31).
heard=(env --default-signal=HUP)
"${heard[@]}" true 2> /dev/null || heard=()
# One run at a time in a folder. What a killed one leaves is taken over, signals leave nothing.
start() { # FOLDER: a long run in the background, whose process is $victim
  setsid "${heard[@]}" "${train[@]}" --n-epochs 100000 --output-dir "$1" > /dev/null 2>&1 &
  for _ in $(seq 500); do [ -s "$1/history.csv" ] && break; sleep 0.02; done
  victim=$(awk '$1 == "process" { print $2 }' "$1/run.lock")
}
start live
for again in "--n-epochs 100000" --resume; do
  expect 2 "live/run.lock: process $victim on host $(hostname) is writing to this folder" "${train[@]}" --output-dir live $again
done
kill -9 "$victim"; wait 2> /dev/null
expect 0 "live/run.lock: process $victim on host $(hostname) is gone" "${resume[@]}" live --max-steps 1
start hung; kill -HUP "$victim"; wait 2> /dev/null
[ ! -e live/run.lock ] && [ ! -e hung/run.lock ] && ok || bad "a lock outlives its run"
# Who asks again two seconds later does not wait for what takes long, here a disk that never answers; launchers ask twice at once.
cat > hold.c <<'C'
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int fsync(int file) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (readlink(link, path, sizeof path - 1) < 0 || !strstr(path, "/checkpoint-")) return 0;
  close(open("held", O_CREAT | O_WRONLY, 0600));
  for (;;) pause();
}
C
cc -shared -fPIC -o hold.so hold.c
LD_PRELOAD=$work/hold.so "${train[@]}" --output-dir impatient > /dev/null 2>&1 & victim=$!
for _ in $(seq 500); do [ -e held ] && break; sleep 0.02; done
kill -TERM $victim; sleep 0.2; kill -INT $victim; sleep 2.3
kill -0 $victim && ok || bad "two signals at once end a run that saves"
kill -TERM $victim
for _ in $(seq 100); do kill -0 $victim 2> /dev/null || break; sleep 0.05; done
kill -KILL $victim 2> /dev/null; wait $victim 2> /dev/null; rc=$?
[ $rc -eq 143 ] && [ ! -e impatient/run.lock ] && ok || bad "a second SIGTERM: exit $rc, expected 143 and no lock: $(ls impatient)"
expect 3 "no such folder" "${train[@]}" --data-dir nowhere --output-dir never
[ ! -e never ] && ok || bad "a run that never began leaves a folder"
# Two names of one rate: the flag that won over the file wins again; seeds below 0 are numbers, too.
printf 'optimizer:\n  lr: 0.01\n' > both.yaml
expect 0 "finished: 1 steps" "$bin/cosmoflow_train" both.yaml "${train[@]:1}" --lr 0.001 --seed -1 --max-steps 1 --output-dir both
expect 0 "lr 0.001" "${resume[@]}" both --max-steps 2
# The rate by its older name alone is the checkpoint's, too.
expect 0 "finished: 1 steps" "${train[@]}" --optimizer-lr 0.0123 --max-steps 1 --output-dir older
expect 0 "lr 0.0123  loss" "${resume[@]}" older --max-steps 2
# Weights to begin with are of the first start: the file may be gone when a job comes back.
cp whole.safetensors first.safetensors
expect 0 "finished: 1 steps" "${train[@]}" --init first.safetensors --resume --max-steps 1 --output-dir given
rm first.safetensors
expect 0 "weights are the checkpoint's" "${train[@]}" --init first.safetensors --resume --max-steps 2 --output-dir given
# Other kernels round otherwise: the run goes on, and says so.
expect 0 "finished: 2 steps" env CONVOY_MAX_ISA=scalar "${train[@]}" --output-dir moved --max-steps 2
expect 0 "warning: moved/checkpoint-000000002.h5: was written by a run on other kernels" "${resume[@]}" moved --max-steps 3
without 0 "on other kernels" "${resume[@]}" moved --max-steps 4
# A run that no longer improves, and one that is good enough.
expect 0 "stopped early" "${train[@]}" --output-dir stuck --n-epochs 9 --early-stopping 2 --lr 1e-12
[ "$(wc -l < stuck/history.csv)" -eq 4 ] && ok || bad "patience of 2 stopped after $(wc -l < stuck/history.csv) lines, expected 4"
expect 0 "target reached" "${train[@]}" --output-dir reached --target-mae 0.9
[ "$(wc -l < reached/history.csv)" -eq 2 ] && ok || bad "a target reached at once did not stop: $(cat reached/history.csv)"
# The log ends, whatever ends the run.
expect 4 "not finite" "${train[@]}" --output-dir diverged --lr 1e30 --optimizer SGD
grep -q '"key":"run_stop".*aborted' diverged/mlperf.log && ok || bad "no run_stop in the log of a run that diverged"
# A line that cannot be written ends the run, behind a checkpoint of its last step.
expect 0 "finished: 1 steps" "${train[@]}" --output-dir lines --max-steps 1
yes '{"step":0}' | head -c 1048000 >> lines/metrics.jsonl  # which ends just below what a file may have
expect 1 "metrics.jsonl: cannot write (disk full?); step " bash -c 'ulimit -f 1024; exec "$@"' run "${resume[@]}" lines --n-epochs 20
[ "$(ls lines/checkpoint-*.h5 | tail -1 | grep -o '[1-9][0-9]*\.h5')" != 1.h5 ] && ok || bad "no checkpoint of a run that could not log: $(ls lines)"
mkdir piped && mkfifo piped/metrics.jsonl
expect 1 "piped/metrics.jsonl: expected a file or none, found a device or a pipe" timeout 20 "${train[@]}" --output-dir piped
mkdir piped2 && mkfifo piped2/run.lock
expect 1 "piped2/run.lock: expected a file or none, found a device or a pipe" timeout 20 "${train[@]}" --output-dir piped2
# Pictures come behind what cannot be made again.
mkdir -p pictures/loss.svg
expect 1 "pictures/loss.svg: expected a file or none, found a folder" "${train[@]}" --output-dir pictures --save pictures.safetensors
same whole.safetensors pictures.safetensors
present pictures/summary.json
# A staging that is broken off leaves its names: another data set takes its place.
cp -r data big && head -c 300000 /dev/zero > big/train/zz.tfrecord
expect 1 "staged/train/zz.tfrecord: " bash -c 'ulimit -f 128; exec "$@"' run "${train[@]}" --data-dir big --stage-dir staged --output-dir never
[ "$(ls staged/train | wc -l)" -gt 2 ] && ok || bad "nothing was staged before the disk was full"
rm "data/train/$(ls data/train | head -1)" && expect 0 "staged 15 files" "${train[@]}" --stage-dir staged --max-steps 1 --output-dir stages
# Programs that know nothing of ranks, started as several.
for launched in "cosmoflow_simulate --out sim" "cosmoflow_predict --checkpoint whole --data-dir data" "climate_simulate --out sky" \
  "climseg_predict --checkpoint whole --data-dir sky" "convoy_data stats data --out s.h5"; do
  expect 2 "expected a single task, found OMPI_COMM_WORLD_SIZE=2" env OMPI_COMM_WORLD_SIZE=2 "$bin/"$launched
done

# Where weights cannot be saved is known before the first step.
expect 1 "--save: nowhere/w.safetensors: cannot create: No such file" "${train[@]}" --output-dir never --save nowhere/w.safetensors
expect 1 "--save: data: expected a file, found a folder" "${train[@]}" --output-dir never --save data
# Weights that are not finite predict nothing.
header=$(od -An -tu8 -N8 whole.safetensors)
cp whole.safetensors nan.safetensors; printf '\0\0\300\177' | dd of=nan.safetensors bs=1 seek=$((8 + header)) conv=notrunc 2> /dev/null
expect 4 "the prediction is not finite" "$bin/cosmoflow_predict" --weights nan.safetensors --data-dir data --conv-size 8 --fc1-size 16 --fc2-size 8

# A validation that takes long is left where the run is asked to stop, also at a hang-up; a resume begins with it.
# Of 2048 links to one sample it takes two seconds or more on two cores.
mkdir many many/validation; cp -r data/train many/train
ln "$(ls data/validation/* | head -1)" many/validation/v.tfrecord
for i in $(seq 11); do cp -rl many/validation twice && mv twice many/validation/$i; done
many=("${train[@]}" --data-dir many --n-epochs 2 --checkpoint-epochs 2)
expect 0 "finished: 10 steps" "${many[@]}" --output-dir unstopped --save unstopped.safetensors
"${heard[@]}" "${many[@]}" --output-dir stopped > stopped.txt 2>&1 & victim=$!
for _ in $(seq 3000); do grep -qs eval_start stopped/mlperf.log && break; sleep 0.02; done
grep -qs eval_start stopped/mlperf.log || bad "no validation begins: $(cat stopped.txt)"
kill -HUP $victim; wait $victim; rc=$?
[ $rc -eq 75 ] && ! grep -q eval_stop stopped/mlperf.log && ok || bad "a hang-up during a validation: exit $rc: $(cat stopped.txt)"
expect 0 "finished: 5 steps" "${resume[@]}" stopped --save stopped.safetensors
same unstopped.safetensors stopped.safetensors
columns same 1-5 unstopped/history.csv stopped/history.csv
conclude
