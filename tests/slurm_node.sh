#!/usr/bin/env bash
# Runs the Slurm template on this machine alone: Debian's slurm-wlm as a cluster of one node, a job of two ranks that is
# signalled ahead of its time limit, saves, asks to be queued again and goes on from its checkpoint. Needs root; installs
# slurm-wlm and munge where missing.   usage: slurm_node.sh BUILD_DIR
set -u
bin=$(cd "$1/bin" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
[ "$(id -u)" -eq 0 ] || { echo "needs root"; exit 2; }
command -v slurmctld munged > /dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge > /dev/null || exit 1
. "$source/tests/expect.sh"
stop() { pkill -F slurmd.pid 2> /dev/null; pkill -F slurmctld.pid 2> /dev/null; pkill -F munged.pid 2> /dev/null; cd /; rm -rf "$work"; }
trap stop EXIT

mkdir -p spool state munge
chmod 700 munge
head -c 1024 /dev/urandom > munge/key
chmod 600 munge/key
munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munged.pid" \
  --log-file="$work/munge/log" --seed-file="$work/munge/seed" || exit 1
export SLURM_CONF=$work/slurm.conf
cat > slurm.conf <<C
ClusterName=one
SlurmctldHost=$(hostname -s)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=pmi2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=5
ReturnToService=2
NodeName=$(hostname -s) CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
C
slurmctld && slurmd || { tail -n 5 slurmctld.log; exit 1; }
for _ in $(seq 100); do sinfo -h -o %T 2> /dev/null | grep -q idle && break; sleep 0.2; done
sinfo -h -o %T | grep -q idle && ok || { bad "the node does not come up"; tail -n 5 slurmctld.log; conclude; exit 1; }

expect 0 "wrote" "$bin/cosmoflow_simulate" --out data --universes 12 --validation 4 --size 16 --steps 4
# srun speaks PMI-2, which MPICH's build understands; so few epochs per second that the limit comes first.
export BIN=$work/bin DATA=$work/data OUT=$work/out MAX_RESTARTS=1
mkdir bin
printf '#!/bin/sh\necho "CPUs of a rank: $SLURM_CPUS_PER_TASK"\nexec %s/cosmoflow_train_mpich "$@"\n' "$bin" > bin/cosmoflow_train
chmod +x bin/cosmoflow_train
export LAUNCH="srun --mpi=pmi2 --kill-on-bad-exit=0"
sbatch --ntasks=2 --ntasks-per-node=2 --time=2 --signal=B:USR1@90 --output="$work/job.txt" --export=ALL "$source/apps/launch/slurm.sh" \
  --n-epochs 100000 --batch-size 1 --threads 1 --fc1-size 16 --fc2-size 8 > submitted.txt || { bad "sbatch"; conclude; exit 1; }
grep -q Submitted submitted.txt && ok || bad "not submitted"
job=$(grep -oE '[0-9]+' submitted.txt)
for _ in $(seq 150); do grep -q "queueing again" job.txt 2> /dev/null && break; sleep 1; done
grep -q "2 ranks on 1 nodes" job.txt && ok || bad "the ranks did not find each other"
[ "$(grep -c "^CPUs of a rank: $(($(nproc) / 2))$" job.txt)" -ge 2 ] && ok || bad "two ranks do not have all cores of the node: $(grep -m 2 "CPUs of" job.txt)"
grep -q "^interrupted:" job.txt && ok || bad "the ranks were not asked to stop"
grep -q "exit code 75: queueing again (restart 0)" job.txt && ok || bad "exit code 75 did not queue the job again"
# Slurm lets a requeued job wait for two minutes; that wait is not what is tested.
for _ in $(seq 200); do
  grep -q "resuming from" job.txt && break
  scontrol update JobId="$job" StartTime=now 2> /dev/null
  sleep 1
done
grep -q "resuming from $work/out/checkpoint-" job.txt && ok || bad "the second start did not resume"
scancel "$job" 2> /dev/null
# The daemons end the ranks: they are stopped last.
for _ in $(seq 100); do squeue -h -j "$job" 2> /dev/null | grep -q . || break; sleep 0.2; done
[ $failed -eq 0 ] || for log in job.txt slurmctld.log; do tail -n 20 $log; done
conclude
