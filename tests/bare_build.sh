#!/usr/bin/env bash
# core, kernels, layers, models, their tests, the layer bench and the C interface need nothing but a compiler and CMake
# (and Catch2 for the tests).
# usage: bare_build.sh SOURCE_DIR
set -eu
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -G Ninja -S "$1" -B "$build" -DCONVOY_BUILD_APPS=OFF -DWITH_ONEDNN=OFF -DWITH_HDF5=OFF -DWITH_MPI=OFF -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0 > /dev/null
cmake --build "$build" --target test_core bench_layers convoy_comm > /dev/null
"$build/bin/test_core" > /dev/null
"$build/bin/bench_layers" --size 16 --min-seconds 0.01 > /dev/null
