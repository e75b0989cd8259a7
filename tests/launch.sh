#!/usr/bin/env bash
# The job scripts of apps/launch with stand-ins for schedulers and launchers: who is queued again, and how often.
set -u
source=$(cd "$(dirname "$0")/.." && pwd)
. "$source/tests/expect.sh"
mkdir tools out
export PATH=$work/tools:$PATH BIN=$work DATA=data OUT=$work/out SLURM_JOB_ID=7 PBS_NODEFILE=$work/nodes PBS_O_WORKDIR=$work
unset LAUNCH TIME_LIMIT FLAGS TRAINER OMPI_MCA_hwloc_base_binding_policy PBS_WALLTIME \
  SLURM_CPUS_ON_NODE SLURM_NTASKS_PER_NODE SLURM_TASKS_PER_NODE SLURM_CPUS_PER_TASK
printf 'a\na\n' > nodes
tool() { cat > "tools/$1"; chmod +x "tools/$1"; }
# A launcher of ranks: ends with $CODE, leaves the mark of a lost rank where $MARK asks for it, or waits for its signal.
tool launcher <<'T'
#!/usr/bin/env bash
trap 'exit 75' USR1
printf '%s\n' "$*" > started.txt
env > environment.txt
[ -n "${MARK:-}" ] && touch "$OUT/lost"
if [ -n "${WAITS:-}" ]; then for _ in $(seq 100); do sleep 0.1; done; fi
exit "${CODE:-0}"
T
for name in srun mpirun; do ln -s launcher tools/$name; done
printf '#!/bin/sh\necho scontrol "$@" RESTARTS=$RESTARTS\n' | tool scontrol
# Like OpenPBS it sends no variable that is not set, and no script that is not there.
tool qsub <<'T'
#!/usr/bin/env bash
names=$2 sent=
for name in ${names//,/ }; do
  [ -n "${!name+set}" ] || { echo "qsub: cannot send environment with the job"; exit 1; }
  sent+=" $name=${!name}"
done
[ -f "${!#}" ] || { echo "qsub: script file:: No such file or directory"; exit 1; }
echo qsub "$@" "$sent"
T
tool flux <<'T'
#!/usr/bin/env bash
case "$1" in resource) echo 2 ;; job) echo "${LEFT:-5400}" ;; run) shift; launcher "$@" ;; *) echo flux "$@" RESTARTS=$RESTARTS ;; esac
T

again() { # TEXT CODE NAME: the script asks for another start
  rm -f out/lost
  expect "$2" "$1" "$source/apps/launch/$3.sh" --seed 5
}
for name in slurm flux pbs; do
  case $name in slurm) text='scontrol requeue 7' ;; flux) text='flux --parent batch -N 2' ;; pbs) text='qsub -v BIN' ;; esac
  CODE=75 again "$text" 75 $name
  CODE=76 again "$text" 76 $name
  # Launchers return the code of the rank that was killed.
  CODE=137 MARK=yes again "$text" 137 $name
  # An error of the program's own, and a finished run, are not started again, whatever an earlier run has left.
  for code in 0 1 3; do
    touch out/lost
    said=$(CODE=$code "$source/apps/launch/$name.sh" 2>&1); rc=$?
    [ $rc -eq $code ] && [ -z "$said" ] && ok || bad "$name: exit $rc, expected $code and no word: $said"
  done
  # Not for ever.
  said=$(CODE=76 RESTARTS=2 SLURM_RESTART_COUNT=2 MAX_RESTARTS=2 "$source/apps/launch/$name.sh" 2>&1); rc=$?
  [ $rc -eq 76 ] && [ -z "$said" ] && ok || bad "$name: no limit of restarts: $said"
  rm -f out/*
  touch out/checkpoint-3.h5
  CODE=75 again "$text" 75 $name
  grep -q -- --resume started.txt && ok || bad "$name does not resume"
  rm out/checkpoint-3.h5
done
CODE=76 again 'RESTARTS=1' 76 flux
CODE=76 again 'RESTARTS=1' 76 pbs
CODE=76 FLAGS='--decay-schedule 9:0.4,12:0.15' again 'FLAGS=--decay-schedule 9:0.4,12:0.15' 76 pbs
CODE=76 TRAINER=climseg_train again 'TRAINER=climseg_train' 76 pbs
CODE=76 CONVOY_COMPUTE=bf16 again 'CONVOY_COMPUTE=bf16' 76 pbs
# PBS runs a copy that goes with the job, in a folder that has no script: the one that is submitted stays.
rm -f out/*
mkdir spool
for from in "$source/apps/launch" out; do
  cp "$from/pbs.sh" spool/7.SC
  CODE=75 expect 75 "$work/out/pbs.sh" "$work/spool/7.SC"
  rm spool/7.SC
  same out/pbs.sh "$source/apps/launch/pbs.sh"
done

# Every rank gets its share of the node's cores.
started() { # NAME PATTERN [no]: what the script starts ranks with has the pattern, or has not
  local found=yes
  rm -f started.txt environment.txt  # of the start before
  "$source/apps/launch/$1.sh" > /dev/null 2>&1
  grep -qE -- "$2" started.txt || found=no
  [ -s started.txt ] || found=nothing
  if [ $found = "${3:-yes}" ]; then ok; else bad "$1: expected ${3:-} $2 in: $(cat started.txt)"; fi
}
grep -q '^#SBATCH --exclusive' "$source/apps/launch/slurm.sh" && ok || bad "Slurm gives a job the cores that it names, not those of the node"
export SLURM_CPUS_ON_NODE=64
SLURM_NTASKS_PER_NODE=2 started slurm '^--cpus-per-task=32 --kill'
SLURM_TASKS_PER_NODE='3(x4)' started slurm '^--cpus-per-task=21 '
SLURM_NTASKS_PER_NODE=2 SLURM_CPUS_PER_TASK=8 started slurm '^--cpus-per-task=8 '
SLURM_NTASKS_PER_NODE=2 LAUNCH='srun --mpi=pmi2 -c 4' started slurm '^--cpus-per-task=32 --mpi=pmi2 -c 4 ' # the last one counts
SLURM_NTASKS_PER_NODE=2 LAUNCH=mpirun started slurm cpus-per-task no
SLURM_NTASKS_PER_NODE=65 started slurm cpus-per-task no
started slurm cpus-per-task no
unset SLURM_CPUS_ON_NODE
SLURM_NTASKS_PER_NODE=2 started slurm cpus-per-task no
started flux '--exclusive --tasks-per-node=2 -o cpu-affinity=per-task'
awk -F'[:=]' '/^#PBS -l select/ { for (i = 2; i < NF; ++i) has[$i] = $(i + 1) } END { exit !(has["ncpus"] == has["mpiprocs"] * has["ompthreads"]) }' \
  "$source/apps/launch/pbs.sh" && ok || bad "PBS: ranks have other numbers of threads than cores"
started pbs '^-n 2 '
grep -q '^OMPI_MCA_hwloc_base_binding_policy=none' environment.txt && ok || bad "Open MPI binds ranks under PBS"
LAUNCH='mpirun --map-by slot:PE=32' started pbs '^--map-by slot:PE=32 -n 2 '
[ -s environment.txt ] && ! grep -q '^OMPI_MCA_hwloc' environment.txt && ok || bad "PBS: LAUNCH does not decide how ranks are bound"

# The next job gets as much time as the one before.
CODE=75 again '--time-limit=5400s' 75 flux
CODE=75 TIME_LIMIT=2h again '--time-limit=2h' 75 flux
LEFT=none CODE=75 again '--time-limit=14400s' 75 flux
LEFT=4294967295 CODE=75 again 'flux --parent batch -N 2 /' 75 flux
# Slurm's early signal reaches the launcher, whatever it is; PBS has none, the script asks by itself.
for launch in srun mpirun; do
  rm started.txt
  WAITS=yes LAUNCH=$launch "$source/apps/launch/slurm.sh" > slurm.txt 2>&1 &
  for _ in $(seq 100); do [ -s started.txt ] && break; sleep 0.05; done
  sleep 0.1
  kill -USR1 $!
  wait $!; rc=$?
  [ $rc -eq 75 ] && grep -q 'scontrol requeue 7' slurm.txt && ok || bad "$launch: exit $rc at the signal, expected 75: $(cat slurm.txt)"
done
grep -q '^#SBATCH --signal=B:USR1@' "$source/apps/launch/slurm.sh" && ok || bad "Slurm signals job steps, of which mpirun has none on its own node"
WAITS=yes PBS_WALLTIME=2 again 'qsub -v BIN' 75 pbs
# Jobs shorter than the time that saving may take are asked half way.
printf '#!/bin/sh\necho "$3" > "$OUT/asked"\nshift 3\nexec "$@"\n' | tool timeout
asked() { # WALLTIME SECONDS
  PBS_WALLTIME=$1 "$source/apps/launch/pbs.sh" > /dev/null 2>&1
  [ "$(cat out/asked)" = "$2" ] && ok || bad "PBS: walltime $1: expected a signal after $2 s, found $(cat out/asked)"
}
asked 14400 14100
asked 601 301
asked 300 150
asked 1 1
rm tools/timeout
LEFT=5400 started flux '--signal=USR1@300s '
LEFT=120.5 started flux '--signal=USR1@60s '
conclude
