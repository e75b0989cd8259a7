#!/usr/bin/env bash
# Flags that no other test gives: each does something, or leaves alone what it should, beside the same run without it.
# usage: flags.sh BIN_DIR
set -u
bin=$1
. "$(dirname "$0")/expect.sh"
runs=0
# start COMMAND...: into a new folder, whose name it leaves in $run.
start() { run=run$((runs += 1)); expect 0 "finished" "$@" --output-dir $run; }
# once COMMAND...: the same, but a command that has run is not run again. Checkpoints are what takes room.
declare -A known
once() {
  if [ -z "${known[$*]:-}" ]; then start "$@"; rm -f $run/checkpoint-*.h5; known[$*]=$run; fi
  run=${known[$*]}
}
# changes/keeps FLAGS -- COMMAND...: losses of the command with the flags differ from, or are, those without, in $plain.
compare() {
  local how=$1; shift
  local flags=(); while [ "$1" != -- ]; do flags+=("$1"); shift; done; shift
  once "$@"; plain=$run
  start "$@" "${flags[@]}"
  rm -f $run/checkpoint-*.h5
  if [ -z "$(losses $plain)" ] || [ -z "$(losses $run)" ]; then bad "no losses: ${flags[*]}"; return; fi
  if [ "$(losses $plain)" = "$(losses $run)" ]; then local found=keeps; else local found=changes; fi
  if [ $found = "$how" ]; then ok; else bad "${flags[*]} $found the losses, expected that it $how them"; fi
}
changes() { compare changes "$@"; }
keeps() { compare keeps "$@"; }
# fact RUN KEY: a number of its summary.
fact() { grep -o "\"$2\": [0-9.]*" "$1/summary.json" | head -1 | grep -o '[0-9.]*$'; }
less() { if awk "BEGIN { exit !($1 < $2) }"; then ok; else bad "$3: expected $1 < $2"; fi; }
# differ FLAGS FOLDER FOLDER: the first files of both.
differ() { unlike "$1" "$(ls "$2"/* | head -1)" "$(ls "$3"/* | head -1)"; }
mllog() { if grep -q "\"key\":\"$2\".*\"value\":$3}" "$1/mlperf.log"; then ok; else bad "no $2 of $3 in $1/mlperf.log"; fi; }

cosmo=("$bin/cosmoflow_train" --data dummy --size 16 --conv-size 8 --n-train 8 --n-epochs 2 --batch-size 2 --dropout 0)
changes --adam-eps 0.1 -- "${cosmo[@]}" --optimizer Adam
for larc in LARC-SGD LARC-Adam; do changes --larc-eta 0.02 -- "${cosmo[@]}" --optimizer $larc; done
# A step's samples, of all its passes, decide the rate.
start "${cosmo[@]}" --lr 0.001 --lr-scaling linear --base-batch-size 2 --gradient-accumulation-frequency 2
mllog $run opt_base_learning_rate 0.002
awk "BEGIN { exit !(($(fact $run samples_per_second) * $(fact $run median_step_seconds) - 4) ^ 2 < 1e-6) }" && ok || bad "samples of two passes: $(fact $run samples_per_second) a second"
[ "$(sed -n 2p $run/history.csv | cut -d, -f2)" = 0.002 ] && ok || bad "rate of two passes: $(sed -n 2p $run/history.csv)"
changes --max-grad-norm 0.0000001 -- "${cosmo[@]}" --optimizer LAMB
expect 2 "--shuffle has no effect on dummy data" "${cosmo[@]}" --no-shuffle --output-dir never
changes --kernel-size 2 -- "${cosmo[@]}"
keeps --deterministic -- "${cosmo[@]}"
keeps --input-shape 16,16,16,4 -- "${cosmo[@]}"
expect 2 "name one setting and differ" "${cosmo[@]}" --input-shape 8,8,8,4 --output-dir never

saves() { # number, flags
  start "${cosmo[@]}" --keep-checkpoints 99 "${@:2}"
  if [ "$(ls $run/checkpoint-*.h5 | wc -l)" -eq "$1" ]; then ok; else bad "${*:2}: $(ls $run)"; fi
}
saves 8 --checkpoint-steps 1
saves 2
saves 3 --n-epochs 5 --save-frequency 2
saves 2 --n-epochs 2 --checkpoint-epochs 0 --checkpoint-steps 4
once "${cosmo[@]}"; plain=$run
start "${cosmo[@]}" --no-passes
less "$(fact $plain planned_mib)" "$(fact $run planned_mib)" "memory without passes"
winograd() { # expected or not: of the last run
  if grep -q '"kernel": "winograd' $run/summary.json; then local found=yes; else local found=no; fi
  if [ $found = "$1" ]; then ok; else bad "Winograd runs: $found, expected $1"; fi
}
some=yes; grep -qw avx2 /proc/cpuinfo || some=no
start "${cosmo[@]}" --conv-size 16; winograd $some
start "${cosmo[@]}" --conv-size 16 --no-winograd; winograd no
start "${cosmo[@]}" --mlperf-org here --mlperf-platform box --mlperf-status onprem --mlperf-cache-clear
mllog $run submission_org '"here"'
mllog $run submission_platform '"box"'
mllog $run submission_status '"onprem"'
mllog $run cache_clear true
mllog $plain cache_clear false

universes() { expect 0 "wrote" "$bin/cosmoflow_simulate" --out "$@" --universes 4 --validation 2 --size 16 --steps 2; }
universes data --gzip
universes flat --no-gzip
less "$(du -sb data | cut -f1)" "$(du -sb flat | cut -f1)" "bytes of compressed universes"
for flags in "--spread 0.02" "--transfer bbks" "--voxel 4"; do
  universes "${flags##* }" --no-gzip $flags
  differ "$flags" flat/train "${flags##* }/train"
done
for flag in --universes --validation; do
  expect 2 "$flag: expected 0 to 1048576, found 9223372036854775807" "$bin/cosmoflow_simulate" --out never $flag 9223372036854775807
done
expect 2 "--universes, --validation: expected one or more in all, found none" "$bin/cosmoflow_simulate" --out never --universes 0 --validation 0
files=("$bin/cosmoflow_train" --data-dir data --n-epochs 1 --batch-size 2 --dropout 0)
changes --no-shuffle -- "${files[@]}"
changes --shuffle-labels -- "${files[@]}"
# Labels of training alone: without steps that change anything, validation is what it was.
once "${files[@]}" --lr 0; plain=$run
start "${files[@]}" --lr 0 --shuffle-labels
columns unlike 3 $plain/history.csv $run/history.csv
columns same 4,5 $plain/history.csv $run/history.csv
keeps --prefetch 1 -- "${files[@]}"
keeps --max-inter-threads 2 -- "${files[@]}"
keeps --cache -- "${files[@]}"
expect 0 "FoM" "${files[@]}" --print-fom --output-dir fom

climate=("$bin/climseg_train" --data dummy --image-size 32x48 --width-divisor 8 --n-train 4 --max-epochs 2 --local-batch-size 1)
once "${climate[@]}"; winograd $some
start "${climate[@]}" --no-winograd; winograd no
changes --output-stride 8 -- "${climate[@]}"
if [ $some = yes ]; then changes --no-gradient-sums -- "${climate[@]}"; fi
keeps --recompute -- "${climate[@]}"
less "$(fact $run planned_mib)" "$(fact $plain planned_mib)" "memory with recomputing"
for weights in gordon-bell none 1,2,3; do changes --class-weights $weights -- "${climate[@]}"; done
changes --loss-type focal -- "${climate[@]}"
changes --focal-gamma 1 -- "${climate[@]}" --loss-type focal
changes --lr-warmup-factor 0.5 -- "${climate[@]}" --lr-warmup-steps 3
changes --adam-eps 0.1 -- "${climate[@]}"
changes --no-low-level-relu -- "${climate[@]}"
changes --lr-power 3 -- "${climate[@]}" --lr-schedule polynomial
changes --lr-eta-min 0.0005 -- "${climate[@]}" --lr-schedule polynomial
# Of 44 million weights, whose moments take long to save: one moment each.
deeplab=("$bin/climseg_train" --data dummy --model deeplab --image-size 32x48 --n-train 2 --max-epochs 1 --local-batch-size 1 --optimizer SGD)
changes --deconv-crop pytorch -- "${deeplab[@]}"
changes --decoder-relu -- "${deeplab[@]}"
changes --resize-corners aligned -- "${deeplab[@]}" --decoder bilinear
expect 2 "--resize-corners has no effect on --decoder deconv1x" "${deeplab[@]}" --resize-corners aligned --output-dir never
expect 2 "--decoder-relu has no effect on --decoder bilinear" "${deeplab[@]}" --decoder bilinear --decoder-relu --output-dir never
days() { expect 0 "wrote" "$bin/climate_simulate" --out "$@" --days 1 --validation-days 1 --steps 2 --height 96 --orography none; }
days weather --run 7 --year 2099
if ls weather/train | grep -q "2099.*run7\|2099.*-7\."; then ok; else bad "no run 7 of 2099: $(ls weather/train)"; fi
days calm --rivers 0
differ "--rivers 0" weather/train calm/train
crops=("$bin/climseg_train" --data-dir-prefix weather --crop 32x48 --width-divisor 8 --max-epochs 1 --local-batch-size 1)
changes --label-set 1 -- "${crops[@]}"
changes --no-shuffle -- "${crops[@]}" --crops-per-image 4
keeps --prefetch 1 -- "${crops[@]}"
changes --crop-balance 1 -- "${crops[@]}"
conclude
