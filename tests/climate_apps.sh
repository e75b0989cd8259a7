#!/usr/bin/env bash
# The climate programs end to end on tiny images: simulate, look, train on crops, resume, predict, and their refusals.
# usage: climate_apps.sh BIN_DIR
set -u
bin=$1
. "$(dirname "$0")/expect.sh"

sim=("$bin/climate_simulate" --orography none --height 64 --width 96 --days 3 --validation-days 2 --steps 2)
expect 0 "wrote 6 + 4 images of 64x96x16" "${sim[@]}" --out data
expect 0 "atmospheric rivers" "${sim[@]}" --out again --threads 1
same data/train/data-2106-01-02-01-0.h5 again/train/data-2106-01-02-01-0.h5
same data/stats.h5 again/stats.h5
expect 0 "wrote" "${sim[@]}" --out found --labels heuristic
unlike "--labels heuristic" found/train/data-2106-01-02-01-0.h5 data/train/data-2106-01-02-01-0.h5
expect 2 "--labels: expected truth or heuristic" "${sim[@]}" --out x --labels guess
expect 2 "--days: expected 1 to 1048576, found 0" "${sim[@]}" --out x --days 0
expect 2 "--cyclones: expected 0 to 500, found -3" "${sim[@]}" --out x --cyclones -3
expect 2 "data/train: expected an empty folder or none" "${sim[@]}" --out data

expect 0 "10 images" "$bin/convoy_data" inspect data
expect 0 "first 2 images, of 10 files" "$bin/convoy_data" inspect data --limit 2
expect 0 "10 images read, 0 bad" "$bin/convoy_data" verify data
expect 0 "; 0 images without labels" "$bin/convoy_data" verify data
expect 0 "statistics of 6 images" "$bin/convoy_data" stats data/train --out own.h5
expect 0 "in half precision" "$bin/convoy_data" convert data --out shards --shard 4
expect 0 "sharded-climate-hdf5 64x96x16" "$bin/convoy_data" inspect shards
# Shards are cut anew without statistics; a file's are those of its folder, or of the one above.
expect 0 "wrote 10 images in half precision" "$bin/convoy_data" convert shards --out reshards --shard 3
expect 0 "wrote 10 images in half precision" "$bin/convoy_data" convert reshards --out back --shard 4
same shards/validation/shard-00000.h5 back/validation/shard-00000.h5
expect 2 "--stats has no effect on shards" "$bin/convoy_data" convert shards --stats data/stats.h5 --out x
expect 0 "wrote 1 images in half precision" "$bin/convoy_data" convert data/train/data-2106-01-01-00-0.h5 --out single
mkdir -p alone/below && cp data/train/data-2106-01-01-00-0.h5 alone/below
# Folders whose names come between those of a folder's files.
mkdir -p between/train/data-2106-01-01-b && cp data/stats.h5 between
cp data/train/data-2106-01-01-0[01]-0.h5 between/train && cp data/train/data-2106-01-02-00-0.h5 between/train/data-2106-01-01-b
mv between/train/data-2106-01-01-01-0.h5 between/train/data-2106-01-01-c.h5
expect 0 "wrote 3 images in half precision" "$bin/convoy_data" convert between --out outside --shard 8
expect 0 "3 images" "$bin/convoy_data" inspect outside
[ "$(find outside -name 'shard-*.h5' | wc -l)" -eq 2 ] && ok || bad "shards of two folders: $(find outside -name 'shard-*.h5')"
expect 3 "alone/below/stats.h5: no such file" "$bin/convoy_data" convert alone/below/data-2106-01-01-00-0.h5 --out x
# What means nothing for images is refused, not ignored.
expect 2 "--format has no effect on climate images, which become shards" "$bin/convoy_data" convert data --format split-hdf5 --out x
expect 2 "--no-gzip has no effect on climate images" "$bin/convoy_data" convert data --no-gzip --out x
expect 2 "--crop has no effect on climate images" "$bin/convoy_data" convert data --crop 3 --out x
expect 2 "--channels has no effect on climate images" "$bin/convoy_data" verify data --channels 3
head -c 200000 data/train/data-2106-01-01-00-0.h5 > cut.h5
expect 3 "cut.h5" "$bin/convoy_data" verify cut.h5
mkdir some && cp data/train/*.h5 cut.h5 some
expect 3 "6 images read, 1 bad" "$bin/convoy_data" verify some

train=("$bin/climseg_train" --data-dir data --width-divisor 16 --crop 32x48 --crops-per-image 2 --local-batch-size 2
       --max-epochs 3 --seed 4 --lr-schedule cosine_annealing --lr-warmup-steps 2)
expect 0 "logistic regression" "${train[@]}" --output-dir whole --save whole.safetensors --baseline --profile --trace
present whole/history.csv whole/metrics.jsonl whole/mlperf.log whole/summary.json whole/loss.svg whole/trace.json \
  whole/validation-0.png whole/validation-3.png
grep -q '"key":"eval_accuracy"' whole/mlperf.log && grep -q '"value":"deepcam"' whole/mlperf.log && ok || bad "no deepcam keys in mlperf.log"
for key in learning_rate train_loss train_accuracy tracked_stats eval_loss save_start save_stop scheduler_lr_warmup_steps opt_betas; do
  grep -q "\"key\":\"$key\"" whole/mlperf.log && ok || bad "no $key in mlperf.log"
done
grep -q 'val_iou' whole/history.csv && ok || bad "no val_iou in history.csv"
expect 0 "finished" "${train[@]}" --output-dir twin --save twin.safetensors
same whole.safetensors twin.safetensors
# Stopped in mid-epoch and resumed: the same bits, running statistics included.
expect 0 "finished" "${train[@]}" --output-dir part --max-steps 8
expect 0 "resuming from" "${train[@]}" --output-dir part --resume --save part.safetensors
same whole.safetensors part.safetensors
expect 2 "setting schedule_steps (from --lr-t-max or, without it, --max-epochs): expected 16, found 22" "${train[@]}" --output-dir part --resume --max-epochs 4
for other in "crop 48x48" "crop-balance 1" "crops-per-image 3" "class-weights none" "seed 5" "loss-type weighted" "start-lr 0.5"; do
  expect 2 "setting ${other% *}: expected" "${train[@]}" --output-dir part --resume --${other% *} ${other#* }
done

# A schedule in one text is single settings to a resume; a dry run finds what a run would.
expect 0 "finished: 2 steps" "${train[@]}" --output-dir spread --lr-schedule "type=multistep,milestones=1 2,decay_rate=0.5" --max-steps 2
expect 2 'setting lr-milestones: expected "1,2", found "1,3"' "$bin/climseg_train" --output-dir spread --resume --lr-milestones 1,3
expect 0 "finished: 1 steps" "$bin/climseg_train" --output-dir spread --resume --lr-schedule multistep --lr-milestones 1,2 --lr-decay-rate 0.5 --max-steps 3
expect 2 "--measure: expected" "${train[@]}" --output-dir never --measure foo --dry-run

# Blocks of pixels: what they become is part of the run.
expect 0 "finished" "${train[@]}" --output-dir mean --downsample 2 --downsampling-mode mean --max-epochs 1 --max-steps 2
expect 2 "setting downsampling-mode" "${train[@]}" --output-dir mean --downsample 2 --downsampling-mode pick --resume --max-epochs 1
expect 0 "4 images, masks in m" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint mean --downsample 2 --downsampling-mode mean --out m
same m/validation/data-2106-01-04-00-0.png mean/validation-0.png
expect 0 "warning: trained with --downsample 2, found 1" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint mean --out m1
expect 0 "statistics of 1 images" "$bin/convoy_data" stats data/train/data-2106-01-01-00-0.h5 --out other.h5 --threads 0
without 0 "trained with" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint mean --downsample 2 --downsampling-mode mean --out m3
expect 0 "warning: trained with other statistics" "$bin/climseg_predict" --data-dir data --stats other.h5 --width-divisor 16 --checkpoint mean --downsample 2 --downsampling-mode mean --out m2
expect 2 "--downsampling-mode has no effect on --downsample 1" "${train[@]}" --downsampling-mode mean --output-dir x
expect 2 "--downsampling-mode: expected one of pick, mean" "${train[@]}" --downsample 2 --downsampling-mode max --output-dir x

# Prediction from a checkpoint and from weights gives the trainer's masks and IoU.
expect 0 "4 images, masks in a" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint whole --out a
expect 0 "per sample" "$bin/climseg_predict" --data-dir data --width-divisor 16 --weights whole.safetensors --out b
same a/validation/data-2106-01-04-00-0.h5 b/validation/data-2106-01-04-00-0.h5
same a/validation/data-2106-01-04-00-0.png whole/validation-0.png
# Weights that are not finite predict nothing.
header=$(od -An -tu8 -N8 whole.safetensors)
cp whole.safetensors nan.safetensors; printf '\0\0\300\177' | dd of=nan.safetensors bs=1 seek=$((8 + header)) conv=notrunc 2> /dev/null
expect 4 "data-2106-01-04-00-0.h5: the prediction is not finite" "$bin/climseg_predict" --data-dir data --width-divisor 16 --weights nan.safetensors --out nan_masks
[ ! -e nan_masks/validation/data-2106-01-04-00-0.h5 ] && ok || bad "a mask of logits that are not finite"
# Images of several sizes, each as it would be alone; a size that does not divide is its file's.
expect 0 "wrote 1 + 1 images of 48x64x16" "$bin/climate_simulate" --orography none --height 48 --width 64 --days 1 --validation-days 1 --steps 1 --out small
mkdir sizes && cp data/validation/data-2106-01-0[45]-00-0.h5 sizes && cp small/validation/*.h5 sizes/data-2106-01-04-01-0.h5
expect 0 "3 images, masks in sized" "$bin/climseg_predict" --data-dir sizes --stats data/stats.h5 --width-divisor 16 --checkpoint whole --out sized
same sized/data-2106-01-05-00-0.h5 a/validation/data-2106-01-05-00-0.h5
expect 2 "--onnx: expected images of one size, which the model keeps, found 2" "$bin/climseg_predict" --data-dir sizes --stats data/stats.h5 --width-divisor 16 --checkpoint whole --out sized --onnx net.onnx
expect 0 "4 images, masks in o" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint whole --out o --onnx net.onnx --no-pictures
grep -q logits net.onnx && grep -q "fields in the units of the data set" net.onnx && ok || bad "net.onnx: expected logits of fields"
expect 0 "1 images, masks in sized-alone" "$bin/climseg_predict" --data-dir sizes/data-2106-01-04-01-0.h5 --stats data/stats.h5 --width-divisor 16 --checkpoint whole --out sized-alone
same sized/data-2106-01-04-01-0.h5 sized-alone/data-2106-01-04-01-0.h5
expect 0 "wrote 1 + 1 images of 38x57x16" "$bin/climate_simulate" --orography none --height 38 --width 57 --days 1 --validation-days 1 --steps 1 --out odd
expect 2 "--split has no effect on one file" "$bin/climseg_predict" --data-dir sizes/data-2106-01-04-01-0.h5 --split test --width-divisor 16 --checkpoint whole --out x
expect 3 "odd/validation/data-2106-01-02-00-0.h5: images of 38x57: expected height and width divisible by 16" "$bin/climseg_predict" --data-dir odd --width-divisor 16 --checkpoint whole --out x
# Two images of one name would have one mask.
mkdir doubles && cp data/validation/data-2106-01-04-00-0.h5 doubles && cp data/validation/data-2106-01-05-00-0.h5 doubles/data-2106-01-04-00-0.hdf5
expect 2 "doubles/data-2106-01-04-00-0.hdf5: expected another name than doubles/data-2106-01-04-00-0.h5's" \
  "$bin/climseg_predict" --data-dir doubles --stats data/stats.h5 --width-divisor 16 --checkpoint whole --out x
# The folder of the images is no place for masks; it may be named with a slash.
sum=$(cat data/validation/*.h5 | cksum)
expect 2 "is read from and would be overwritten" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint whole --out data
expect 2 "which is read, or lies in it" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint whole --out data/train
mkdir lone && cp -r data/validation lone/validation
expect 0 "4 images, masks in lone/masks" "$bin/climseg_predict" --data-dir lone --stats data/stats.h5 --width-divisor 16 --checkpoint whole --out lone/masks --kernel "conv2.backward_weights=reference"
[ "$(cat data/validation/*.h5 | cksum)" = "$sum" ] && ok || bad "climseg_predict changed its images"
expect 0 "4 images, masks in slash" "$bin/climseg_predict" --data-dir data/validation/ --width-divisor 16 --checkpoint whole --out slash --no-pictures
expect 2 "lies in --data-dir" "${train[@]}" --stage-dir data/stage --output-dir x
expect 2 "lies in --data-dir" env -C data "${train[@]}" --data-dir . --stage-dir stage --output-dir x
# Statistics of the images in place of the running ones: other masks from the same checkpoint.
expect 0 "4 images, masks in j" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint whole --out j --batch-norm-evaluation batch --no-pictures
unlike "--batch-norm-evaluation" j/validation/data-2106-01-04-00-0.h5 a/validation/data-2106-01-04-00-0.h5
# Statistics of whole training images: the checkpoint holds what the trainer evaluated with, resumed or not.
expect 0 "finished" "${train[@]}" --output-dir recalibrated --batch-norm-recalibration 5 --save recalibrated.safetensors
columns same 3 whole/history.csv recalibrated/history.csv
columns unlike 4 whole/history.csv recalibrated/history.csv
expect 0 "4 images, masks in k" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint recalibrated --out k
same k/validation/data-2106-01-04-00-0.png recalibrated/validation-0.png
expect 0 "finished" "${train[@]}" --output-dir halves --batch-norm-recalibration 5 --max-steps 8
expect 0 "resuming from" "${train[@]}" --output-dir halves --batch-norm-recalibration 5 --resume --save halves.safetensors
same recalibrated.safetensors halves.safetensors
# A finished run that is resumed with other statistics keeps them.
cp -r whole renewed
expect 0 "finished: 0 steps" "${train[@]}" --output-dir renewed --resume --batch-norm-recalibration 5 --save renewed.safetensors
same recalibrated.safetensors renewed.safetensors
expect 0 "4 images, masks in l" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint renewed --out l
same l/validation/data-2106-01-04-00-0.png recalibrated/validation-0.png
expect 0 "finished" "${train[@]}" --output-dir most --batch-norm-recalibration 6 --compute bf16 --max-steps 1 --n-valid 1
expect 2 "--batch-norm-recalibration: expected 0 to 6 (training images, if any validate), found 7" "${train[@]}" --batch-norm-recalibration 7 --output-dir x
expect 2 "--batch-norm-recalibration has no effect on --batch-norm-evaluation batch" "${train[@]}" --batch-norm-recalibration 2 --batch-norm-evaluation batch --output-dir x
expect 2 "--batch-norm-recalibration has no effect on dummy data" "$bin/climseg_train" --data dummy --dry-run --batch-norm-recalibration 2
expect 2 "--batch-norm-recalibration has no effect on networks without batch norm" "$bin/climseg_train" --data-dir data --model tiramisu --dry-run --batch-norm-recalibration 2
[ -e /dev/nvidia0 ] || expect 2 "device cuda" "$bin/climseg_train" --data dummy --dry-run --device cuda
expect 0 "statistics arena" "${train[@]}" --batch-norm-recalibration 2 --dry-run --output-dir x
expect 0 "10 images, masks in all" "$bin/climseg_predict" --data-dir data --split all --width-divisor 16 --checkpoint whole --out all --no-pictures
expect 0 "1 images" "$bin/climseg_predict" --data-dir data/train/data-2106-01-01-00-0.h5 --stats data/stats.h5 --width-divisor 16 --checkpoint whole --out c
expect 2 'trained with --low-level-relu "true", found "false"' "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint whole --no-low-level-relu --out x
expect 0 "finished" "${train[@]}" --data-dir shards --output-dir from_shards --max-steps 2
# Statistics beside shards mean nothing, staged or not.
mkdir beside && cp -r shards beside && cp data/stats.h5 beside
expect 0 "finished" "${train[@]}" --data-dir beside/shards --output-dir beside_shards --max-steps 1
expect 0 "resuming from" "${train[@]}" --data-dir beside/shards --stage-dir beside_stage --output-dir beside_shards --max-steps 2 --resume
# Images for a test are neither trained on, drawn nor staged; nor is what runs write beside the images.
mkdir tested && cp -r data/train data/stats.h5 tested && cp -r data/validation tested/test
expect 0 "8 training samples of 32x48x16, 2 validation images" "${train[@]}" --data-dir tested --output-dir tested/run --max-steps 1
expect 0 "staged 7 files" "${train[@]}" --data-dir tested --stage-dir tested_stage --output-dir tested/staged --max-steps 1
expect 0 "6 images, masks in tested_masks" "$bin/climseg_predict" --data-dir tested --width-divisor 16 --checkpoint tested/run --out tested_masks
mv tested/train tested/training
expect 3 "tested: expected folders train and validation, or train alone, found test" "${train[@]}" --data-dir tested --output-dir x
# Files behind the images that are wanted are neither opened nor staged.
cp -r data damaged && truncate -s 1000 damaged/train/data-2106-01-03-01-0.h5
expect 3 "data-2106-01-03-01-0.h5" "${train[@]}" --data-dir damaged --output-dir x
wanted=("${train[@]}" --n-train 2 --n-valid 1 --max-steps 2)
expect 0 "staged 3 files" "${wanted[@]}" --data-dir damaged --stage-dir damaged_stage --output-dir limited --save limited.safetensors
expect 0 "4 training samples of 32x48x16, 1 validation images" "${wanted[@]}" --output-dir limited2 --save limited2.safetensors
same limited.safetensors limited2.safetensors
expect 0 "finished" "${train[@]}" --output-dir lamb --optimizer LAMB --weight_decay 0.01 --max-steps 2 --compute bf16
grep -q '"key":"opt_weight_decay".*"value":0.01' lamb/mlperf.log && ok || bad "--weight_decay was not read as --weight-decay"
expect 0 "finished" "${train[@]}" --output-dir focal --optimizer LARC-Adam --loss-type focal --max-steps 2 --compute f16 --batch-norm-recalibration 2
grep -q 'focal loss' focal/loss.svg && ok || bad "loss.svg does not say which loss it shows"
expect 0 "finished" "$bin/climseg_train" --data-dir data --model tiramisu --growth 4 --filter 3 --output-dir tiramisu --max-epochs 1 --max-steps 2 --dropout 0.2
expect 0 "finished" "$bin/climseg_train" --data-dir data --model deeplab --batch-norm off --decoder bilinear --output-dir deeplab --max-epochs 1 --max-steps 1
expect 0 "4 images, masks" "$bin/climseg_predict" --data-dir data --model deeplab --batch-norm off --decoder bilinear --checkpoint deeplab --out g --no-pictures
expect 2 'trained with --decoder "bilinear", found "deconv"' "$bin/climseg_predict" --data-dir data --model deeplab --batch-norm off --decoder deconv --checkpoint deeplab --out x
expect 2 'trained with --batch-norm "off", found "on"' "$bin/climseg_predict" --data-dir data --model tiramisu --growth 4 --filter 3 --batch-norm on --batch-norm-evaluation batch --checkpoint tiramisu --out x
expect 0 "4 images, masks" "$bin/climseg_predict" --data-dir data --model tiramisu --growth 4 --filter 3 --batch-norm off --checkpoint tiramisu --out h --no-pictures
expect 0 "passes ahead of the update" "${train[@]}" --output-dir lag --gradient-lag 1 --gradient-accumulation-frequency 2 --max-steps 2 --profile --trace
# Both passes of both steps are in the trace, each with its input and its first layer.
for name in input conv1.forward; do
  [ "$(grep -o "\"name\":\"$name\"" lag/trace.json | wc -l)" -eq 4 ] && ok || bad "trace.json: expected 4 events $name"
done
expect 2 "constant loss scale" "${train[@]}" --output-dir x --gradient-lag 1 --compute f16
expect 0 "finished" "${train[@]}" --output-dir lag16 --gradient-lag 1 --compute f16 --loss-scale 128 --max-steps 3
expect 4 "not finite" "${train[@]}" --output-dir overflow --compute f16 --loss-scale 1e9 --max-steps 3
expect 2 "--loss-scale has no effect" "${train[@]}" --output-dir x --loss-scale 128
expect 0 "target reached" "${train[@]}" --output-dir target --target-iou 0.01 --measure pooled
target_line() { grep '"key":"target_accuracy_reached"' "$1/mlperf.log" | grep '"value":0.01' | grep '"step_num":[0-9]'; }
target_line target > /dev/null && ok || bad "no target_accuracy_reached with target and step in mlperf.log"
# Also where the limit of steps cuts the epoch short.
expect 0 "target reached" "${train[@]}" --output-dir target-cut --target-iou 0.01 --measure pooled --max-steps 1
target_line target-cut > /dev/null && ok || bad "no target_accuracy_reached behind a cut epoch"
expect 0 "target reached: 0 steps" "${train[@]}" --output-dir target-cut --target-iou 0.01 --measure pooled --max-steps 1 --resume
# What a measure is called is what it measures.
for class in cyclone river; do
  expect 0 "finished: 1 steps" "${train[@]}" --output-dir by-$class --measure $class --max-steps 1
  pooled=$(sed -n '/"pooled": {/,/}/p' by-$class/summary.json | grep "\"$class\"" | grep -o '[0-9.e-]*,\?$' | tr -d ,)
  awk -F, -v p="$pooled" 'END { d = p - $5; exit !(p != "" && d * d < 1e-14) }' by-$class/history.csv && ok || bad "--measure $class: $pooled, found $(tail -1 by-$class/history.csv)"
done
unlike "--measure" by-cyclone/history.csv by-river/history.csv
# The rate of an epoch is that of its last step.
last=$(grep '"epoch":1,' whole/metrics.jsonl | tail -1 | grep -o '"learning_rate":[0-9.e-]*' | cut -d: -f2)
awk -F, -v l="$last" 'NR == 3 { d = $2 / l - 1; exit !(d * d < 1e-14) }' whole/history.csv && ok || bad "rate of the second epoch: $last, found $(sed -n 3p whole/history.csv)"
expect 2 'setting measure: expected "pooled", found "river"' "${train[@]}" --output-dir target --target-iou 0.01 --measure river --resume
grep -q '^convolution depthwise' <("${train[@]}" --output-dir families --max-steps 2 --profile) && ok || bad "no table of families"

# As MLPerf HPC's reference is called.
expect 0 "finished" "$bin/climseg_train" --data_dir_prefix data --width-divisor 16 --output_dir reference --local_batch_size 2 --max_epochs 1 \
  --optimizer AdamW --optimizer_betas 0.9 0.99 --channels 0 1 2 10 --lr_schedule "type=multistep,milestones=1 2,decay_rate=0.5" \
  --max_inter_threads 2 --logging-frequency 3
grep -q '"key":"scheduler_milestones".*"value":\[1,2\]' reference/mlperf.log && grep -q '"key":"opt_betas".*"value":\[0.9,0.99\]' reference/mlperf.log && ok \
  || bad "lists of numbers as words were misread"
[ "$(grep -c '"key":"train_accuracy"' reference/mlperf.log)" -eq 1 ] && ok || bad "expected one line train_accuracy: the third step ends the epoch"
expect 2 "--lr-schedule: expected one of constant, multistep, cosine_annealing, polynomial; found unknown" "${train[@]}" --lr-schedule type=unknown --output-dir x
# What it has beyond that is refused by name.
for flag in wireup_method run_tag model_prefix wandb_certdir resume_logging; do
  expect 2 "unknown flag or word: --${flag//_/-} " "${train[@]}" --$flag word --output-dir x
done
expect 2 "--lr-schedule: milestones is given twice" "${train[@]}" --lr-schedule "type=multistep,milestones=1" --lr-milestones 2 --output-dir x
expect 2 "expected type=, milestones=" "${train[@]}" --lr-schedule "type=multistep,gamma=1" --output-dir x
expect 2 "--channels: expected numbers of 0 to 15, found 16" "${train[@]}" --channels 0,16 --output-dir x
expect 0 "4 images, masks" "$bin/climseg_predict" --data-dir data --width-divisor 16 --channels 0,1,2,10 --checkpoint reference --out i --no-pictures
expect 2 'trained with --channels "0,1,2,10", found "0,1,2,9"' "$bin/climseg_predict" --data-dir data --width-divisor 16 --channels 0,1,2,9 --checkpoint reference --out x
printf 'reference\tconv_forward{} in=f32:1x1x8x8x4|f32:16x1x1x1x4\n' > other.txt
expect 2 "other.txt: expected problems of this run, found none among 1" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint whole --tuned other.txt --out x
# Spellings of one meaning resume.
expect 0 "resuming from" "$bin/climseg_train" --data-dir data --width-divisor 16 --output-dir reference --resume --local-batch-size 2 --max-epochs 1 \
  --optimizer AdamW --optimizer-betas .9,.99 --channels 0,1,2,10 --lr-schedule multistep --lr-milestones 1,2 --lr-decay-rate 0.50 --start-lr 1e-3
expect 0 "finished" "${train[@]}" --output-dir less --recompute --save less.safetensors
same whole.safetensors less.safetensors
expect 2 "--recompute has no effect" "${train[@]}" --recompute --no-passes --output-dir x
expect 2 "--gradient-sums has no effect" "${train[@]}" --no-gradient-sums --no-passes --output-dir x
expect 2 "--recompute has no effect on this network" "$bin/climseg_train" --model tiramisu --dry-run --recompute
expect 2 "no node has such a name" "$bin/climseg_train" --data dummy --summary --recompute --kernel deconv3.bn.forward/again=reference
expect 2 "expected numbers of 0 to 15, found 99" "$bin/climseg_train" --data dummy --summary --channels 99
expect 0 "finished" "$bin/cosmoflow_train" --data dummy --size 16 --conv-size 4 --batch-size 1 --n-train 1 --n-epochs 1 --output-dir cosmo --save cosmo.safetensors
expect 2 'cosmo.safetensors: trained with --model "mlperf", found "deepcam"' "$bin/climseg_predict" --data-dir data --width-divisor 16 --weights cosmo.safetensors --out x
expect 2 "unknown flag or word: --n-epochs (here --max-epochs is its like)" "$bin/climseg_train" --summary --n-epochs 3
expect 2 "unknown flag or word: --no-sparse-gradients" "$bin/climseg_train" --summary --no-sparse-gradients
expect 2 "--logging-frequency: expected 0 or more, found -1" "${train[@]}" --logging-frequency -1 --output-dir x
expect 2 "--deconv-crop has no effect" "$bin/climseg_train" --model deeplab --decoder bilinear --summary --deconv-crop pytorch
expect 2 "--batch-norm-evaluation has no effect" "$bin/climseg_train" --model deeplab --summary --batch-norm-evaluation running
expect 2 "--batch-norm-momentum has no effect" "$bin/climseg_train" --model deeplab --summary --batch-norm-momentum 0.1

# Real fields, where Debian's data packages are installed.
coads=/usr/share/ferret-vis/data/coads_climatology.cdf
if [ -x "$bin/climate_convert" ]; then
  expect 2 "expected a channel of TMQ" "$bin/climate_convert" --map SST=$coads:SST --out x
  expect 3 "no such file" "$bin/climate_convert" --map TS=none.nc:SST --out x
  expect 3 "a,b.nc: no such file" "$bin/climate_convert" --map TS=a,b.nc:SST,PSL=c.nc:SLP --out x
  echo text > text.nc
  expect 3 "expected a NetCDF file" "$bin/climate_convert" --list text.nc
  for flag in "out x" "steps 3" "labels"; do
    # shellcheck disable=SC2086
    expect 2 "--${flag% *} has no effect on --list" "$bin/climate_convert" --list text.nc --$flag
  done
  if [ -e $coads ]; then
    expect 0 "wrote 2 images of 64x96x16" "$bin/climate_convert" --map "PSL=$coads:SLP*100" --map TS=$coads:SST+273.15 --out real --height 64 --width 96 --steps 2
    expect 0 "2 images read, 0 bad" "$bin/convoy_data" verify real
    without 0 "warning: channel" "$bin/climate_convert" --map "PSL=$coads:SLP*100" --map TS=$coads:SST+273.15 --out known --height 64 --width 96 --steps 1
    expect 0 "warning: channel PSL: expected a mean of 40000 to 120000 Pa, found 10" "$bin/climate_convert" --map "PSL=$coads:SLP" --out hectopascal --height 64 --width 96 --steps 1
    expect 0 "warning: channel TS: expected a mean of 150 to 350 K, found 1" "$bin/climate_convert" --map "TS=$coads:SST" --out celsius --height 64 --width 96 --steps 1
    expect 0 "2 images, masks" "$bin/climseg_predict" --data-dir real --width-divisor 16 --checkpoint whole --out d
    mkdir mixed && cp real/*.h5 mixed && cp data/validation/data-2106-01-04-00-0.h5 mixed
    expect 0 "(1 labelled images)" "$bin/climseg_predict" --data-dir mixed --width-divisor 16 --checkpoint whole --out e
    expect 0 "statistics of 2 images" "$bin/convoy_data" stats real --out real-stats.h5
    expect 0 "2 images, masks" "$bin/climseg_predict" --data-dir real --stats real-stats.h5 --width-divisor 16 --checkpoint whole --out f
    expect 0 "orography: /usr/share/ferret-vis/data/etopo" "$bin/climate_simulate" --height 64 --width 96 --days 1 --validation-days 1 --steps 1 --out mountains
    expect 3 "variable SST: expected levels to choose 500 from, found none" "$bin/climate_convert" --map TS=$coads:SST@500+273.15 --out x
    expect 3 "expected heights in metres, the largest between 1000 and 10000, found" "$bin/climate_simulate" --height 64 --width 96 --days 1 --orography "$coads:SST" --out x
    expect 3 "name the heights as $coads:VARIABLE" "$bin/climate_simulate" --height 64 --width 96 --days 1 --orography "$coads" --out x
    expect 3 "expected variable SSTX, found SST" "$bin/climate_convert" --map TS=$coads:SSTX --out x
  else
    echo "skipped: real fields want Debian's ferret-datasets"
  fi
  winds=/usr/share/ncarg/data/cdf/nc4uvt.nc  # NetCDF-4, levels, a part of the globe
  if [ -e $winds ]; then
    expect 0 "wrote 1 images of 64x96x16" "$bin/climate_convert" --map "U850=$winds:U@850" --map "T500=$winds:T@500" --out winds --height 64 --width 96 --steps 1
    expect 3 "has 14 levels: name one" "$bin/climate_convert" --map "U850=$winds:U" --out x
    expect 3 "variable U: expected level 840, found" "$bin/climate_convert" --map "U850=$winds:U@840" --out x
    expect 3 "variable U: expected level 1, found" "$bin/climate_convert" --map "U850=$winds:U@1" --out x
  else
    echo "skipped: fields with levels want Debian's libncarg-data"
  fi
else
  echo "skipped: this build has no NetCDF, and so no climate_convert"
fi

# A full disk is an error of one line, and what was saved is whole.
mkdir full
if mount -t tmpfs -o size=8m none full 2>/dev/null; then
  trap 'umount "$work/full"; rm -rf "$work"' EXIT
  cp own.h5 full/own.h5
  expect 0 "finished" "${train[@]}" --output-dir full/run --max-steps 2 --pictures 0
  head -c 8M /dev/zero > full/rest 2>/dev/null
  truncate -s -4K full/rest
  expect 1 "full/own.h5.tmp: cannot write to disk" "$bin/convoy_data" stats data/train --out full/own.h5
  same own.h5 full/own.h5
  truncate -s -1M full/rest
  expect 1 "full/run/checkpoint-000000004.h5.tmp: cannot write" "${train[@]}" --output-dir full/run --max-steps 4 --resume --pictures 0
  expect 0 "4 images, masks in rescued" "$bin/climseg_predict" --data-dir data --width-divisor 16 --checkpoint full/run --out rescued --no-pictures
else
  echo "skipped: programs on a full disk (mounting a file system is not permitted)"
fi

expect 0 "parameters 56454720" "$bin/climseg_train" --summary
expect 0 "parameters 7504835 (7801315 as published, with 296480 that nothing reads)" "$bin/climseg_train" --model tiramisu --summary
expect 0 "three times that for training 14410.2" "$bin/climseg_train" --model deeplab --summary
expect 0 "GFLOP as TensorFlow's graph counter" "$bin/climseg_train" --summary
expect 0 "GFLOP as TensorFlow's graph counter" "$bin/climseg_train" --summary --model deeplab
expect 2 "divisible by 16" "${train[@]}" --crop 40x48 --output-dir x
expect 3 "exceed the image's 64x96x16" "${train[@]}" --crop 128x192 --output-dir x
expect 2 "--crop: expected HEIGHTxWIDTH" "${train[@]}" --crop 32 --output-dir x
expect 2 "no effect on deepcam" "${train[@]}" --growth 8 --output-dir x
expect 2 "--weight-decay has no effect on --optimizer SGD" "${train[@]}" --optimizer SGD --weight-decay 0.1 --output-dir x
expect 2 "--blocks: expected two or more numbers of 1 to 256, found 0,2" "${train[@]/--width-divisor/--seed}" --model tiramisu --blocks 0,2 --output-dir x
expect 2 "--class-weights: expected mlperf, gordon-bell, none or three numbers, found 1,2" "${train[@]}" --class-weights 1,2 --output-dir x
expect 2 "--class-weights: expected numbers of at least 0, one above, found 0,0,0" "${train[@]}" --class-weights 0,0,0 --output-dir x
expect 2 "--focal-gamma has no effect" "${train[@]}" --focal-gamma 1 --output-dir x
expect 2 "--target-iou has no effect on dummy data" "$bin/climseg_train" --data dummy --target-iou 0.5 --output-dir x
expect 2 "--downsample has no effect on crops of dummy data" "$bin/climseg_train" --data dummy --crop 64x96 --downsample 2 --output-dir x
expect 2 "--mlperf-division closed: expected --model deepcam, found tiramisu" "$bin/climseg_train" --data dummy --model tiramisu --dry-run --mlperf-division closed
expect 2 "--year: expected days up to the year 9999, found 10000" "$bin/climate_simulate" --out x --year 9999 --days 365 --validation-days 1
closed=("$bin/climseg_train" --data-dir data --dry-run --mlperf-division closed --seed 333 --target-iou 0.82 --lr-schedule type=multistep,milestones=8192)
expect 0 "planned in all" "${closed[@]}" --optimizer LAMB --start-lr 0.004 --lr-warmup-steps 100 --weight-decay 0.01 --local-batch-size 2
expect 2 "closed: expected 121266 training and 15158 validation images of 768x1152x16, found 6 and 4 of 64x96x16" "${closed[@]}" --no-dry-run --output-dir x
for wrong in "adam-eps 1e-6 1e-8" "crop whole 32x48" "class-weights mlperf none" "loss-type weighted_mean focal" "width-divisor 1 8" "output-stride 16 8" \
  "batch-norm-recalibration 0 4" "optimizer Adam SGD" "seed 1 0"; do
  read -r flag expected found <<< "$wrong"
  expect 2 "--mlperf-division closed: expected --$flag $expected" "${closed[@]}" "--$flag" "$found"
done
expect 2 "--start-lr: expected 0 or more, found -1" "$bin/climseg_train" --data dummy --width-divisor 16 --image-size 64x96 --start-lr -1 --output-dir x
expect 2 "--stats has no effect on shards, which are normalised already" "${train[@]}" --data-dir shards --stats data/stats.h5 --output-dir x
expect 2 "--crops-per-image has no effect on whole images" "$bin/climseg_train" --data-dir data --width-divisor 16 --crops-per-image 4 --output-dir x
expect 0 "2 training samples of 64x96x16" "$bin/climseg_train" --data dummy --width-divisor 16 --image-size 64x96 --n-train 2 --local-batch-size 2 --max-epochs 1 --output-dir two
expect 2 "a step takes 2 samples, more than the 1 training samples" "$bin/climseg_train" --data dummy --n-train 1 --local-batch-size 2 --output-dir x
expect 2 "--stats has no effect on dummy data" "$bin/climseg_train" --data dummy --stats data/stats.h5 --output-dir x
expect 2 "--valid-share has no effect on data in folders" "${train[@]}" --valid-share 0.3 --output-dir x
expect 2 "--baseline has no effect on a run without validation images" "${train[@]}" --data-dir data/train --stats data/stats.h5 --valid-share 0 --baseline --output-dir x
expect 0 "training samples of 48x64x16" "$bin/climseg_train" --data dummy --width-divisor 16 --model deepcam --image-size 192x256 --downsample 4 --max-epochs 1 --max-steps 1 --output-dir coarse
expect 2 "validation share" "${train[@]}" --data-dir data/train --stats data/stats.h5 --valid-share 1.5 --output-dir x
expect 3 "found one set" "${train[@]}" --data-dir shards --label-set 1 --output-dir x
expect 3 "found one set" "$bin/climseg_predict" --data-dir shards --label-set 1 --width-divisor 16 --checkpoint whole --out unset
[ -e unset ] && bad "masks of a label set that is not there: $(ls unset)" || ok
mkdir half && cp -r shards/train data/validation data/stats.h5 half  # the images that validate are the first without norm
expect 0 "statistics: half/stats.h5" "${train[@]}" --data-dir half --max-epochs 1 --output-dir half-run
expect 0 "one value per channel and pass" "${train[@]}" --crop 16x16 --local-batch-size 1 --dry-run
without 0 "one value per channel" "${train[@]}" --crop 16x16 --local-batch-size 1 --batch-norm-recalibration 2 --dry-run
mkfifo pipe
for reads in "climseg_predict --checkpoint pipe --width-divisor 16 --data-dir data" "climseg_train --data-dir data --stats pipe --output-dir x" \
  "climate_convert --list pipe"; do
  expect 3 "pipe: " timeout 20 "$bin/"$reads
done
expect 3 "stats.h5: no such file" "${train[@]}" --data-dir data/validation/.. --stats stats.h5 --output-dir x
expect 3 "no such folder" "${train[@]}" --data-dir nowhere --output-dir x
expect 2 "--lr-warmup-factor has no effect on a run without --lr-warmup-steps" "${train[@]}" --lr-warmup-steps 0 --lr-warmup-factor 4 --output-dir x
expect 2 "--lr-milestones: expected one step or more" "$bin/climseg_train" --data-dir data --width-divisor 16 --lr-schedule multistep --output-dir x
expect 2 '--lr-milestones: expected a number, found "1.7"' "$bin/climseg_train" --data-dir data --width-divisor 16 --lr-schedule multistep --lr-milestones 1.7 --output-dir x
# Running statistics that no number fits: the arg-max of NaN is a class, and must not count as one.
expect 4 "the validation is not finite" "$bin/climseg_train" --data-dir data --model tiramisu --filter 3 --growth 4 --first-filters 4 --blocks 1,1 \
  --max-epochs 1 --optimizer SGD --momentum 0 --start-lr 1e18 --max-steps 1 --target-iou 0.1 --output-dir overflow
expect 4 "first at" "${train[@]}" --start-lr 1e30 --optimizer SGD --lr-warmup-steps 0 --output-dir nan
conclude
