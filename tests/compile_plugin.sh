#!/usr/bin/env bash
# Makes a plugin by the command of kernels/README.md, with the compiler of a build.   usage: compile_plugin.sh BUILD_DIR ARGUMENTS...
set -eu
build=$1; shift
exec "$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")" -std=c++20 -O2 -fopenmp -fPIC -shared -Wl,-Bsymbolic-functions "$@"
