#!/usr/bin/env bash
# The layer bench and its reports, on tiny problems.   usage: bench.sh BIN_DIR
set -u
bin=$1
. "$(dirname "$0")/expect.sh"
layers=("$bin/bench_layers" --min-seconds 0)

expect 0 "winograd" "${layers[@]}" --problem 'conv ic16ih40oc16kh3ph1 n"square"' --json new.jsonl --csv new.csv --refusals --cold
grep -q '"kernel":"winograd.*"correct":true' new.jsonl && ok || bad "no Winograd kernel was checked"
head -1 new.jsonl | grep -q '"threads":.*"cold":true,"min_seconds":0.0*,.*"CONVOY_MAX_ISA":"' && ok || bad "head of new.jsonl"
grep -q '"refused":.*"problem":' new.jsonl && ok || bad "refusals do not name their problem"
[ "$(head -1 new.csv)" = name,pass,dtype,kernel,detail,min_ms,median_ms,gflops,ceiling_share,ceiling_name,bandwidth_share,onednn_ratio,correct,gflops_valid,bytes,flop_per_byte,runs,problem ] && ok || bad "head of new.csv"
grep -q '^square.forward,.*,true,[0-9.]*,[0-9]*,[0-9.]*,1,"conv_forward{' new.csv && ok || bad "no valid taps, bytes, FLOP per byte, runs and problem in new.csv"
expect 0 "conv_pool_forward{" "${layers[@]}" --size 16 --match conv1.forward --list
expect 0 "conv_activation_forward" "${layers[@]}" --model tiramisu --size 16x32 --match down1.layer1.forward --list
expect 0 "winograd" "${layers[@]}" --model tiramisu --size 64x96 --match down1.layer1.forward --kernels winograd
expect 2 '--skip: expected names' "${layers[@]}" --size 16 --skip reference,
expect 2 'no kernel is called "avx1024"' "${layers[@]}" --size 16 --kernels avx1024
expect 2 '--match: expected a part' "${layers[@]}" --size 16 --match conv77
expect 2 'unknown flag: --warm' "${layers[@]}" --warm
expect 2 '--json: expected a value' "${layers[@]}" --json
expect 2 '--cold: expected yes or no, found maybe' "${layers[@]}" --cold=maybe
expect 2 'unknown flag: --warm' "${layers[@]}" --warm=yes
expect 3 'none.txt: cannot open' "${layers[@]}" --problems none.txt
small='conv ic16ih40oc16kh3ph1'
expect 2 '--dtype: expected f32, bf16 or f16, found f64' "${layers[@]}" --dtype f64 --problem "$small"
expect 2 'error: --batch: expected 1 to 1048576, found 0' "${layers[@]}" --batch 0 --problem "$small"
expect 3 ".: expected a file of problems, found one that cannot be read, or a folder" "${layers[@]}" --problems .
expect 2 '--threads: expected 0 to' "${layers[@]}" --threads -3 --problem "$small"
expect 2 '--model has no effect beside' "${layers[@]}" --model deepcam --problem "$small"
expect 2 '--batch-norm has no effect on cosmoflow' "${layers[@]}" --size 16 --batch-norm on
expect 2 'nothing was timed' "${layers[@]}" --problem "$small" --kernels depthwise --tune empty.txt
[ -e empty.txt ] && bad "a run without times wrote a tuned table" || ok
expect 1 '/dev/full: cannot write' "${layers[@]}" --problem "$small" --kernels direct --json /dev/full
expect 1 '/dev/full: cannot write' "${layers[@]}" --problem "$small" --kernels direct --csv /dev/full
expect 1 'standard output: cannot write' sh -c '"$@" > /dev/full' run "$bin/bench_step" --size 16 --steps 1
expect 2 '--json: expected a value, found --cold' "${layers[@]}" --problem "$small" --json --cold
# A flag is given once, but for --problem; of a model --pass keeps the nodes of that pass.
expect 0 'second.forward' "${layers[@]}" --problem "$small"' n"first"' --problem "conv ic16ih20oc16kh3ph1"' n"second"' --pass forward --list
expect 2 '--csv: expected once, found twice' "${layers[@]}" --problem "$small" --csv a.csv --csv b.csv
expect 0 'conv1.backward_weights' "${layers[@]}" --size 16 --pass backward_weights --list
without 0 'forward\|update' "${layers[@]}" --size 16 --pass backward_weights --list
expect 2 '--pass: expected forward' "${layers[@]}" --size 16 --pass forwards
# What a kernel is asked for by name runs, also the reference; what is left out wins otherwise.
expect 0 'reference' "${layers[@]}" --problem 'conv ic4ih8oc4kh3ph1' --pass forward --kernels reference
expect 2 'nothing was timed' "${layers[@]}" --problem "$small" --kernels reference --skip reference
# ... or says why it does not.
expect 2 'few_outputs_avx2  refuses: ' "${layers[@]}" --problem "$small" --pass forward --kernels few_outputs_avx2
# Without oneDNN's time there is no ratio.
expect 0 'direct' "${layers[@]}" --problem "$small" --pass forward --kernels direct --json alone.jsonl --csv alone.csv
grep -q '"onednn_ratio":null' alone.jsonl && ! grep -q '"onednn_ratio":0' alone.jsonl && ok || bad "a ratio to nothing in alone.jsonl"
grep -q ',,true,' alone.csv && ok || bad "a ratio to nothing in alone.csv"
expect 0 'square.forward' "$bin/bench_report" summary new.jsonl
expect 0 'forward' "$bin/bench_report" summary alone.jsonl
# Below the ratio asked for the median of five more runs counts; without a ratio nothing is measured again.
expect 2 '--rerun-below: expected a number of at least 0' "${layers[@]}" --problem "$small" --rerun-below nan
expect 0 'direct' "${layers[@]}" --problem "$small" --pass forward --kernels direct --rerun-below 9999 --json once.jsonl
grep -q '"runs":1,' once.jsonl && ok || bad "a run repeated without a ratio"
expect 0 'direct' "${layers[@]}" --problem "$small" --pass forward --kernels direct,onednn --rerun-below 9999 --json again.jsonl
if grep -q '"kernel":"onednn"' again.jsonl; then
  grep -q '"runs":5,' again.jsonl && ! grep -q '"runs":1,' again.jsonl && ok || bad "a slow problem is not measured again"
fi
# What a file holds stays until there is something to write, and an empty one is not left behind.
echo old > kept.jsonl; echo old > kept.csv
expect 2 'nothing was timed' "${layers[@]}" --problem "$small" --kernels depthwise --json kept.jsonl --csv kept.csv
[ "$(cat kept.jsonl kept.csv)" = $'old\nold' ] && ok || bad "a run without times replaced kept.jsonl or kept.csv"
expect 2 'nothing was timed' "${layers[@]}" --problem "$small" --kernels depthwise --json none.jsonl
[ -e none.jsonl ] && bad "a run without times left an empty file" || ok
expect 0 'direct' "${layers[@]}" --problem "$small" --pass forward --kernels direct --json kept.jsonl --csv kept.csv
[ "$(head -c 11 kept.jsonl)" = '{"machine":' ] && [ "$(head -c 5 kept.csv)" = name, ] && ok || bad "the beginning of kept.jsonl or kept.csv"
! grep -qx old kept.jsonl kept.csv && ok || bad "old rows in kept.jsonl or kept.csv"
for flag in --json --csv --tune --kernels; do expect 2 "$flag has no effect beside --list" "${layers[@]}" --problem "$small" --list $flag listed; done
# Files are opened before anything is measured, and separate.
expect 1 'no/new.jsonl: cannot open' "${layers[@]}" --problem "$small" --kernels direct --json no/new.jsonl
without 1 GFLOP "${layers[@]}" --problem "$small" --kernels direct --json no/new.jsonl
expect 1 'no/tuned.txt: cannot create' "${layers[@]}" --problem "$small" --kernels direct --tune no/tuned.txt
without 1 GFLOP "${layers[@]}" --problem "$small" --kernels direct --tune no/tuned.txt
expect 2 '--json, --tune: expected two files, found same' "${layers[@]}" --problem "$small" --json same --tune same
expect 2 '--json, --csv: expected two files' "${layers[@]}" --problem "$small" --json ./same --csv same
# Problems that say nonsense name their line; what is too large is refused and the rest goes on.
expect 2 'oh: expected 39 to 41, found 20' "${layers[@]}" --problem 'conv ic16ih40oc16oh20kh3ph1'
expect 2 'expected at most 274877906944 elements' "${layers[@]}" --problem 'conv mb16ic16777216ih1048576oc16kh1'
expect 2 '--batch: expected 1 to' "${layers[@]}" --problem "$small" --batch 9000000000000000000
expect 2 '--size, --batch: expected at most' "${layers[@]}" --size 4096 --batch 1048576
expect 2 '--size: expected extents of 1 to' "${layers[@]}" --model deepcam --size 99999999999x9
w=f32:4x1x3x3x4 state=f64:1x1x1x1x8 scale=f64:1x1x1x1x4 one=f32:1x1x1x1x1
expect 0 'sgd_update' "${layers[@]}" --problem "sgd_update{} in=$w|$state|$scale|$one|$w|$w"
expect 0 'adam_update' "${layers[@]}" --problem "adam_update{} in=$w|$state|$scale|$one|$w|$w|$w"
expect 0 'loss_scale_update' "${layers[@]}" --problem "loss_scale_update{} in=$one|$scale"
own='conv_forward{} in=f32:1x1x8x8x4|f32:16x1x1x1x4'
expect 2 'found out=' "${layers[@]}" --problem "$own out="
expect 2 'found out=bf16:1x1x8x8x16' "${layers[@]}" --problem "$own out=bf16:1x1x8x8x16"
expect 2 'found -6400 along N' "${layers[@]}" --problem "$own out=f32:1x1x8x8x16@-6400,1024,128,16"
expect 2 'expected extents of 1 to' "${layers[@]}" --problem "add{} in=f32:1x1x0x8x4|f32:1x1x0x8x4"
printf '# large, then small\nconv mb1ic256id1024oc256kd3pd1 n"large"\n%s n"small"\n' "$small" > mixed.txt
expect 1 'large.forward: direct' "${layers[@]}" --problems mixed.txt --pass forward --kernels direct --json mixed.jsonl
grep -q '"name":"large.forward".*"refused":"error: needs' mixed.jsonl && ok || bad "no row about the problem that failed"
grep -q '"name":"small.forward".*"min_ms"' mixed.jsonl && ok || bad "the run ended with the problem that failed"
sed 's/ic16/ic16zz3/' mixed.txt > nonsense.txt
expect 2 'nonsense.txt:3: convolution string: cannot read "zz3' "${layers[@]}" --problems nonsense.txt
verbose='dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:acdb:f0 wei_f32::blocked:abcd:f0,'
expect 0 'its post-ops eltwise_relu are left out' "${layers[@]}" --list \
  --problem "${verbose}attr-post-ops:eltwise_relu,alg:convolution_direct,mb1_ic16oc16_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1,0.1"
# Odd names stay one field.
expect 0 'direct' "${layers[@]}" --problem "$small"' n"a,\b"' --pass forward --kernels direct --json odd.jsonl --csv odd.csv
grep -q '^"a,\\b.forward",forward,f32,direct' odd.csv && ok || bad "a name with a comma in odd.csv"
expect 0 'a,\b.forward' "$bin/bench_report" summary odd.jsonl
# The networks of 2018 are timed as they are trained, without batch norm; DeepCAM with it.
without 0 batch_norm "$bin/bench_layers" --model tiramisu --size 32x48 --list
expect 0 'batch_norm' "${layers[@]}" --model tiramisu --size 32x48 --batch-norm on --list
# Help speaks of the program's own flags.
expect 0 '--batch multiplies the mb' "$bin/bench_layers" --help
without 0 '--problem' "$bin/bench_step" --help
# A table tuned for a step decides that step; one for another batch is refused.
expect 0 'conv1.forward' "$bin/bench_layers" --size 16 --batch 2 --threads 1 --min-seconds 0 --tune tuned.txt
steps=("$bin/cosmoflow_train" --data dummy --size 16 --n-train 4 --n-epochs 1 --threads 1 --tuned tuned.txt)
expect 0 ' % of the operations' "${steps[@]}" --batch-size 2 --dry-run
grep -P '\tconv' tuned.txt > layers.txt
expect 2 'layers.txt: expected problems of this run, found none' "${steps[@]}" --batch-size 4 --dry-run --tuned layers.txt
sed 's/^[a-z0-9_]*/mine/' tuned.txt > mine.txt
expect 2 'mine.txt: no kernel is called mine, of this build or of CONVOY_PLUGINS' "${steps[@]}" --batch-size 2 --dry-run --tuned mine.txt
expect 0 ' % of the operations' "$bin/bench_step" --size 16 --batch 2 --threads 1 --steps 1 --tuned tuned.txt
# Shortcuts that a step can do without.
"$bin/bench_step" --size 16 --threads 1 --steps 1 > all.txt
grep -q ' winograd' all.txt && grep -q ' pool_sparse' all.txt && ok || bad "a step without Winograd or sums over pooled gradients: $(cat all.txt)"
without 0 ' winograd' "$bin/bench_step" --size 16 --threads 1 --steps 1 --winograd no
without 0 ' pool_sparse' "$bin/bench_step" --size 16 --threads 1 --steps 1 --sparse-gradients no
expect 0 ' regions  even ' "$bin/bench_step" --size 16 --threads 8 --steps 1 --shares yes
expect 0 ',"slowest_seconds":0.' "$bin/bench_step" --size 16 --threads 8 --steps 1 --shares yes --nodes no
expect 2 'dense1.forward: expected a kernel of our own beside --shares, found widened' "$bin/bench_step" --size 16 --compute bf16 --threads 2 --shares yes --kernel dense1.forward=widened
expect 2 '--shares is about threads of a CPU' "$bin/bench_step" --size 16 --device cuda --shares yes
expect 2 '--sparse-gradients has no effect on deepcam' "$bin/bench_step" --model deepcam --size 32x48 --sparse-gradients no
arena() { "$bin/bench_step" --model deepcam --size 64x96 --threads 1 --steps 1 --nodes no "$@" | grep -oE '"arena_mib":[0-9]+' | cut -d: -f2; }
[ "$(arena --recompute yes)" -lt "$(arena)" ] && ok || bad "--recompute yes does not save memory: $(arena --recompute yes), $(arena) MiB"
# A GPU's step takes less than a millisecond.
"$bin/bench_step" --size 16 --threads 1 --steps 1 --nodes no > step.json
grep -qE '"median_seconds":[0-9]+\.[0-9]{7},"min_seconds":[0-9]+\.[0-9]{7},' step.json && ok || bad "seconds of a step to 100 ns in step.json"
expect 2 'layers.txt: expected problems of this run, found none' "$bin/bench_step" --size 16 --batch 4 --threads 1 --tuned layers.txt
expect 2 'mine.txt: no kernel is called mine, of this build or of CONVOY_PLUGINS' "$bin/bench_step" --size 16 --batch 2 --threads 1 --tuned mine.txt
sed '1s/in=[^ ]*/in=f32:0x1x1x1x1/' tuned.txt > damaged.txt
expect 3 'damaged.txt:1: ' "$bin/bench_step" --size 16 --batch 2 --threads 1 --tuned damaged.txt
expect 3 ': cannot read the tuned table' "$bin/bench_step" --size 16 --batch 2 --threads 1 --tuned .

expect 0 "geometric mean of old/new medians 1.000, 0 faster and 0 slower by 5 % or more at q < 0.05" "$bin/bench_report" compare new.jsonl new.jsonl
expect 2 "--significance: expected a number between 0 and 1" "$bin/bench_report" compare new.jsonl new.jsonl --significance 2
expect 2 "--least: expected a number from 0 to 10" "$bin/bench_report" compare new.jsonl new.jsonl --least=-1
line() { echo '{"name":"a","pass":"forward","dtype":"bf16","kernel":"'"$1"'","detail":"'"$2"'","min_ms":'"$3"',"median_ms":'"$3"',"gflops":50,"flop_per_byte":9,"samples_ms":['"$4"'],"problem":"'"${5:-p}"'"}'; }
library() { echo '{"machine":"m","libraries":"oneDNN '"$1"'","threads":1}'; }
{ library 2; echo '{"ceiling":"f32_fma","value":100,"unit":"GFLOP/s"}'; echo '{"ceiling":"bf16_dot","value":200,"unit":"GFLOP/s"}'
  line mine "" 1.0 1.0,1.1,1.2,1.3,1.4; line onednn jit 1.5 1.5,1.6,1.7; line mine "" 1 1,1,1 conv_q; line onednn gemm:jit 9 9,9,9 conv_q
  line mine "" 1 1,1,1 dense_q; line onednn gemm:jit 1.4 2,2,2 dense_q; } > old.jsonl
{ library 2; line mine "" 2.0 2.0,2.1,2.2,2.3,2.4; line onednn jit 1.4 1.4,1.6,1.8; } > slow.jsonl
{ library 3; tail -n +2 slow.jsonl; } > newer.jsonl
without 0 "rows of the same library" "$bin/bench_report" compare old.jsonl newer.jsonl
expect 2 "bench_report: error: new is required" "$bin/bench_report" compare old.jsonl
# Ratios within a file are of the one with the library's fastest, whatever the order, and none where it lacks ours.
{ library 2; line mine "" 1 1,1,1; line onednn jit 2.0 2,2,2; } > both.jsonl
{ library 3; line onednn jit 1.5 2,2,2; } > theirs.jsonl
{ library 4; line onednn jit 2.0 2,2,2; } > as-fast.jsonl
for order in "both.jsonl theirs.jsonl" "theirs.jsonl both.jsonl"; do
  without 0 "beside ours of the same file" "$bin/bench_report" summary $order
done
for order in "both.jsonl as-fast.jsonl" "as-fast.jsonl both.jsonl"; do
  expect 0 "1 of them beside ours of the same file: geometric mean 2.000" "$bin/bench_report" summary $order
done
# What else differs between two runs is told; that the machine took longer only where nothing does.
ran() { echo '{"machine":"'"$1"'","libraries":"oneDNN 2","threads":'"$2"',"cold":'"$3"',"CONVOY_MAX_ISA":"'"$4"'","commit":"'"$5"'"}'; line mine "" "$6" "$6"; line onednn jit "$6" "$6"; }
ran m 2 false "" c1 1.0 > base.jsonl
ran m 2 false "" c2 2.0 > alike.jsonl
expect 0 "the machine, not the kernels, took 2.000 times as long" "$bin/bench_report" compare base.jsonl alike.jsonl
expect 0 "commit                    c1         c2" "$bin/bench_report" compare base.jsonl alike.jsonl
without 0 "warning" "$bin/bench_report" compare base.jsonl alike.jsonl
other() {
  ran "$3" "$4" "$5" "$6" c2 2.0 > other.jsonl
  expect 0 "warning: $1: old $2" "$bin/bench_report" compare base.jsonl other.jsonl
  expect 0 "  the library took 2.000 times as long" "$bin/bench_report" compare base.jsonl other.jsonl
}
other machine "m, new n:" n 2 false ""
other threads "2, new 4:" m 4 false ""
other cold "false, new true:" m 2 true ""
# Problems name the threads that they were planned for.
for threads in 1 2; do
  expect 0 'direct' "${layers[@]}" --threads=$threads --problem "$small" --pass=forward --kernels=direct --json=threads-$threads.jsonl
done
expect 0 " in common, geometric mean" "$bin/bench_report" compare threads-1.jsonl threads-2.jsonl
expect 0 "warning: threads: old 1, new 2" "$bin/bench_report" compare threads-1.jsonl threads-2.jsonl
cat threads-1.jsonl threads-2.jsonl > threads.jsonl
expect 0 "geometric mean of old/new medians 1.000, 0 faster and 0 slower" "$bin/bench_report" compare threads.jsonl threads.jsonl
other CONVOY_MAX_ISA "none, new avx2:" m 2 false avx2
# What an older file does not say is no difference, and not known to be none.
sed 's/,"cold":false,"CONVOY_MAX_ISA":"","commit":"c1"//' base.jsonl > older.jsonl
without 0 "warning" "$bin/bench_report" compare older.jsonl alike.jsonl
expect 0 "  the library took 2.000 times as long" "$bin/bench_report" compare older.jsonl alike.jsonl
# A file of several runs.
{ cat base.jsonl; ran m 2 true "" c1 1.0; } > both.jsonl
expect 0 "warning: cold: old false, new false and true:" "$bin/bench_report" compare base.jsonl both.jsonl
# A problem that a file holds twice is compared occurrence by occurrence.
{ line mine "" 1.0 1.0,1.1,1.2,1.3,1.4; line mine "" 3.0 3.0,3.1,3.2,3.3,3.4; } > twice.jsonl
expect 0 "2 in common, geometric mean of old/new medians 1.000, 0 faster and 0 slower" "$bin/bench_report" compare twice.jsonl twice.jsonl
expect 0 "SLOWER" "$bin/bench_report" compare old.jsonl slow.jsonl
# One of two rows has too few samples for a test; the other takes 1.8 times as long, which is not twice.
expect 0 "7.9e-03  7.9e-03  SLOWER" "$bin/bench_report" compare old.jsonl slow.jsonl
expect 1 "1 SLOWER in slow.jsonl" "$bin/bench_report" compare old.jsonl slow.jsonl --fail-on-slower
expect 0 "1 faster and 0 slower" "$bin/bench_report" compare slow.jsonl old.jsonl --fail-on-slower
without 0 SLOWER "$bin/bench_report" compare old.jsonl slow.jsonl --significance 0.005
without 0 SLOWER "$bin/bench_report" compare old.jsonl slow.jsonl --least 1
expect 0 "rows of the same library: 1, old/new 1.000 to 1.000" "$bin/bench_report" compare old.jsonl slow.jsonl
expect 0 "1 have too few samples to be called by themselves among 1 tests at q < 0.05" "$bin/bench_report" compare old.jsonl slow.jsonl
# Rows of one file alone, what went wrong since, and another machine's speed.
expect 0 "only in old.jsonl" "$bin/bench_report" compare old.jsonl slow.jsonl
expect 0 "  a bf16 onednn" "$bin/bench_report" compare old.jsonl slow.jsonl
expect 0 "4 only in old.jsonl:" "$bin/bench_report" compare old.jsonl slow.jsonl
expect 0 "4 only in old.jsonl:" "$bin/bench_report" compare slow.jsonl old.jsonl
wrong() { line "$1" "" "$2" 1,1,1 | sed 's/"gflops"/"correct":false,"gflops"/'; }
{ echo '{"ceiling":"f32_fma","value":80,"unit":"GFLOP/s"}'; wrong mine 1.0; line onednn jit 1.5 1.5,1.6,1.7
  echo '{"name":"a","pass":"forward","dtype":"bf16","kernel":"mine","refused":"too few","problem":"conv_q"}'
  echo '{"changed_ceilings":"f32_fma 80.0 GFLOP/s at the start, 40.0 at the end"}'; } > broken.jsonl
expect 1 "1 WRONG now, right before:" "$bin/bench_report" compare old.jsonl broken.jsonl
expect 1 "1 refused now, timed before:" "$bin/bench_report" compare old.jsonl broken.jsonl
expect 1 "warning: f32_fma: old 100.0, new 80.0" "$bin/bench_report" compare old.jsonl broken.jsonl
expect 1 "warning: broken.jsonl: the machine's speed changed during the run (f32_fma 80.0" "$bin/bench_report" compare old.jsonl broken.jsonl
expect 0 "1 right again:" "$bin/bench_report" compare broken.jsonl old.jsonl
wrong mine 1.0 > wrong.jsonl
expect 1 "1 WRONG in wrong.jsonl" "$bin/bench_report" compare wrong.jsonl wrong.jsonl
# Numbers that cannot be told: null, in older files 0.
{ line mine "" 1.0 1,1,1 | sed 's/"flop_per_byte":9/"ceiling_share":null,"onednn_ratio":null,"flop_per_byte":null/'; } > null.jsonl
{ line mine "" 1.0 1,1,1 | sed 's/"flop_per_byte":9/"ceiling_share":0,"onednn_ratio":0,"flop_per_byte":0/'; } > zero.jsonl
expect 0 "1 in common" "$bin/bench_report" compare null.jsonl zero.jsonl
# The better of both runs on each side; of peak is of the type's own ceiling; what is lowered to products does not count.
expect 0 "2 problems with a oneDNN time of their own: geometric mean 1.400" "$bin/bench_report" summary old.jsonl slow.jsonl
expect 0 "of them beside ours of the same file: geometric mean" "$bin/bench_report" summary old.jsonl slow.jsonl
expect 0 "25.0%" "$bin/bench_report" summary old.jsonl
expect 0 "1 of 2 problems below 1.45" "$bin/bench_report" summary old.jsonl --below 1.45
expect 0 "  a                                    bf16    1.40" "$bin/bench_report" summary old.jsonl --below 1.45
without 0 "below" "$bin/bench_report" summary old.jsonl
expect 2 "--below: expected 0 or more, found -1" "$bin/bench_report" summary old.jsonl --below=-1
expect 0 "(9.00)" "$bin/bench_report" summary old.jsonl
# A problem in several types is also compared with the library's fastest type; --json keeps what was merged.
{ echo '{"machine":"m","libraries":"oneDNN 2.6.3","threads":2}'; line mine "" 2.0 2,2,2 "conv_r in=bf16:1 out=bf16:1"; line onednn jit 5.0 5,5,5 "conv_r in=bf16:1 out=bf16:1"; } > narrow.jsonl
{ echo '{"machine":"m","libraries":"oneDNN 3.2","threads":2}'; line onednn jit 3.0 3,3,3 "conv_r in=f32:1 out=f32:1" | sed 's/"bf16"/"f32"/'; } > wide.jsonl
expect 0 "1 problems with a oneDNN time of their own: geometric mean 2.500" "$bin/bench_report" summary narrow.jsonl wide.jsonl --json merged.jsonl
expect 0 "1 problems in several types, with the fastest of the library: geometric mean 1.500" "$bin/bench_report" summary narrow.jsonl wide.jsonl
grep -q '"library":"oneDNN 2.6.3".*"ratio":2.5,"ratio_any_type":1.5' merged.jsonl && ok || bad "what summary --json merged"
# Also where the library does not run the row's own type; its only time is no other type's.
head -2 narrow.jsonl > ours.jsonl
expect 0 "1 problems in several types, with the fastest of the library: geometric mean 1.500" "$bin/bench_report" summary ours.jsonl wide.jsonl
without 0 "in several types" "$bin/bench_report" summary narrow.jsonl
expect 1 '/dev/full: cannot write' "$bin/bench_report" summary narrow.jsonl --json /dev/full
expect 0 "drawn to roof.svg" "$bin/bench_report" roofline new.jsonl --out roof.svg
grep -q "f32_fma" roof.svg && ok || bad "no ceiling in roof.svg"
grep -q "<title>square.forward .* GFLOP/s, .* FLOP/byte</title></circle>" roof.svg && ok || bad "points of roof.svg have no names"
# Without a bandwidth roofs are flat; one point alone lies under a line, too. A type's roofs alone.
line mine "" 1.0 1,1,1 > point.jsonl; echo '{"ceiling":"bf16_dot","value":200,"unit":"GFLOP/s"}' >> point.jsonl
echo '{"ceiling":"f16_fma","value":300,"unit":"GFLOP/s"}' >> point.jsonl
expect 0 "1 problems drawn" "$bin/bench_report" roofline point.jsonl --out flat.svg
grep -q ">bf16_dot 200 GFLOP/s<" flat.svg && ! grep -q f16_fma flat.svg && ok || bad "roofs of bf16 in flat.svg"
grep -qE "polyline points='[0-9.]+,([0-9.]+) [0-9.]+,\1 [0-9.]+,\1 '" flat.svg && ! grep -qE "points='([0-9.]+),[0-9.]+ \1,[0-9.]+ \1," flat.svg && ok || bad "no flat roof in flat.svg"
# No two passes of a panel have one colour; types stand beside each other.
for pass in a b c d e f g h i j k; do line mine "" 1.0 1,1,1 "$pass" | sed "s/\"forward\"/\"$pass\"/"; done > passes.jsonl
line mine "" 1.0 1,1,1 p32 | sed 's/"bf16"/"f32"/' >> passes.jsonl
expect 0 "12 problems drawn" "$bin/bench_report" roofline passes.jsonl --out passes.svg
[ "$(grep -oE ">roofline of [a-z0-9]*<" passes.svg | tr -d '><' | paste -s -d,)" = "roofline of bf16,roofline of bf16,roofline of f32" ] && ok || bad "panels of passes.svg"
[ "$(grep "<circle" passes.svg | head -10 | grep -oE "fill='#[^']*'" | sort -u | wc -l)" = 10 ] && ok || bad "colours of passes.svg"
# What a training's --profile writes is read like a bench's rows.
expect 0 "of roof" "$bin/cosmoflow_train" --data dummy --size 16 --n-train 4 --n-epochs 1 --threads 1 --profile --output-dir profiled
expect 0 " problems drawn to " "$bin/bench_report" roofline profiled/profile.jsonl --out profiled/roofline.svg
grep -q "<title>conv1.forward .* GFLOP/s" profiled/roofline.svg && ok || bad "no conv1.forward in a profile's roofline"
expect 0 "in common, geometric mean of old/new medians 1.000" "$bin/bench_report" compare profiled/profile.jsonl profiled/profile.jsonl
expect 3 'found "not json"' "$bin/bench_report" summary <(echo "not json")
expect 3 'expected a row of bench_layers' "$bin/bench_report" summary <(echo '{"problem":"p","kernel":"k","min_ms":"fast"}')
expect 3 "holds no measurement" "$bin/bench_report" summary <(echo '{"ceiling":"triad","value":1}')
conclude
