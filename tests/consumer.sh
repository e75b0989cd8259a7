#!/usr/bin/env bash
# Installs the build into a temporary prefix and builds a program against it.   usage: consumer.sh SOURCE_DIR BUILD_DIR
set -eu
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$2" --prefix "$prefix/install" > /dev/null
cmake -S "$1/tests/consumer" -B "$prefix/build" -DCMAKE_PREFIX_PATH="$prefix/install" -DCMAKE_BUILD_TYPE=Release > /dev/null
cmake --build "$prefix/build" > /dev/null
"$prefix/build/consumer"
"$prefix/install/bin/cosmoflow_train" --version
