#!/usr/bin/env bash
# Installs the build into a temporary prefix and builds programs against it.   usage: consumer.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$2" --prefix "$prefix/install" > /dev/null
program_in() { sed -n '/^```cpp$/,/^```$/p' "$1" | grep -v '^```'; }
program_in "$1/models/README.md" > "$prefix/network.cpp"
program_in "$1/dist/README.md" > "$prefix/ranks_network.cpp"
cmake -S "$1/tests/consumer" -B "$prefix/build" -DCMAKE_PREFIX_PATH="$prefix/install" -DNETWORK="$prefix/network.cpp" \
  -DRANKS_NETWORK="$prefix/ranks_network.cpp" > /dev/null
cmake --build "$prefix/build" --parallel 2 > /dev/null
"$prefix/build/consumer" > "$prefix/said"
cat "$prefix/said"
grep -q "[1-9][0-9]* nodes run by a kernel of this program" "$prefix/said"
"$prefix/build/consumer_network"
"$prefix/build/consumer_network_ranks"
(cd "$prefix" && build/consumer_files)
"$prefix/build/consumer_ranks"
# Ranks find each other also where the launcher does not say how many they are.
launcher=$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$2/CMakeCache.txt")
if [ -x "$launcher" ] && ! "$prefix/build/consumer_ranks" | grep -q ', none$'; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  "$launcher" -n 2 env -u OMPI_COMM_WORLD_SIZE "$prefix/build/consumer_ranks" > "$prefix/said"
  cat "$prefix/said"
  [ "$(grep -c '^2 ranks, ' "$prefix/said")" -eq 2 ]
  "$launcher" -n 2 "$prefix/build/consumer_network_ranks" > "$prefix/said"
  cat "$prefix/said"
  [ "$(grep -c '^2 ranks: loss' "$prefix/said")" -eq 2 ] && [ "$(sort -u "$prefix/said" | wc -l)" -eq 1 ]  # one loss on both
fi
"$prefix/build/consumer_average"
# One command makes a plugin of the same kernel, from what is installed.
"$1/tests/compile_plugin.sh" "$2" -I"$prefix/install/include/convoy" "$prefix/install/share/convoy/plugins/my_dense.cpp" -o "$prefix/libmine.so"
CONVOY_PLUGINS=$prefix/libmine.so "$prefix/install/bin/cosmoflow_train" --data dummy --size 16 --summary --dry-run > "$prefix/said"
grep '^dense1.forward .* mine ' "$prefix/said"
"$prefix/install/bin/cosmoflow_train" --version > "$prefix/said"
cat "$prefix/said"
grep -q '^convoy .*commit' "$prefix/said" && grep -qE '^  (oneDNN|MPI|CUDA) (on|off)' "$prefix/said"
for program in bench_step bench_report; do  # where benches are built
  [ ! -e "$prefix/install/bin/$program" ] || "$prefix/install/bin/$program" --version | grep -q '^convoy .*commit'
done
for file in convoy/problems/deepcam.txt convoy/launch/slurm.sh convoy/launch/cosmo.yaml doc/convoy/README.md doc/convoy/kernels/NOTES.md; do
  [ -s "$prefix/install/share/$file" ]
done
# Installed headers are C++ for any compiler, but for those of devices and oneDNN.
include=$prefix/install/include/convoy
others=(! -path '*/onednn/*')
[ ! -e "$include/kernels/device/cuda.h" ] || others+=(! -path '*/device/*')
find "$include" -name '*.h' "${others[@]}" -printf '#include "%P"\n' | sort > "$prefix/all.cpp"
[ "$(wc -l < "$prefix/all.cpp")" -ge 80 ]
"${CXX:-c++}" -std=c++20 -fopenmp -fsyntax-only -I"$include" "$prefix/all.cpp"
# A header has one place.
twice=$(cd "$prefix/install/include/convoy" && find . -name '*.h' -printf '%f\n' | grep -E '^(mpi|collectives)\.h$' | sort | uniq -d)
[ -z "$twice" ] || { echo "installed twice: $twice"; exit 1; }
