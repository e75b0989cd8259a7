#!/usr/bin/env bash
# The layer bench and its reports, on tiny problems.   usage: bench.sh BIN_DIR
set -u
bin=$1
. "$(dirname "$0")/expect.sh"
layers=("$bin/bench_layers" --min-seconds 0.01)

expect 0 "winograd" "${layers[@]}" --problem 'conv ic16ih40oc16kh3ph1 n"square"' --json new.jsonl --csv new.csv --refusals --cold
grep -q '"kernel":"winograd.*"correct":true' new.jsonl && ok || bad "no Winograd kernel was checked"
grep -q '"refused":.*"problem":' new.jsonl && ok || bad "refusals do not name their problem"
[ "$(head -1 new.csv)" = name,pass,dtype,kernel,min_ms,median_ms,gflops,ceiling_share,onednn_ratio,correct ] && ok || bad "head of new.csv"
expect 0 "conv_pool_forward{" "${layers[@]}" --size 16 --match conv1.forward --list
expect 0 "conv_activation_forward" "${layers[@]}" --model tiramisu --size 16x32 --match down1.layer1.forward --list
expect 0 "winograd" "${layers[@]}" --model tiramisu --size 64x96 --match down1.layer1.forward --kernels winograd
expect 2 '--skip: expected names' "${layers[@]}" --size 16 --skip reference,
expect 2 'no kernel is called "avx1024"' "${layers[@]}" --size 16 --kernels avx1024
expect 2 '--match: expected a part' "${layers[@]}" --size 16 --match conv77
expect 2 'unknown flag: --warm' "${layers[@]}" --warm
expect 2 '--json: expected a value' "${layers[@]}" --json
expect 3 'none.txt: cannot open' "${layers[@]}" --problems none.txt
small='conv ic16ih40oc16kh3ph1'
expect 2 '--dtype: expected f32, bf16 or f16, found f64' "${layers[@]}" --dtype f64 --problem "$small"
expect 2 '--batch: expected 1 or more, found 0' "${layers[@]}" --batch 0 --problem "$small"
expect 2 '--threads: expected 0 to' "${layers[@]}" --threads -3 --problem "$small"
expect 2 '--pass has no effect without' "${layers[@]}" --size 16 --pass forward
expect 2 '--model has no effect beside' "${layers[@]}" --model deepcam --problem "$small"
expect 2 '--batch-norm has no effect on cosmoflow' "${layers[@]}" --size 16 --batch-norm on
expect 2 'nothing was timed' "${layers[@]}" --problem "$small" --kernels depthwise --tune empty.txt
[ -e empty.txt ] && bad "a run without times wrote a tuned table" || ok
expect 1 '/dev/full: cannot write' "${layers[@]}" --problem "$small" --kernels direct --json /dev/full
expect 1 '/dev/full: cannot write' "${layers[@]}" --problem "$small" --kernels direct --csv /dev/full
# Odd names stay one field.
expect 0 'direct' "${layers[@]}" --problem "$small"' n"a,\b"' --pass forward --kernels direct --json odd.jsonl --csv odd.csv
grep -q '^"a,\\b.forward",forward,f32,direct' odd.csv && ok || bad "a name with a comma in odd.csv"
expect 0 'a,\b.forward' "$bin/bench_report" summary odd.jsonl
# The networks of 2018 are timed as they are trained, without batch norm; DeepCAM with it.
"$bin/bench_layers" --model tiramisu --size 32x48 --list | grep -q batch_norm && bad "batch norm in Tiramisu's step" || ok
expect 0 'batch_norm' "${layers[@]}" --model tiramisu --size 32x48 --batch-norm on --list
# A table tuned for a step decides that step; one for another batch is refused.
expect 0 'conv1.forward' "$bin/bench_layers" --size 16 --batch 2 --threads 1 --min-seconds 0 --tune tuned.txt
steps=("$bin/cosmoflow_train" --data dummy --size 16 --n-train 4 --n-epochs 1 --threads 1 --tuned tuned.txt)
expect 0 ' % of the operations' "${steps[@]}" --batch-size 2 --dry-run
grep -P '\tconv' tuned.txt > layers.txt
expect 2 'layers.txt: expected problems of this run, found none' "${steps[@]}" --batch-size 4 --dry-run --tuned layers.txt
sed 's/^[a-z0-9_]*/mine/' tuned.txt > mine.txt
expect 2 'mine.txt: this build has no kernel called mine' "${steps[@]}" --batch-size 2 --dry-run --tuned mine.txt

expect 0 "geometric mean of old/new medians 1.000, 0 slower" "$bin/bench_report" compare new.jsonl new.jsonl
expect 2 "--significance: expected a number between 0 and 1" "$bin/bench_report" compare new.jsonl new.jsonl --significance 2
line() { echo '{"name":"a","pass":"forward","dtype":"bf16","kernel":"'"$1"'","detail":"'"$2"'","min_ms":'"$3"',"median_ms":'"$3"',"gflops":50,"flop_per_byte":9,"samples_ms":['"$4"'],"problem":"'"${5:-p}"'"}'; }
{ echo '{"ceiling":"f32_fma","value":100,"unit":"GFLOP/s"}'; echo '{"ceiling":"bf16_dot","value":200,"unit":"GFLOP/s"}'
  line mine "" 1.0 1.0,1.1,1.2,1.3,1.4; line onednn jit 1.5 1.5,1.6,1.7; line mine "" 1 1,1,1 conv_q; line onednn gemm:jit 9 9,9,9 conv_q
  line mine "" 1 1,1,1 dense_q; line onednn gemm:jit 1.4 2,2,2 dense_q; } > old.jsonl
{ line mine "" 2.0 2.0,2.1,2.2,2.3,2.4; line onednn jit 1.4 1.4,1.6,1.8; } > slow.jsonl
# A problem that a file holds twice is compared occurrence by occurrence.
{ line mine "" 1.0 1.0,1.1,1.2,1.3,1.4; line mine "" 3.0 3.0,3.1,3.2,3.3,3.4; } > twice.jsonl
expect 0 "2 in common, geometric mean of old/new medians 1.000, 0 slower" "$bin/bench_report" compare twice.jsonl twice.jsonl
expect 0 "SLOWER" "$bin/bench_report" compare old.jsonl slow.jsonl
expect 0 "1 have too few samples for p < 0.01" "$bin/bench_report" compare old.jsonl slow.jsonl
# The better of both runs on each side; of peak is of the type's own ceiling; what is lowered to products does not count.
expect 0 "2 problems with a oneDNN time of their own: geometric mean 1.400" "$bin/bench_report" summary old.jsonl slow.jsonl
expect 0 "25.0%" "$bin/bench_report" summary old.jsonl
expect 0 "(9.00)" "$bin/bench_report" summary old.jsonl
expect 0 "drawn to roof.svg" "$bin/bench_report" roofline new.jsonl --out roof.svg
grep -q "f32_fma" roof.svg && ok || bad "no ceiling in roof.svg"
expect 3 'found "not json"' "$bin/bench_report" summary <(echo "not json")
expect 3 'expected a row of bench_layers' "$bin/bench_report" summary <(echo '{"problem":"p","kernel":"k","min_ms":"fast"}')
expect 3 "holds no measurement" "$bin/bench_report" summary <(echo '{"ceiling":"triad","value":1}')
conclude
