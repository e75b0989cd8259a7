#!/usr/bin/env bash
# What ./dev asks of other programs, with stand-ins for them.   usage: dev.sh SOURCE_DIR
set -u
source=$(cd "$1" && pwd)
. "$source/tests/expect.sh"
cp "$source/dev" .
mkdir -p tools build/release/bin
export PATH=$work/tools:$PATH
tool() { printf '#!/bin/sh\n%s\n' "$2" > "$1"; chmod +x "$1"; }
tool tools/cmake ':'
tool tools/dpkg-query 'echo "install ok installed"'
tool build/release/bin/bench_layers 'echo bench "$@"'

# The bench writes a file of its own every time, or where it is told to.
expect 0 'bench --json bench/results/layers-' ./dev bench --size 16
expect 0 'bench --size 16 --json mine.jsonl' ./dev bench --size 16 --json mine.jsonl
without 0 results ./dev bench --json mine.jsonl
without 0 json ./dev bench --list
first=$(./dev bench); sleep 1.1
[ "$first" != "$(./dev bench)" ] && ok || bad "the second run of a day replaces the first: $first"
# Formatting asks git for the sources.
tool tools/dpkg-query 'for name; do :; done; [ "$name" = git ] || echo "install ok installed"'
tool tools/apt-get 'echo "$@" >> asked.txt'
tool tools/id 'echo 0'
tool tools/git ':'
tool tools/clang-format ':'
./dev format > /dev/null 2>&1
grep -q ' git$' asked.txt && ok || bad "./dev format does not install git: $(cat asked.txt)"
conclude
