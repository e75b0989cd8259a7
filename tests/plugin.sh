#!/usr/bin/env bash
# Kernels in shared libraries, loaded by every program that runs kernels.   usage: plugin.sh SOURCE_DIR BUILD_DIR
set -u
source=$1 build=$2 bin=$2/bin
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$2/CMakeCache.txt")
. "$(dirname "$0")/expect.sh"
compile() { "$source/tests/compile_plugin.sh" "$build" "$@" -I"$source" -I"$build/generated"; }
compile "$source/tests/consumer/my_dense.cpp" -o libmine.so || exit 1
train=("$bin/cosmoflow_train" --data dummy --size 16 --conv-size 8 --n-train 4 --n-epochs 1 --batch-size 2 --dropout 0)

# It runs where it can, in trainers, predictors and benches, which say so; the loss is that of other kernels.
expect 0 "finished" "${train[@]}" --output-dir plain
expect 0 "plugins: ./libmine.so (mine)" env CONVOY_PLUGINS=./libmine.so "${train[@]}" --output-dir mine --profile
for run in plain mine; do losses $run | grep -oE '[0-9.e-]+$' > $run.txt; done
[ -s mine.txt ] && paste plain.txt mine.txt | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-5 * $1) exit 1 }' && ok || bad "losses with another dense kernel: $(paste plain.txt mine.txt)"
grep -q '"kernel":"mine"' mine/profile.jsonl && head -1 mine/profile.jsonl | grep -q '"plugins":"./libmine.so (mine)"' && ok || bad "no node of the profile is the plugin's"
CONVOY_PLUGINS=$PWD/libmine.so "${train[@]}" --summary --dry-run > summary.txt
grep -q '^dense1.forward .* mine ' summary.txt && ok || bad "dense1.forward is not the plugin's"
"$bin/cosmoflow_simulate" --out data --universes 2 --validation 2 --size 16 --steps 4 > /dev/null 2>&1 || bad "no data"
expect 0 "plugins: ./libmine.so (mine)" env CONVOY_PLUGINS=./libmine.so "$bin/cosmoflow_predict" --checkpoint plain --data-dir data --conv-size 8
dense='dense_forward{} in=f32:2x1x1x1x64|f32:16x1x1x1x64|f32:1x1x1x1x16'
expect 0 " mine " env CONVOY_PLUGINS=./libmine.so "$bin/bench_layers" --problem "$dense" --min-seconds 0 --json rows.jsonl
head -1 rows.jsonl | grep -q '"plugins":"./libmine.so (mine)"' && grep -q '"kernel":"mine".*"correct":true' rows.jsonl && ok || bad "rows.jsonl: $(cut -c1-300 rows.jsonl)"
expect 0 '"plugins":"./libmine.so (mine)"' env CONVOY_PLUGINS=./libmine.so "$bin/bench_step" --size 16 --steps 1 --nodes no --kernel 'dense1.forward=mine'
# tests FILTER: the tests of kernels pass, and there were problems that the kernels under test took.
tests() {
  [ -x "$bin/test_kernels" ] || return 0
  expect 0 "All tests passed" "$bin/test_kernels" "$1"
  "$bin/test_kernels" "$1" 2>&1 | grep -qE '(^| )[1-9][0-9]* runs on ' && ok || bad "$CONVOY_TEST_KERNELS took no problem of $1"
}
CONVOY_PLUGINS=./libmine.so CONVOY_TEST_KERNELS=mine tests "every kernel on other ops*"

# One with packed weights, threads and an instruction set; the library named first goes first.
compile "$source/tests/consumer/my_conv.cpp" -o my_conv.so || exit 1
if grep -qw avx2 /proc/cpuinfo; then
  export CONVOY_PLUGINS=./my_conv.so:./libmine.so
  conv='conv ic16ih20oc40kh3ph1'
  expect 0 " my_conv_avx2 " "$bin/bench_layers" --problem "$conv" --pass forward --kernels my_conv,direct --min-seconds 0 --json conv.jsonl
  grep -q '"kernel":"my_conv_avx2".*"correct":true' conv.jsonl && ok || bad "no checked my_conv_avx2 in conv.jsonl"
  expect 0 "plugins: ./my_conv.so (my_conv_avx2), ./libmine.so (mine)" "$bin/climseg_train" --data dummy --image-size 64x96 --width-divisor 16 --n-train 2 --max-epochs 1 --output-dir sky
  grep -q my_conv_avx2 sky/summary.json && ok || bad "climseg_train did not run my_conv_avx2"
  CONVOY_TEST_KERNELS=my_conv tests "*random*"
  CONVOY_MAX_ISA=scalar expect 0 "refuses: needs AVX2" "$bin/bench_layers" --problem "$conv" --pass forward --kernels my_conv,reference --min-seconds 0
  unset CONVOY_PLUGINS
fi

# Faults of a kernel are found out before it is timed, with its name.
{
  echo '#include <csignal>
#include <cstdlib>'
  sed 's/float sum = bias/float sum = (std::getenv("FAULT") == std::string("sum")) + bias/; s/"mine"/"inner"/; /^CONVOY_PLUGIN/d' "$source/tests/consumer/my_dense.cpp"
  cat << 'T'
static std::unique_ptr<Prepared> prepare_faulty(const Problem& p) {
  const std::string fault = std::getenv("FAULT");
  if (fault == "nothing") return nullptr;
  if (fault == "prepare") throw std::runtime_error("has no room");
  std::shared_ptr<Prepared> inner = my_kernels()[0]->prepare(p);
  return std::make_unique<PreparedFunction>([=](const KernelArgs& a) {
    if (fault == "number") throw 5;
    if (fault == "run") throw std::runtime_error("lost its way");
    inner->run(a);
    if (fault == "front") a.out[0].data<float>()[-1] = 1;
    if (fault == "input") a.in[0].data<float>()[0] += 1;
    if (fault == "crash") std::raise(SIGSEGV);
  });
}
static Support supports_faulty(const Problem& p) {
  if (std::getenv("FAULT") == std::string("supports")) throw std::runtime_error("is confused");
  return my_kernels()[0]->supports(p);
}
// Called like one of ours, which it does not take the place of.
namespace convoy {
std::vector<KernelPtr> copy_kernels() {
  const std::string fault = std::getenv("FAULT");
  if (fault == "throws") throw std::runtime_error("no licence");
  if (fault == "empty") return {};
  if (fault == "null") return std::vector<KernelPtr>(1);
  std::vector<KernelPtr> list;
  list.push_back(std::make_unique<FunctionKernel>(fault == "name" ? "onednn_mine" : fault == "words" ? "my dense" : "faulty", OpKind::dense_forward,
                                                  supports_faulty, prepare_faulty));
  return list;
}
}
CONVOY_PLUGIN(convoy::copy_kernels)
T
} > faulty.cpp
compile faulty.cpp -o faulty.so || exit 1
faulty=(env CONVOY_PLUGINS=./faulty.so)
FAULT=sum expect 1 "WRONG" "${faulty[@]}" "$bin/bench_layers" --problem "$dense" --min-seconds 0
FAULT=run expect 1 "dense1.forward, run by faulty: lost its way" "${faulty[@]}" "${train[@]}" --output-dir never
FAULT=number expect 1 "dense1.forward, run by faulty: threw what is no std::exception" "${faulty[@]}" "${train[@]}" --output-dir never
FAULT=supports expect 0 " onednn " "${faulty[@]}" "$bin/bench_layers" --problem "$dense" --min-seconds 0 --kernels onednn,dense
FAULT=prepare expect 1 "./faulty.so: faulty, prepare: has no room: dense_forward{" "${faulty[@]}" "${train[@]}" --output-dir never
FAULT=nothing expect 1 "./faulty.so: faulty, prepare: returns null: dense_forward{" "${faulty[@]}" "${train[@]}" --output-dir never
FAULT=crash expect 139 "bench_layers: error: crashed; the kernel that ran last is faulty, on " "${faulty[@]}" "$bin/bench_layers" --problem "$dense" --min-seconds 0
if [ -x "$bin/test_kernels" ]; then
  FAULT=front expect 1 "wrote in front of a tensor" "${faulty[@]}" CONVOY_TEST_KERNELS=faulty "$bin/test_kernels" "every kernel on other ops*"
  FAULT=input expect 1 "wrote into input 0" "${faulty[@]}" CONVOY_TEST_KERNELS=faulty "$bin/test_kernels" "every kernel on other ops*"
fi
rm -rf never

# What cannot be loaded ends the program before it begins.
refused() { expect 2 "$1" env CONVOY_PLUGINS="$2" "${train[@]}" --output-dir never; }
FAULT=throws refused "faulty.so: no licence" faulty.so
FAULT=empty refused "faulty.so: lists no kernels" faulty.so
FAULT=null refused "faulty.so: lists a kernel that is null" faulty.so
FAULT=name refused 'faulty.so: expected kernels whose names are letters, digits and _, and do not begin with onednn or cudnn, found "onednn_mine"' faulty.so
FAULT=words refused 'and do not begin with onednn or cudnn, found "my dense"' faulty.so
refused "./libmine.so: its kernel \"mine\" has a name that is taken" ./libmine.so:./libmine.so
refused "none.so: no such file" none.so
refused "expected paths separated by colons, found \"./libmine.so:\"" ./libmine.so:
cp libmine.so $'odd\xff.so'
refused "expected a path in UTF-8, found other bytes" $'./odd\xff.so'
echo text > text.so
refused "text.so: " text.so
small() { printf '%s\n' "$2" | "$compiler" -x c++ -fPIC -shared - -o "$1" || exit 1; }
small nothing.so 'int nothing;'
refused "nothing.so: has no convoy_plugin" nothing.so
small missing.so 'void elsewhere(); extern "C" const void* convoy_plugin() { elsewhere(); return 0; }'
refused "missing.so: undefined symbol" missing.so
small older.so 'struct { const char* headers; void* kernels; } plugin{"0.0.1 abc", 0}; extern "C" const void* convoy_plugin() { return &plugin; }'
refused "older.so: expected a library compiled with the headers and options of this program" older.so
# Without OpenMP all kernels would run on one thread, and nobody would know.
expect 1 "compile plugins with -fopenmp" "$compiler" -std=c++20 -fPIC -shared -I"$source" -I"$build/generated" "$source/tests/consumer/my_dense.cpp" -o alone.so
[ ! -e never ] && ok || bad "a run without its plugins left a folder"
conclude
