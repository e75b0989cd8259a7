#!/usr/bin/env bash
# Installs the build into a temporary prefix and builds programs against it.   usage: consumer.sh SOURCE_DIR BUILD_DIR
set -eu
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$2" --prefix "$prefix/install" > /dev/null
sed -n '/^```cpp$/,/^```$/p' "$1/models/README.md" | grep -v '^```' > "$prefix/network.cpp"
cmake -S "$1/tests/consumer" -B "$prefix/build" -DCMAKE_PREFIX_PATH="$prefix/install" -DCMAKE_BUILD_TYPE=Release \
  -DNETWORK="$prefix/network.cpp" > /dev/null
cmake --build "$prefix/build" > /dev/null
"$prefix/build/consumer" > "$prefix/said"
cat "$prefix/said"
grep -q "[1-9][0-9]* nodes run by a kernel of this program" "$prefix/said"
"$prefix/build/consumer_network"
"$prefix/build/consumer_ranks"
# Ranks find each other also where the launcher does not say how many they are.
launcher=$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$2/CMakeCache.txt")
if [ -x "$launcher" ] && ! "$prefix/build/consumer_ranks" | grep -q ', none$'; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  "$launcher" -n 2 env -u OMPI_COMM_WORLD_SIZE "$prefix/build/consumer_ranks" > "$prefix/said"
  cat "$prefix/said"
  [ "$(grep -c '^2 ranks, ' "$prefix/said")" -eq 2 ]
fi
"$prefix/build/consumer_average"
"$prefix/install/bin/cosmoflow_train" --version
# A header includes what it needs. Those of devices want nvcc, those of oneDNN its headers.
cd "$prefix/install/include/convoy"
alone() { "${CXX:-c++}" -std=c++20 -fopenmp -fsyntax-only -I. -x c++ "$1" 2> "$2/said.$$" || { echo "does not compile alone: $1"; cat "$2/said.$$"; exit 1; }; }
export -f alone
find . -name '*.h' ! -path './kernels/onednn/*' $([ ! -e kernels/device/cuda.h ] || echo '! -path ./kernels/device/*') -print0 |
  xargs -0 -P "$(nproc)" -I{} bash -c 'alone "$1" "$2"' _ {} "$prefix"
cd - > /dev/null
# A header has one place.
twice=$(cd "$prefix/install/include/convoy" && find . -name '*.h' -printf '%f\n' | grep -E '^(mpi|collectives)\.h$' | sort | uniq -d)
[ -z "$twice" ] || { echo "installed twice: $twice"; exit 1; }
