#!/usr/bin/env bash
# Settings of the trainer: YAML as the reference programs write it, values of the wrong kind, words behind flags, bounds,
# the closed division.   usage: settings.sh BIN_DIR
set -u
bin=$1
. "$(dirname "$0")/expect.sh"

expect 0 "wrote" "$bin/cosmoflow_simulate" --out data --universes 4 --validation 2 --size 16 --steps 2
# Every key of the benchmark's own files, with a smaller network.
cat > official.yaml <<'Y'
output_dir: $WHERE/${NAME}-$UNKNOWN-${UNKNOWN}
mlperf:
    org: someone
    division: open
    status: onprem
    platform: machine
data:
    name: cosmo
    data_dir: $WHERE/data
    compression: GZIP
    n_train: 4
    n_valid: 2
    sample_shape: [16, 16, 16, 4]
    batch_size: 2
    n_epochs: 1
    shard: True
    shuffle_train: True
    shuffle_valid: False
    apply_log: True
    prefetch: 4
    stage_dir: null
model:
    name: cosmoflow
    input_shape: [16, 16, 16, 4]
    kernel_size: 3
    target_size: 4
    conv_size: 8
    fc1_size: 16
    fc2_size: 8
    hidden_activation: LeakyReLU
    pooling_type: MaxPool3D
    dropout: 0
    l2: 0.01
optimizer:
    name: SGD
    momentum: 0.9
lr_schedule:
    base_lr: 0.001
    scaling: linear
    base_batch_size: 64
    n_warmup_epochs: 4
    decay_schedule:
        16: 0.25
        32: 0.125
train:
    loss: mse
    metrics: ['mean_absolute_error']
    early_stopping_patience: 8
    target_mae: 0.124
Y
WHERE=$work NAME=run expect 0 "finished: 2 steps" "$bin/cosmoflow_train" official.yaml
present 'run-$UNKNOWN-${UNKNOWN}/history.csv'

# yaml CODE TEXT SED: the file, changed, as a dry run.
yaml() {
  sed "s|\$WHERE|$work|; $3" official.yaml > changed.yaml
  expect "$1" "$2" "$bin/cosmoflow_train" changed.yaml --dry-run
}
for compression in null "''" ZLIB; do yaml 0 "planned in all" "s/GZIP/$compression/"; done
for metrics in mae "['mae']" "[mean_absolute_error]"; do yaml 0 "planned in all" "s/metrics: .*/metrics: $metrics/"; done
for loss in mse mean_squared_error; do yaml 0 "loss                 mse" "s/loss: .*/loss: $loss/"; done
for loss in mae l1 mean_absolute_error; do yaml 0 "loss                 l1" "s/loss: .*/loss: $loss/"; done
yaml 2 "changed.yaml:46: train.loss: expected mse or l1, found huber" "s/loss: .*/loss: huber/"
yaml 2 "train.metrics: expected mae or mean_absolute_error, found mae,accuracy" "s/metrics: .*/metrics: [mae, accuracy]/"
yaml 2 "data.samples_per_file: expected 1, found 64: the official records" "s/shard: True/samples_per_file: 64/"
yaml 2 "train.lr_schedule: expected none, found 16:0.3: multipliers of the peak rate" "s/loss: mse/lr_schedule: {16: 0.3}/"

# What only the network, the optimizer or the data can judge has its line, too.
yaml 2 "changed.yaml:35: optimizer.name: expected one of SGD" "s/name: SGD/name: Lion/"
yaml 2 "changed.yaml:36: optimizer.momentum: expected a number of [0, 1), found 2" "s/momentum: 0.9/momentum: 2/"
yaml 2 "changed.yaml:32: model.dropout: expected a number of [0, 1), found 1.5" "s/dropout: 0/dropout: 1.5/"
yaml 3 "changed.yaml:11: data.n_train: asked for 99 samples, found 4" "s/n_train: 4/n_train: 99/"

# Values that are missing, nested or of the wrong kind, by line and key.
yaml 2 "changed.yaml:14: data.batch_size: expected a value, found none" "s/batch_size: 2/batch_size:/"
yaml 2 "data.batch_size: expected a value, found none" "s/batch_size: 2/batch_size: []/"
yaml 2 "data.batch_size: expected a value, found a map" "s/batch_size: 2/batch_size: {a: 1}/"
yaml 2 "data.batch_size: expected a number, found \"two\"" "s/batch_size: 2/batch_size: two/"
yaml 2 "changed.yaml:19: data.apply_log: expected true or false, found maybe" "s/apply_log: True/apply_log: maybe/"
yaml 2 "changed.yaml:13: data.sample_shape: expected D,D,D,channels, found 16" "s/sample_shape: .*/sample_shape: 16/"
yaml 2 "lr_schedule.scaling: expected none, linear or sqrt, found cubic" "s/scaling: linear/scaling: cubic/"
yaml 0 "planned in all" "/^mlperf/,/platform/{/^mlperf/!d}"  # a section of which nothing is left
decay() { yaml "$1" "$2" "/16: 0.25/d; /32: 0.125/d; s/decay_schedule:/decay_schedule: $3/"; }
decay 0 "1:0.5,2:0.1" "[{1: 0.5}, {2: 0.1}]"
decay 0 "planned in all" "{}"
decay 2 "lr_schedule.decay_schedule: expected single values, found nested ones" "[{1: [0.5]}]"
decay 2 "lr_schedule.decay_schedule: expected single values, found an empty one" "{1: }"
for multiplier in nan -0.5 inf; do
  decay 2 "expected epochs and finite multipliers of 0 or more, found 4:$multiplier" "{4: $multiplier}"
done
expect 2 "data: expected a YAML file, found a folder" "$bin/cosmoflow_train" data

# What the benchmark's own file says of counts asks for nothing where there are none.
yaml 0 "planned in all" "s/name: cosmo$/name: dummy/"
yaml 0 "planned in all" "/data_dir:/d"
expect 2 "--apply-log has no effect on dummy data" "$bin/cosmoflow_train" --data dummy --size 16 --dry-run --no-apply-log

# A dry run finds what a run would.
dry=("$bin/cosmoflow_train" --data-dir data --conv-size 8 --dry-run)
expect 2 "--augment: expected none or cube, found all" "${dry[@]}" --augment all
expect 2 "--lr-scaling: expected none, linear or sqrt, found cubic" "${dry[@]}" --lr-scaling cubic
expect 2 "--decay-schedule: expected epoch:multiplier pairs, found 3" "${dry[@]}" --decay-schedule 3
expect 2 "CONVOY_AUGMENT: expected none or cube, found all" env CONVOY_AUGMENT=all "${dry[@]}"
# A word behind a toggle, as the reference programs have it.
for off in 0 false off no; do expect 0 "apply-log            false" "${dry[@]}" --apply-log $off; done
expect 0 "apply-log            true" "${dry[@]}" --apply-log 1
# However a toggle is spelled, it is the same in header, checkpoint and logs; a setting keeps its origin.
CONVOY_MLPERF_CACHE_CLEAR=1 expect 0 "mlperf-cache-clear   true                             CONVOY_MLPERF_CACHE_CLEAR" \
  "$bin/cosmoflow_train" --data-dir data --conv-size 8 --batch-size 2 --n-epochs 1 --max-steps 1 --output-dir cleared
grep -q '"key":"cache_clear".*"value":true' cleared/mlperf.log && ok || bad "CONVOY_MLPERF_CACHE_CLEAR=1 is logged as: $(grep cache_clear cleared/mlperf.log)"
climate=("$bin/climseg_train" --dry-run --model deeplab)
CONVOY_BATCH_NORM=yes expect 0 "batch-norm           on                               CONVOY_BATCH_NORM" "${climate[@]}"
CONVOY_LR_SCHEDULE="type=multistep,milestones=3" expect 0 "lr-milestones        3                                CONVOY_LR_SCHEDULE" "${climate[@]}"
CONVOY_LR_SCHEDULE="type=constant,milestones=3" expect 2 "--lr-milestones (CONVOY_LR_SCHEDULE) has no effect on --lr-schedule other than multistep" "${climate[@]}"
expect 0 "apply-log            false" "${dry[@]}" --no-apply-log

# The environment wins over the file, a flag over both; what each sets alone stays.
printf 'data:\n  batch_size: 2\n  n_epochs: 7\n' > order.yaml
ordered() { # TEXT FLAGS...: the header has it, between blanks of any number
  local text=$1 out; shift
  out=$(CONVOY_BATCH_SIZE=1 CONVOY_SEED=9 "$bin/cosmoflow_train" order.yaml "${dry[@]:1}" "$@" 2>&1)
  if tr -s ' ' <<< "$out" | grep -qF " $text"; then ok; else bad "no \"$text\" in: $(grep -E ' (batch-size|n-epochs|seed) ' <<< "$out")"; fi
}
for text in "batch-size 1 CONVOY_BATCH_SIZE" "n-epochs 7 order.yaml:3"; do ordered "$text"; done
for text in "batch-size 4 flag" "n-epochs 8 flag" "seed 9 CONVOY_SEED"; do ordered "$text" --batch-size 4 --n-epochs 8; done

# Numbers that are far too large fail at once.
run=("$bin/cosmoflow_train" --data-dir data --conv-size 8 --output-dir x)
expect 2 "a step takes 1048576 samples, more than the 4 training samples" timeout 10 "${run[@]}" --batch-size 1048576
expect 2 "--gradient-accumulation-frequency: expected 1 to" "${run[@]}" --gradient-accumulation-frequency 9000000000000000000
expect 2 "OMP_NUM_THREADS: expected 1 to 4096, found 70000" env OMP_NUM_THREADS=70000 "${run[@]}"
expect 2 "--batch-size: expected a value, found none" "${run[@]}" --batch-size ""
expect 2 "--conv-size: expected 1 to 512, found 513" "${run[@]}" --conv-size 513

# The closed division: what its rules fix is refused otherwise, what they leave free is not.
closed=("$bin/cosmoflow_train" --dry-run --mlperf-division closed)
expect 0 "planned in all" "${closed[@]}" --lr 0.004 --lr-scaling linear --warmup-epochs 4 --decay-schedule 16:0.25,32:0.125 --dropout 0 --l2 0.01
for wrong in "optimizer SGD Adam" "momentum 0.9 0.8" "conv-size 32 16" "fc1-size 128 64" "kernel-size 3 2" "loss mse l1" "augment none cube" \
  "gradient-lag 0 1" "target-mae 0.124 0.2" "sample-shape 128,128,128,4 64,64,64,4"; do
  read -r flag expected found <<< "$wrong"
  expect 2 "--mlperf-division closed: expected --$flag $expected, found $found" "${closed[@]}" "--$flag" "$found"
done
expect 2 "--mlperf-division closed: expected --decay-schedule multipliers between 0 and 1, found 3:1.5" "${closed[@]}" --decay-schedule 3:1.5
# What an empty variable of a script leaves behind, words that are none, numbers that no memory holds.
train=("$bin/cosmoflow_train" --data dummy --size 16 --conv-size 2 --n-train 4 --batch-size 2 --n-epochs 1)
expect 2 "--output-dir: expected a value, found --resume" "${train[@]}" --output-dir --resume
expect 2 "--resume: expected" "${train[@]}" --output-dir x --resume=maybe
printf 'data:\n  batch_size: 2\n---\ndata:\n  batch_sise: 4\n' > two.yaml
expect 2 "two.yaml: expected one document, found 2" "$bin/cosmoflow_train" two.yaml --data dummy --output-dir x
expect 2 "expected 1 to 1024 voxels and 1 to 65536 channels" "${train[@]}" --output-dir x --sample-shape 16,16,16,9223372036854775807
expect 2 "target-shape: expected 1 to 1048576, found 9223372036854775807" "${train[@]}" --output-dir x --target-shape 9223372036854775807
expect 2 "elements, found" "${train[@]}" --size 1024 --batch-size 1048576 --output-dir x --dry-run
weather=("$bin/climseg_train" --data dummy --image-size 64x96 --width-divisor 16 --max-epochs 1 --output-dir x)
expect 2 "--downsample: expected" "${weather[@]}" --downsample 4611686018427387904
expect 2 "--image-size: expected extents of 1 to 1048576" "${weather[@]}" --image-size 4611686018427387904x16
expect 2 "--blocks: expected two or more numbers of 1 to 256" "$bin/climseg_train" --data dummy --output-dir x --model tiramisu --blocks 1,1000000000
expect 2 "--lr-milestones: expected steps above 0 that grow, found 5,3" "${weather[@]}" --lr-schedule multistep --lr-milestones 5,3
conclude
