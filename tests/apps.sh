#!/usr/bin/env bash
# The programs end to end, as the README runs them, on tiny data: data set, training, resume after SIGKILL and signals,
# prediction, conversion, and every documented refusal.   usage: apps.sh BIN_DIR
set -u
bin=$1
source=$(cd "$(dirname "$0")/.." && pwd)
. "$source/tests/expect.sh"

expect 0 "wrote 12 + 4 universes" "$bin/cosmoflow_simulate" --out data --universes 12 --validation 4 --size 16 --steps 4
expect 0 "wrote" "$bin/cosmoflow_simulate" --out again --universes 12 --validation 4 --size 16 --steps 4 --threads 1
same data/train/univ_0000003_000.tfrecord again/train/univ_0000003_000.tfrecord
expect 0 "wrote" "$bin/cosmoflow_simulate" --out raw --universes 2 --validation 1 --size 32 --crop 16 --steps 4 --format hdf5
present data/power_spectrum.svg data/simulation.json
# The power of four channels in eight shells: less a noise that particles from a lattice lack, some would not be positive.
points=$(grep -o "<circle" data/power_spectrum.svg | wc -l)
[ "$points" -eq 32 ] && grep -q "Poisson noise" data/power_spectrum.svg && ok || bad "power_spectrum.svg: expected 32 points and the noise for comparison, found $points"
grep -q '"universes": "12"' data/simulation.json && ok || bad "simulation.json does not say how many universes"
expect 2 "--size must be even" "$bin/cosmoflow_simulate" --out x --size 15
expect 2 "--out is required" "$bin/cosmoflow_simulate"
# Particles that stay in the voxels in which they start are counted as one each.
coarse=("$bin/cosmoflow_simulate" --universes 2 --validation 0 --size 16 --steps 2)
expect 0 "warning: --voxel 4: expected particles that move half a voxel, " "${coarse[@]}" --voxel 4 --out coarse
without 0 warning "${coarse[@]}" --voxel 1 --out fine
expect 2 "--voxel 1000: expected particles that move half a voxel, " "${coarse[@]}" --voxel 1000 --out x

train=("$bin/cosmoflow_train" --data-dir data --batch-size 2 --n-epochs 3 --optimizer Adam --augment cube --seed 5 --fc1-size 16 --fc2-size 8)
expect 0 "validation MAE" "${train[@]}" --output-dir whole --save whole.safetensors --baseline --profile --trace
present whole/history.csv whole/metrics.jsonl whole/mlperf.log whole/summary.json whole/loss.svg whole/scatter.svg whole/trace.json whole/profile.jsonl
[ "$(wc -l < whole/metrics.jsonl)" -eq 18 ] && ok || bad "metrics.jsonl does not have one line per step"
grep -q '"flops_per_sample": [1-9]' whole/summary.json && grep -q '"gflops": [0-9.]*[1-9]' whole/summary.json && ok || bad "summary.json: no rate of arithmetic"
error=$(grep '"key":"eval_error"' whole/mlperf.log | tail -1 | grep -o '"value":[0-9.e-]*' | cut -d: -f2)
awk -F, -v e="$error" 'END { d = e - $5; exit !(e > 0 && d * d < 1e-12) }' whole/history.csv && ok || bad "eval_error of mlperf.log: $error, expected the last of $(cut -d, -f5 whole/history.csv | tr '\n' ' ')"

large=("${train[@]}" --optimizer LAMB --weight-decay 0.01 --gradient-accumulation-frequency 2 --gradient-lag 1)
expect 0 "finished: 9 steps" "${large[@]}" --output-dir large --save large.safetensors
grep -q '"key":"opt_weight_decay".*"value":0.01' large/mlperf.log && ok || bad "no weight decay in mlperf.log"
expect 0 "finished: 5 steps" "${large[@]}" --output-dir cut --max-steps 5
expect 0 "resuming from" "${large[@]}" --output-dir cut --resume --save cut.safetensors
same large.safetensors cut.safetensors
expect 2 "setting gradient-lag: expected \"1\", found \"0\"" "${large[@]}" --gradient-lag 0 --output-dir cut --resume
expect 2 "--bucket-mib: with --gradient-lag expected the" "${large[@]}" --bucket-mib 1.5 --output-dir cut --resume
CONVOY_MAX_ISA=avx2 "${train[@]}" --summary > older.txt
grep -q '^conv1.forward .*avx2' older.txt && ! grep -q avx512 older.txt && ok || bad "expected kernels up to CONVOY_MAX_ISA=avx2"
# What falls to plain loops is said, unless it was asked for.
shape=(--fc1-size 16 --fc2-size 8)
CONVOY_MAX_ISA=scalar expect 0 "run plain loops: input.log1p (reference), conv1.forward/pool/activation (reference)" "${train[@]}" --output-dir plain --max-steps 1
CONVOY_MAX_ISA=scalar expect 0 "run plain loops: input.log1p (reference), conv1.forward/pool/activation (reference)" "$bin/cosmoflow_predict" --checkpoint plain --data-dir data "${shape[@]}"
without 0 "plain loops" "${train[@]}" --output-dir asked_for --max-steps 1 --kernel '*=reference'
# So is a pattern that comes to nothing.
CONVOY_MAX_ISA=scalar expect 0 "warning: --kernel conv*=direct_avx2: runs none of" "${train[@]}" --summary --kernel 'conv*=direct_avx2'
CONVOY_MAX_ISA=scalar expect 0 "warning: --kernel conv*=direct_avx2: runs none of" "$bin/cosmoflow_predict" --checkpoint plain --data-dir data "${shape[@]}" --kernel 'conv*=direct_avx2'
without 0 "warning: --kernel" "${train[@]}" --summary --kernel '*=reference'
CONVOY_MAX_ISA=sse expect 2 "CONVOY_MAX_ISA: expected one of scalar, avx2" "${train[@]}" --output-dir x
expect 2 "expected one of SGD" "${train[@]}" --optimizer Lion --output-dir x
expect 2 "device: expected cpu, cuda or cuda:N, found \"gpu\"" "${train[@]}" --device gpu --output-dir x
[ -e /dev/nvidia0 ] || expect 2 "device cuda" "${train[@]}" --device cuda --output-dir x
expect 2 "no effect on --optimizer Adam" "${train[@]}" --momentum 0.8 --output-dir x
expect 2 "optimizer-betas: expected two numbers of [0, 1), found 1,1" "${train[@]}" --optimizer-betas 1,1 --output-dir x
expect 2 "--gradient-lag: expected 0 or 1, found 2" "${train[@]}" --gradient-lag 2 --output-dir x

# The same seed gives the same bits; so does a run killed in mid-epoch and resumed.
expect 0 "finished" "${train[@]}" --output-dir twin --save twin.safetensors
same whole.safetensors twin.safetensors
"${train[@]}" --output-dir killed --checkpoint-steps 2 --keep-checkpoints 100 > /dev/null 2>&1 &
victim=$!
for _ in $(seq 500); do [ -e killed/checkpoint-000000008.h5 ] && break; sleep 0.01; done
kill -9 $victim 2> /dev/null; wait $victim 2> /dev/null; rc=$?
[ $rc -eq 137 ] && ok || bad "the run ended with $rc before it could be killed"
expect 0 "resuming from" "${train[@]}" --output-dir killed --checkpoint-steps 2 --resume --save killed.safetensors
same whole.safetensors killed.safetensors
[ "$(wc -l < killed/metrics.jsonl)" -eq 18 ] && ok || bad "a resumed run repeats or loses lines of metrics.jsonl"
columns same 1-5 whole/history.csv killed/history.csv

# Signals save, which no epoch has done here, and end the run with 75.
for signal in TERM INT USR2 XCPU; do
  "${train[@]}" --output-dir asked-$signal --n-epochs 500 --checkpoint-epochs 0 > /dev/null 2>&1 &
  victim=$!
  for _ in $(seq 500); do [ -s asked-$signal/history.csv ] && break; sleep 0.02; done
  kill -$signal $victim; wait $victim; rc=$?
  [ $rc -eq 75 ] && ok || bad "SIG$signal: exit $rc, expected 75"
  present asked-$signal/checkpoint-*.h5
done
# A hang-up that nohup has it ignore does not stop a run: more epochs end than one that was under way.
(trap '' HUP; exec "${train[@]}" --output-dir nohup --n-epochs 5000 > /dev/null 2>&1) &
victim=$!
epochs() { for _ in $(seq 1000); do [ "$(cat nohup/history.csv 2> /dev/null | wc -l)" -ge "$1" ] && return; sleep 0.02; done; return 1; }
epochs 2; kill -HUP $victim
epochs "$(($(wc -l < nohup/history.csv) + 3))" && ok || bad "a hang-up ends a run under nohup"
kill -TERM $victim; wait $victim; rc=$?
[ $rc -eq 75 ] && ok || bad "SIGTERM under nohup: exit $rc, expected 75"

# A used folder is not overwritten; a finished run resumes to nothing; --max-steps continues where it stopped.
expect 2 "holds checkpoints of another run" "${train[@]}" --output-dir whole
expect 0 "finished: 0 steps" "${train[@]}" --output-dir killed --checkpoint-steps 2 --resume
expect 0 "finished: 4 steps" "${train[@]}" --output-dir parts --max-steps 4
expect 0 "finished: 0 steps" "${train[@]}" --output-dir parts --max-steps 4 --resume
expect 0 "finished: 14 steps" "${train[@]}" --output-dir parts --resume --save parts.safetensors
same whole.safetensors parts.safetensors
columns same 1-5 whole/history.csv parts/history.csv
expect 2 "setting lr" "${train[@]}" --output-dir parts --resume --lr 0.5

# A damaged newest checkpoint is skipped for the one before.
newest=$(ls killed/checkpoint-*.h5 | tail -1)
truncate -s 1000 "$newest"
expect 0 "skipping a damaged checkpoint" "${train[@]}" --output-dir killed --resume
expect 2 'setting batch-size: expected "2", found "4"' "${train[@]}" --output-dir whole --resume --batch-size 4

# The predictor reproduces the trainer's validation MAE bit for bit, from weights and from a checkpoint.
trained=$(sed -n '/"validation": {/,/}/s/^    "mae": \([0-9.e-]*\),\?$/\1/p' whole/summary.json)
expect 0 "4 samples" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --out p.csv
expect 0 "4 samples" "$bin/cosmoflow_predict" --checkpoint whole --data-dir data "${shape[@]}" --out q.csv
same p.csv q.csv
expect 1 "--out: nowhere/p.csv: cannot create" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --out nowhere/p.csv
# Weights know what network they are of.
expect 0 "finished" "${train[@]}" --output-dir linear --no-apply-log --max-steps 1 --save linear.safetensors
expect 2 'linear.safetensors: trained with --apply-log "false", found "true"' "$bin/cosmoflow_predict" --weights linear.safetensors --data-dir data "${shape[@]}"
expect 0 "4 samples" "$bin/cosmoflow_predict" --weights linear.safetensors --data-dir data "${shape[@]}" --no-apply-log
expect 0 "nothing was left to train" "${train[@]}" --output-dir whole --resume
expect 2 "output-dir: expected a folder, found none" "${train[@]}" --output-dir ""
expect 2 "--shard: expected 1 or more, found 0" "$bin/convoy_data" convert data --format sharded-hdf5 --out shards0 --shard 0
# Weights take the place of nothing that the run reads or writes.
printf 'data: {n_train: 4}\n' > own.yaml
cp whole.safetensors first.safetensors
expect 2 "--save: own.yaml is read from and would be overwritten" "${train[@]}" own.yaml --output-dir own --save own.yaml
expect 2 "--save: first.safetensors is read from and would be overwritten" "${train[@]}" --output-dir own --init first.safetensors --save first.safetensors
expect 2 "--save: own/summary.json: expected a name that the run itself does not write" "${train[@]}" --output-dir own --save own/summary.json
# What an empty variable of a script leaves.
expect 2 "--output-dir: expected a value, found none" "${train[@]}" --output-dir= --resume
printf '? [a, b]\n: 2\n' > keys.yaml
expect 2 "keys.yaml:1: expected a key, found a list or a map" "${train[@]}" keys.yaml --output-dir own
printf '"": sc18\n' > keys.yaml
expect 2 "keys.yaml:1: expected a key, found an empty one" "${train[@]}" keys.yaml --output-dir own
printf 'output_dir: [a, b]\n' > keys.yaml
expect 2 "keys.yaml:1: output_dir: expected a value, found a list" "$bin/cosmoflow_train" keys.yaml --data-dir data "${shape[@]}"
printf 'lr_schedule: {decay_schedule: {1: 0.5, 1: 0.25}}\n' > keys.yaml
expect 2 "epoch 1 is given twice" "${train[@]}" keys.yaml --output-dir own
OMP_STACKSIZE=16k expect 2 "OMP_STACKSIZE: expected a megabyte (1M) or more, found 16k" "${train[@]}" --output-dir own
OMP_THREAD_LIMIT=1 expect 2 "--threads: expected no more than OMP_THREAD_LIMIT's 1, found 2" "${train[@]}" --output-dir own --threads 2
# A sample that is gone in mid-run: what was learnt until then is kept.
cp -r data fading
last=$(ls fading/train/*.tfrecord | tail -1)
truncate -s 1000 "$last"
expect 3 "$last: " "$bin/cosmoflow_train" --data-dir fading "${shape[@]}" --batch-size 2 --n-epochs 2 --checkpoint-epochs 0 --no-shuffle --output-dir faded
cp "data/train/${last##*/}" "$last"
expect 0 "resuming from faded/checkpoint-000000005.h5" "$bin/cosmoflow_train" --data-dir fading "${shape[@]}" --batch-size 2 --n-epochs 2 --checkpoint-epochs 0 --no-shuffle --output-dir faded --resume --save faded.safetensors
expect 0 "finished: 12 steps" "$bin/cosmoflow_train" --data-dir data "${shape[@]}" --batch-size 2 --n-epochs 2 --no-shuffle --output-dir unfaded --save unfaded.safetensors
same faded.safetensors unfaded.safetensors
# The network for programs of others, whatever the arithmetic here; what it computes is test_onnx's.
expect 0 "4 samples" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --onnx net.onnx
expect 0 "4 samples" "$bin/cosmoflow_predict" --checkpoint whole --data-dir data "${shape[@]}" --onnx net16.onnx --compute bf16
same net.onnx net16.onnx
[ "$(stat -c %s net.onnx)" -gt "$(stat -c %s whole.safetensors)" ] && ok || bad "net.onnx: smaller than its weights"
expect 2 "--onnx: whole.safetensors is read from and would be overwritten" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --onnx whole.safetensors
expect 2 "--onnx: expected another file than --out, found p.csv" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --out p.csv --onnx p.csv
expect 1 "--onnx: nowhere/net.onnx: cannot create" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --onnx nowhere/net.onnx
expect 2 "--split has no effect on one file" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data/train/univ_0000003_000.tfrecord "${shape[@]}" --split train
# LBANN's network with batch norms: running statistics are trained, too, and another network is not taken for it.
lbann=(--model lbann --conv-size 4 "${shape[@]}" --batch-norm)
expect 0 "finished: 18 steps" "${train[@]}" "${lbann[@]}" --batch-norm-momentum 0.2 --output-dir lbann
expect 0 "finished: 0 steps" "${train[@]}" "${lbann[@]}" --batch-norm-momentum 0.2 --output-dir lbann --resume
means=$(sed -n '/"validation": {/,/}/s/^    "mae": \([0-9.e-]*\),\?$/\1/p' lbann/summary.json)
expect 0 "4 samples, MAE ${means:-none}" "$bin/cosmoflow_predict" --checkpoint lbann --data-dir data "${lbann[@]}"
expect 2 'trained with --model "lbann", found "mlperf"' "$bin/cosmoflow_predict" --checkpoint lbann --data-dir data "${lbann[@]}" --model mlperf
# Physical predictions lie on the line through the samples' labels and parameters.
expect 0 "16 samples" "$bin/convoy_data" convert raw/train --crop 16 --format split-hdf5 --out physical
expect 0 "16 samples" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir physical --split all "${shape[@]}" --out physical.csv
awk -F, 'NR > 1 { y[NR] = $15; p[NR] = $17; guess[NR] = $16; q[NR] = $18 }
  END { slope = (p[NR] - p[2]) / (y[NR] - y[2])
        for (i = 2; i <= NR; ++i) { off = q[i] - p[2] - slope * (guess[i] - y[2]); if (off * off > 1e-4) bad = 1 }
        exit bad || NR != 17 }' physical.csv && ok || bad "H_0 predicted off the line of labels and parameters"
# Those of crops are their file's.
expect 0 "16 samples" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir raw/train --size 16 --split all "${shape[@]}" --out crops.csv
columns same 3- physical.csv crops.csv
expect 0 "4 samples" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --split validation
expect 2 "--split: expected auto, all, train, validation or test, found half" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --split half
expect 0 "no sample has physPar: physical values assume labels of +-10 %" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}"
present p.csv
expect 0 "1 samples, MAE" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data/train/univ_0000003_000.tfrecord "${shape[@]}"
printed=$("$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" | sed -n 's/.*MAE \([0-9.e-]*\)$/\1/p' | head -1)
[ -n "$printed" ] && [ "$printed" = "$trained" ] && ok || bad "predictor MAE $printed is not the trainer's $trained"
expect 3 "expected cubes of 128, found 16" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data --model sc18
expect 3 "expected tensor conv3.weight" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data --conv-layers 3 "${shape[@]}"
expect 3 "expected shape" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data
expect 2 "exactly one of" "$bin/cosmoflow_predict" --data-dir data
# Outputs replace nothing that is read or needed, and no device; what cannot be written is an error.
expect 2 "--out: whole.safetensors is read from and would be overwritten" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --out whole.safetensors
newest=$(ls whole/checkpoint-*.h5 | tail -1)
expect 2 "is read from and would be overwritten" "$bin/cosmoflow_predict" --checkpoint whole --data-dir data "${shape[@]}" --out "$newest"
expect 2 "--n-train: expected at most 1048576 samples of --data dummy, found 2000000" "$bin/cosmoflow_train" --data dummy --size 16 --n-train 2000000 --output-dir x
mkfifo pipe
expect 3 "pipe: cannot open" timeout 20 "$bin/cosmoflow_predict" --weights pipe --data-dir data "${shape[@]}"
expect 1 "pipe: expected a file or none, found a device or a pipe" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --out pipe
expect 2 "expected another name than a checkpoint's" "${train[@]}" --output-dir x --save x/checkpoint-000000018.h5
expect 2 "save: data/train/univ_0000003_000.tfrecord is data/train, which is read, or lies in it" "${train[@]}" --output-dir x --save data/train/univ_0000003_000.tfrecord
expect 2 "lies in it" "${train[@]}" --data-dir data/train --output-dir data/train/run
[ -e data/train/run ] && bad "a refused run leaves its folder" || ok
ln -s elsewhere.csv link.csv
expect 0 "4 samples" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --out link.csv
[ -L link.csv ] && ok || bad "a link is replaced by what is written through it"
same elsewhere.csv p.csv
[ -e /dev/full ] && expect 1 "standard output: cannot write" sh -c '"$0" verify data > /dev/full' "$bin/convoy_data"
# A stream that takes no more, or whose reader ends, stops no training, and changes no code of another error.
if [ -e /dev/full ]; then
  expect 1 "standard output: cannot write" sh -c '"$@" > /dev/full' run "${train[@]}" --output-dir unheard --save unheard.safetensors
  same whole.safetensors unheard.safetensors
  present unheard/history.csv unheard/checkpoint-000000018.h5
  sh -c '"$@" 2> /dev/full' run "${train[@]}" --bogus; rc=$?
  [ $rc -eq 2 ] && ok || bad "a full standard error: exit $rc, expected 2"
fi
"${train[@]}" --output-dir unread --save unread.safetensors 2> unread.txt | head -c 1 > /dev/null
same whole.safetensors unread.safetensors
# Links to samples are staged as what they lead to, which stays as it is; names must be text.
mkdir linked && ln -s "$work/data/train" linked/train && ln -s "$work/data/validation" linked/validation && touch marker
expect 0 "staged 16 files" "${train[@]}" --data-dir linked --stage-dir stage/below/linked --output-dir staged --save staged.safetensors
same whole.safetensors staged.safetensors
expect 0 "16 files reused" "${train[@]}" --data-dir linked --stage-dir stage/below/linked --output-dir staged2 --max-steps 1
[ -z "$(find data -newer marker)" ] && ok || bad "staging writes to its source: $(find data -newer marker)"
mkdir -p odd/train && cp data/train/*.tfrecord odd/train && cp -r data/validation odd && mv odd/train/univ_0000003_000.tfrecord odd/train/$'\xff.tfrecord'
expect 3 ".tfrecord: expected a name in UTF-8, found other bytes" "${train[@]}" --data-dir odd --output-dir x
expect 3 ".tfrecord: expected a name in UTF-8, found other bytes" "${train[@]}" --data-dir odd --stage-dir stage/odd --output-dir x
# A set without universes for validation is split by the trainer.
expect 0 "wrote 8 + 0 universes" "$bin/cosmoflow_simulate" --out unsplit --universes 8 --validation 0 --size 16 --steps 4
expect 0 "finished: 3 steps" "${train[@]}" --data-dir unsplit --output-dir unsplit_run --max-steps 3
# Samples for a test are neither trained on, drawn nor staged; nor is what runs write beside the samples.
mkdir tested && cp -r data/train tested && cp -r data/validation tested/test
expect 0 "validation: a share of 0.2 of tested/train, since tested has no folder validation" "${train[@]}" --data-dir tested --output-dir tested/run --max-steps 2 --save tested.safetensors
expect 0 "10 training and 2 validation samples" "${train[@]}" --data-dir data/train --output-dir drawn --max-steps 2 --save drawn.safetensors
same tested.safetensors drawn.safetensors
expect 0 "staged 12 files" "${train[@]}" --data-dir tested --stage-dir stage/tested --output-dir tested/staged --max-steps 2 --save drawn_staged.safetensors
same tested.safetensors drawn_staged.safetensors
[ "$(ls stage/tested)" = train ] && ok || bad "staged beside train: $(ls stage/tested)"
expect 0 "12 samples, MAE" "$bin/cosmoflow_predict" --checkpoint tested/run --data-dir tested "${shape[@]}"
mv tested/train tested/training
expect 3 "tested: expected folders train and validation, or train alone, found test" "${train[@]}" --data-dir tested --output-dir x
# Of limited sets the files of the samples that are left are staged; without limits the others follow.
few=("${train[@]}" --n-train 4 --n-valid 2 --max-steps 3)
expect 0 "finished: 3 steps" "${few[@]}" --output-dir few --save few.safetensors
expect 0 "staged 6 files" "${few[@]}" --stage-dir stage/few --output-dir few_staged --save few_staged.safetensors
same few.safetensors few_staged.safetensors
expect 0 "staged 16 files" "${train[@]}" --stage-dir stage/few --output-dir few_more --max-steps 1
expect 0 "6 files reused" "${few[@]}" --stage-dir stage/few --output-dir few_again
# Saved behind the last epoch alone, also where a stop rule makes it the last; a folder in a file's place is seen at the start.
expect 0 "stopped early" "${train[@]}" --output-dir rarely --checkpoint-epochs 0 --n-epochs 9 --lr 1e-12 --early-stopping 1
[ "$(ls rarely/checkpoint-*.h5 | wc -l)" -eq 1 ] && ok || bad "--checkpoint-epochs 0: $(ls rarely)"
expect 0 "stopped early: 0 steps" "${train[@]}" --output-dir rarely --resume
# The penalty stands in validation's loss as in training's.
for l2 in 0 1; do expect 0 "FoM: " "${train[@]}" --n-epochs 1 --lr 1e-12 --l2 $l2 --output-dir "l2-$l2" --print-fom; done
paste -d, l2-0/history.csv l2-1/history.csv | awk -F, 'NR == 2 { trained = $9 - $3; validated = $10 - $4 }
  END { exit !(trained > 1 && (validated - trained) ^ 2 < 1e-6 * trained ^ 2) }' && ok || bad "the penalty of training and validation: $(cat l2-?/history.csv)"
# The figure of merit is the best validation loss, which need not be the last.
fom=$("${train[@]}" --n-epochs 6 --lr 0.1 --output-dir fom --print-fom | grep -o 'FoM: [0-9.e+-]*' | cut -c6-)
awk -F, -v f="$fom" 'NR > 1 { last = $4; if (best == "" || $4 < best) best = $4 }
  END { exit !(f != "" && last > best && (f / best - 1) ^ 2 < 1e-8) }' fom/history.csv && ok || bad "FoM: $fom, found $(cut -d, -f4 fom/history.csv | tr '\n' ' ')"
mkdir -p barred/history.csv
expect 1 "barred/history.csv: expected a file or none, found a folder" "${train[@]}" --output-dir barred
expect 1 "cannot write" sh -c 'ulimit -f 20; exec "$@"' run "${train[@]}" --output-dir limited --max-steps 1
# A tuned table must be one, of this build, and decide something.
tuned() { expect "$1" "$2" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --tuned "$3"; }
tuned 3 "data: cannot read the tuned table" data
printf 'reference\tconv_forward{} in=f32:1x1x8x8x4|f32:16x1x1x1x4\n' > other.txt
tuned 2 "other.txt: expected problems of this run, found none among 1" other.txt
sed 's/^reference/mine/' other.txt > mine.txt
tuned 2 "mine.txt: no kernel is called mine, of this build or of CONVOY_PLUGINS" mine.txt

# Every format into every other, voxels bit-identical.
digests() { "$bin/convoy_data" inspect "$1" "${crop[@]}" --limit 1000 | sed -n 's/.*labels\(.*\)$/\1/p'; }
previous=raw/train crop=(--crop 16)
digests raw/train > raw.txt
[ "$(grep -c . raw.txt)" -eq 16 ] && ok || bad "inspect shows $(grep -c . raw.txt) digests, expected 16"
for format in tfrecord sharded-hdf5 split-hdf5 raw-hdf5 tfrecord; do
  shard=(); [ $format = sharded-hdf5 ] && shard=(--shard 16)
  expect 0 "wrote 16 samples" "$bin/convoy_data" convert "$previous" "${crop[@]}" --out "c-$format-$passed" --format $format "${shard[@]}"
  previous=$(ls -td c-$format-* | head -1) crop=()
  digests "$previous" > now.txt
  same raw.txt now.txt
done
expect 0 "0 bad" "$bin/convoy_data" verify data
cp data/train/univ_0000001_000.tfrecord saved; head -c 900 saved > data/train/univ_0000001_000.tfrecord
expect 3 "1 bad" "$bin/convoy_data" verify data
expect 3 "univ_0000001_000.tfrecord" "${train[@]}" --output-dir broken
mv saved data/train/univ_0000001_000.tfrecord

# Settings: the reference's YAML, unknown and refused keys with line numbers, origins, counts.
cat > cosmo.yaml <<'Y'
output_dir: yaml
data:
    name: cosmo
    data_dir: data
    sample_shape: [16, 16, 16, 4]
    batch_size: 4
    n_epochs: 1
    shard: True
    apply_log: True
    prefetch: 4
model:
    name: cosmoflow
    input_shape: [16, 16, 16, 4]
    target_size: 4
    conv_size: 8
    pooling_type: MaxPool3D
    dropout: 0.5
optimizer:
    name: SGD
    momentum: 0.9
lr_schedule:
    base_lr: 0.001
    scaling: linear
    base_batch_size: 64
    n_warmup_epochs: 4
    decay_schedule:
        32: 0.25
        64: 0.125
train:
    loss: mse
    metrics: ['mae']
Y
without 0 "sets no" "$bin/cosmoflow_train" "$source/apps/launch/cosmo.yaml" --data dummy --dry-run
expect 0 "(YAML: data.batch_size)" "$bin/cosmoflow_train" --help
expect 0 "finished: 1 steps" "$bin/cosmoflow_train" cosmo.yaml --optimizer Adam --max-steps 1 --output-dir other  # momentum is idle
expect 0 "warning: cosmo.yaml sets no kernel_size" "$bin/cosmoflow_train" cosmo.yaml
# A checkpoint whose settings are spelled as in YAML.
expect 0 "samples, MAE" "$bin/cosmoflow_predict" --data-dir data --checkpoint yaml --conv-size 8
expect 2 "trained with --hidden-activation \"LeakyReLU\", found \"ReLU\"" "$bin/cosmoflow_predict" --data-dir data --checkpoint yaml --conv-size 8 --hidden-activation ReLU
expect 0 "cosmo.yaml:6" "$bin/cosmoflow_train" cosmo.yaml --dry-run
expect 0 "CONVOY_SEED" env CONVOY_SEED=9 "$bin/cosmoflow_train" cosmo.yaml --dry-run
sed 's/prefetch/prefetsch/' cosmo.yaml > typo.yaml
expect 2 "typo.yaml:10: unknown key data.prefetsch" "$bin/cosmoflow_train" typo.yaml
sed 's/MaxPool3D/AvgPool3D/' cosmo.yaml > pool.yaml
expect 2 "pool.yaml:16: model.pooling_type: expected MaxPool3D, found AvgPool3D" "$bin/cosmoflow_train" pool.yaml
sed 's/batch_size: 4/batch_size: four/' cosmo.yaml > number.yaml
expect 2 "four" "$bin/cosmoflow_train" number.yaml
sed 's/batch_size: 4/batch_size: 4\n    batch_size: 8/' cosmo.yaml > twice.yaml
expect 2 "data.batch_size is given twice" "$bin/cosmoflow_train" twice.yaml
# What the reference takes for no samples is all of them here; its default of no early stop is null.
for count in n_train n_valid; do
  sed "s/n_epochs: 1/n_epochs: 1\n    $count: 0/" cosmo.yaml > empty.yaml
  expect 2 "empty.yaml:8: data.$count: expected 1 or more, found 0: the reference takes 0 for none" "$bin/cosmoflow_train" empty.yaml
done
sed 's/loss: mse/loss: mse\n    early_stopping_patience: null/' cosmo.yaml > patient.yaml
expect 0 "early-stopping=0" "$bin/cosmoflow_train" patient.yaml --dry-run
expect 2 "--output-dir (flag): expected UTF-8" "${train[@]}" --output-dir $'r\xe9sultats'
expect 2 "--n-parallel-reads: expected 1 to 1024, found 4294967296" "${train[@]}" --n-parallel-reads 4294967296 --output-dir x
for wrong in "kernel-size 0" "fc1-size -5" "conv-size 0" "threads 4294967297" "batch-size 0" "dropout nan"; do
  expect 2 "--${wrong% *}: expected" "${train[@]}" --output-dir x --${wrong% *} "${wrong#* }"
done
expect 2 "--keep-checkpoints: expected 1 to" "${train[@]}" --keep-checkpoints 0 --output-dir x
expect 2 "--base-batch-size must be above 0" "${train[@]}" --lr-scaling linear --base-batch-size 0 --output-dir x
expect 3 "expected 3 targets, found 4" "${train[@]}" --target-shape 3 --output-dir x
expect 2 "data/train: expected an empty folder or none, found univ_" "$bin/cosmoflow_simulate" --out data --universes 2 --size 16
for wrong in "lr -0.001" "optimizer-lr -1" "l2 -1" "warmup-epochs -2"; do
  expect 2 "--${wrong% *}: expected 0 or more, found ${wrong#* }" "${train[@]}" --output-dir x --${wrong% *} "${wrong#* }"
done
expect 2 "--optimizer-lr: expected a finite number, found nan" "${train[@]}" --output-dir x --optimizer-lr nan
expect 2 "--optimizer-lr 0.2 and --lr 0.1 name one setting and differ" "${train[@]}" --output-dir x --lr 0.1 --optimizer-lr 0.2
expect 2 "--mlperf-division: expected closed or open, found half" "${train[@]}" --output-dir x --mlperf-division half
for wrong in "voxel 0" "voxel nan" "spread 2" "universes -5" "validation -1" "steps 0"; do
  expect 2 "--${wrong% *}: expected" "$bin/cosmoflow_simulate" --out simulated --size 16 --${wrong% *} "${wrong#* }"
done
expect 2 "cannot open" "$bin/cosmoflow_train" none.yaml
expect 3 "asked for 99 samples, found 12" "${train[@]}" --n-train 99 --output-dir x
expect 3 "no such folder" "$bin/cosmoflow_train" --data-dir nowhere
expect 3 "expected cubes of 32, found 16" "${train[@]}" --size 32 --output-dir x
expect 2 "--compute" "${train[@]}" --compute f8 --output-dir x
expect 2 "no kernel of this build or of CONVOY_PLUGINS has that name" "${train[@]}" --kernel conv1.forward=fast --output-dir x
expect 2 "unknown flag or word: --bogus" "${train[@]}" --bogus
expect 0 "parameters 8907556" "$bin/cosmoflow_train" --summary
expect 0 "planned in all" "$bin/cosmoflow_train" --dry-run
# Why a kernel does not run, which a summary alone does not say.
CONVOY_MAX_ISA=scalar expect 0 "  avx2: needs AVX2, FMA and F16C" "${train[@]}" --explain
CONVOY_MAX_ISA=scalar without 0 "needs AVX2" "${train[@]}" --summary
expect 4 "first at conv" "${train[@]}" --lr 1e30 --optimizer SGD --output-dir nan --dropout 0
dummy=("$bin/cosmoflow_train" --data dummy --size 16 --n-train 4)
expect 2 "--target-mae has no effect on dummy data" "${dummy[@]}" --target-mae 0.1 --output-dir x
expect 2 "--data-dir has no effect on dummy data" "${dummy[@]}" --data-dir data --output-dir x
CONVOY_DATA_DIR=data expect 2 "CONVOY_DATA_DIR has no effect on dummy data" "${dummy[@]}" --output-dir x
expect 2 "--early-stopping has no effect on dummy data" "${dummy[@]}" --early-stopping 2 --output-dir x
expect 2 "--mlperf-division closed: expected --model mlperf, found sc18" "$bin/cosmoflow_train" --data dummy --model sc18 --dry-run --mlperf-division closed
expect 0 "memory" "${dummy[@]}" --no-baseline --dry-run
expect 2 "--sparse-gradients has no effect on networks that pool by means or normalise" "$bin/cosmoflow_train" --model sc18 --summary --no-sparse-gradients
expect 2 "--batch-norm-momentum has no effect on networks without batch norm" "${dummy[@]}" --batch-norm-momentum 0.1 --output-dir x
expect 2 "--fc1-size: expected a value, found none" "${dummy[@]}" --fc1-size '' --output-dir x
expect 2 "--batch-norm has no effect on the sc18 network" "$bin/cosmoflow_train" --data dummy --model sc18 --batch-norm --dry-run
expect 2 "--mlperf-division closed: expected --batch-norm false, found true" "$bin/cosmoflow_train" --data dummy --size 128 --batch-norm --dry-run --mlperf-division closed
expect 0 "memory" "$bin/cosmoflow_train" --model sc18 --dry-run --sparse-gradients
expect 2 "unknown flag or word: --cache" "$bin/cosmoflow_predict" --weights whole.safetensors --data-dir data "${shape[@]}" --cache
# The 2018 network's loss is shown and kept, also by a checkpoint that does not say who chose it.
sc18=("$bin/cosmoflow_train" --data dummy --model sc18 --n-train 1 --batch-size 1 --n-epochs 1 --output-dir sc18)
expect 0 " loss=l1 " "${sc18[@]}"
expect 2 'setting loss: expected "l1", found "mse"' "${sc18[@]}" --resume --loss mse
expect 0 "finished: 0 steps" "${sc18[@]}" --resume --loss mae
expect 2 "--valid-share has no effect on data in folders" "${train[@]}" --valid-share 0.3 --output-dir x
expect 2 "--base-batch-size has no effect on --lr-scaling none" "${train[@]}" --base-batch-size 8 --output-dir x
# The reference's older name of the rate, as a flag, beats the rate of the file.
expect 0 "lr 0.0123" "$bin/cosmoflow_train" cosmo.yaml --lr-scaling none --warmup-epochs 0 --optimizer-lr 0.0123 --max-steps 1 --output-dir rate
expect 2 "validation share" "${train[@]}" --data-dir data/train --valid-share 2 --output-dir x
expect 2 "no effect on the sc18" "${train[@]}" --model sc18 --output-dir x
expect 0 "dummy" "${dummy[@]}" --n-epochs 1 --output-dir dummy --compute bf16
expect 0 "resuming from" "${dummy[@]}" --n-epochs 2 --output-dir dummy --compute bf16 --resume
starts() { [ "$(cat dummy/mlperf*.log | grep -c '"key":"run_start"')" -eq "$1" ] && ok || bad "expected $1 lines run_start in the logs"; }
starts 2
rm dummy/checkpoint-*.h5
expect 0 "dummy" "${dummy[@]}" --n-epochs 1 --output-dir dummy
starts 1
expect 0 "finished" "${train[@]}" --output-dir half --compute f16 --max-steps 3
conclude
