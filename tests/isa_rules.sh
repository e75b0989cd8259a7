#!/usr/bin/env bash
# Reads the machine code of the kernels compiled for one instruction set.   usage: isa_rules.sh OBJECT_DIR [SOURCE_DIR]
# With SOURCE_DIR it also compiles the direct convolutions with -march=knl and holds that object to rule 1: what intrinsics
# and target pragmas ask for is there at any level of optimization.
#  1. *_avx512 objects use AVX-512 Foundation alone (no BW, DQ, VL): Knights Landing runs them.
#  2. Functions that other files may share or call (weak template instances without our namespace `set`, functions that are
#     not local to their file) use no vector extension at all: the linker keeps one copy, and it must run on every CPU.
set -u -o pipefail  # nothing is wrong with what cannot be read
dir=$1 source=${2:-} failed=0 checked=0
knl=$(mktemp -d) && trap 'rm -rf "$knl"' EXIT
if [ -n "$source" ]; then
  "${CXX:-g++}" -std=c++20 -O1 -march=knl -fopenmp -Wno-maybe-uninitialized -I"$source" -c "$source/kernels/conv/direct_avx512.cpp" \
    -o "$knl/direct_avx512_knl.o" || failed=1
fi
bw='^(kmov[bdq]|kortest[bdq]|ktest[bwdq]|kadd|kunpck(wd|dq)|kand[bdq]|kor[bdq]|kxor[bdq]|knot[bdq]|kshift[lr][bdq]|vmovdqu(8|16)|vpmovm2|vpmov[bwdq]2m|vdbpsadbw)'
words='^vp(add|adds|addus|sub|subs|subus|minu|mins|maxu|maxs|cmpeq|cmpgt|cmpu?|sll|sllv|srl|srlv|sra|srav|mulh|mulhu|mulhrs|mull|avg|sad|shuf|shufh|shufl|unpckh|unpckl|packus|packss|abs|blendm|broadcast|testm|testnm|alignr|madd|maddubs|perm|permi2|permt2)(b|w|bw|wd|hw|lw|dw|ubsw)$'
dq='^(vandps|vandpd|vorps|vorpd|vxorps|vxorpd|vandnps|vandnpd|vpmullq|vextract[fi](32x8|64x2)|vinsert[fi](32x8|64x2)|vbroadcast[fi](32x2|32x8|64x2)|vrange|vreduce|vfpclass|vcvt.*(qq|uqq))'
while read -r object; do
  checked=$((checked + 1))
  bad=$( { nm -C "$object" | sed -n 's/^[0-9a-f]* t /local /p'; objdump -d --no-show-raw-insn -C "$object"; } | awk -v bw="$bw" -v words="$words" -v dq="$dq" -v wide="$object" '
    /^local / { local[substr($0, 7)] = 1; next }
    /^[0-9a-f]+ <.*>:$/ {
      name = $0; sub(/^[0-9a-f]+ </, "", name)
      own = name ~ /set::/ || substr(name, 1, length(name) - 2) in local
      next
    }
    /^ +[0-9a-f]+:\t/ {
      ++instructions
      split($0, part, "\t"); text = part[2]
      if (text !~ /^[vk]/) next
      op = text; sub(/ .*/, "", op)
      why = ""
      if (wide !~ /_knl/ && !own && (op ~ /^v[a-z]/ && op !~ /^(verr|verw)/)) why = "vector extension in a shared function"
      if (wide ~ /avx512/) {
        if (op ~ bw) why = "AVX-512 BW"
        if (text ~ /zmm/ && op ~ words) why = "AVX-512 BW"
        if (text ~ /zmm/ && op ~ dq) why = "AVX-512 DQ"
        # 128-bit forms that Foundation has: scalars, and moves of parts of a register.
        scalar = op ~ /(ss|sd)[0-9a-z]*$/ || op ~ /^v(mov[dq]|insertps|extractps|mov[hl]p[sd]|movhlps|movlhps)$/
        if (text !~ /zmm/ && !scalar && (text ~ /[xy]mm(1[6-9]|2[0-9]|3[01])/ || (text ~ /[xy]mm/ && text ~ /\{%k/))) why = "AVX-512 VL"
      }
      if (why != "" && !(why op in seen)) { seen[why op] = 1; print "  " why ": " text "   in " substr(name, 1, 120) }
    }
    END { if (!instructions) print "  no instructions" }') || bad+="  objdump or awk failed"
  [ -n "$bad" ] && { echo "$object"; echo "$bad"; failed=1; }
done < <(find "$dir" "$knl" -name '*_avx512*.o' -o -name '*_avx2*.o' -o -name '*_[bf][fp]16*.o' -o -name '*_amx*.o')
[ $checked -ge 15 ] || { echo "only $checked objects found under $dir"; failed=1; }
[ $failed -eq 0 ] && echo "$checked objects follow the rules"
exit $failed
