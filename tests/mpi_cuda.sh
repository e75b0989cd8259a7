#!/usr/bin/env bash
# Several ranks on CUDA devices, which may be one: gradients through the host and from device to device.
# usage: mpi_cuda.sh BUILD_DIR LAUNCHER [SUFFIX]
set -u
bin=$1/bin launcher=$2 suffix=${3:-}
. "$(cd "$(dirname "$0")" && pwd)/expect.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
ranks() { local n=$1; shift; timeout 120 "$launcher" -n "$n" "$@"; }
same_losses() {
  if [ -n "$(losses "$1")" ] && cmp -s <(losses "$1") <(losses "$2"); then ok; else bad "the losses of $1 and $2 differ"; fi
}

train=("$bin/cosmoflow_train$suffix" --data dummy --size 32 --n-epochs 2 --batch-size 2 --dropout 0 --compute bf16 --device cuda)
if ! "${train[@]}" --summary > summary.txt 2>&1; then
  grep -E "device cuda: (no device|this build has no CUDA)" summary.txt && echo "skipped: no CUDA device" && exit 77
  bad "$(tail -3 summary.txt)"
  conclude
  exit 1
fi
# Dummy samples are the same on every rank: means over two ranks are the values of one.
expect 0 "finished: 8 steps" "${train[@]}" --n-train 8 --output-dir one
expect 0 "gradients go from device to device" ranks 2 "${train[@]}" --n-train 16 --output-dir two
expect 0 "gradients go through the host" ranks 2 "${train[@]}" --n-train 16 --no-peer-access --output-dir host
expect 0 "gradients go through the host" ranks 2 "${train[@]}" --n-train 16 --ranks-per-node 1 --output-dir nodes
expect 0 "gradients go through the host (--all-reduce)" ranks 2 "${train[@]}" --n-train 16 --all-reduce direct --output-dir direct
expect 2 "--peer-access: all ranks on one node only" ranks 2 "${train[@]}" --n-train 16 --ranks-per-node 1 --peer-access --output-dir never
for run in two host nodes direct; do same_losses one $run; done
expect 0 "finished: 8 steps" ranks 2 "${train[@]}" --n-train 16 --output-dir profiled --profile
same_losses one profiled
expect 0 "finished: 4 steps" ranks 2 "${train[@]}" --n-train 16 --output-dir resumed --max-steps 4 --no-peer-access
expect 0 "finished: 4 steps" ranks 2 "${train[@]}" --n-train 16 --output-dir resumed --resume
same_losses one resumed
# Settings that a run is continued with: the device, but not who reads whose.
expect 0 "finished: 4 steps" ranks 2 "${train[@]}" --n-train 16 --output-dir again --max-steps 4
expect 0 "gradients go through the host" ranks 2 "$bin/cosmoflow_train$suffix" --output-dir again --resume --no-peer-access
same_losses one again
expect 0 "finished: 4 steps" ranks 2 "${train[@]}" --n-train 16 --output-dir fewer --max-steps 4
expect 0 "finished" "$bin/cosmoflow_train$suffix" --output-dir fewer --resume
# Three ranks round: both ways add in rank order.
expect 0 "gradients go from device to device" ranks 3 "${train[@]}" --n-train 24 --output-dir three
expect 0 "gradients go through the host" ranks 3 "${train[@]}" --n-train 24 --no-peer-access --output-dir three_host
same_losses three three_host
expect 0 "finished: 8 steps" ranks 2 "${train[@]}" --n-train 32 --gradient-accumulation-frequency 2 --gradient-wire bf16 --output-dir narrow

climate=("$bin/climseg_train$suffix" --data dummy --image-size 64x96 --width-divisor 4 --n-train 8 --max-epochs 1 --compute bf16 --device cuda)
expect 0 "gradients go from device to device" ranks 2 "${climate[@]}" --output-dir climate --batchnorm-group-size 2
conclude
