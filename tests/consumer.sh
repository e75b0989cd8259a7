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
"$prefix/build/consumer_average"
"$prefix/install/bin/cosmoflow_train" --version
# A header has one place.
twice=$(cd "$prefix/install/include/convoy" && find . -name '*.h' -printf '%f\n' | grep -E '^(mpi|collectives)\.h$' | sort | uniq -d)
[ -z "$twice" ] || { echo "installed twice: $twice"; exit 1; }
