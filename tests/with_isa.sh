#!/usr/bin/env bash
# Runs a program with the kernels of machines with less than this one.   usage: with_isa.sh ISA PROGRAM [ARGUMENT...]
# Ends with 77 where this machine has no more than that: the program has been run so already.
set -eu
isa=$1; shift
case "$isa" in
  avx2) more='avx512f' ;;
  avx512) more='avx512_bf16|avx512_fp16|amx_tile' ;;
  *) more='' ;;
esac
if [ -n "$more" ] && ! grep -qwE "$more" /proc/cpuinfo; then
  echo "no more than $isa here"
  exit 77
fi
CONVOY_MAX_ISA=$isa "$@" --warn NoTests || exit 1  # no other code: Catch ends with the number of failures, of which 77 would be a skip
