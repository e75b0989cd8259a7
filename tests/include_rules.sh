#!/usr/bin/env bash
# Who may include whom (README, "Folders"), and how long a file may be.   usage: include_rules.sh SOURCE_DIR
set -u
cd "$1" || exit 1
failed=0 checked=0
# check FOLDER ALLOWED...: headers of other top-level folders that files in FOLDER may include.
check() {
  local folder=$1 before=$checked; shift
  local allowed="$folder $*"
  while IFS=: read -r file line text; do
    checked=$((checked + 1))
    local target; target=$(sed -E 's/.*#include "([a-z_]+)\/.*/\1/' <<<"$text")
    case " $allowed " in *" $target "*) ;; *) echo "$file:$line: $folder must not include $target: $text"; failed=1 ;; esac
  done < <(grep -rnE '#include "(core|kernels|layers|models|dist|io|apps|tests|bench)/' "$folder" --include=*.h --include=*.cpp --include=*.inl --include=*.cu)
  [ $checked -gt $before ] || { echo "no includes found in $folder: has it another name?"; failed=1; }
}
check core
check kernels core
check layers core
check models layers core
check dist core
check io core
check apps core kernels layers models dist io
# Programs reach kernels through the list alone; what the machine can do is no kernel.
bad=$(grep -rnE '#include "kernels/' apps | grep -vE 'kernels/(kernel_list|plugin_list|versions|simd/cpu|device/device|roofline/roofs)\.h' || true)
[ -n "$bad" ] && { echo "apps/ includes single kernels: $bad"; failed=1; }
for pair in 'dnnl:kernels' 'hdf5\.h>:io' 'netcdf:io' 'mpi\.h:dist' 'cuda:kernels' 'cudnn:kernels'; do
  word=${pair%%:*} home=${pair##*:}
  bad=$(grep -rnE "#include <${word}" core kernels layers models dist io apps | grep -v "^$home/" || true)
  [ -n "$bad" ] && { echo "$bad"; failed=1; }
done
long=$(find core kernels layers models dist io apps tests bench -name '*.cpp' -o -name '*.h' -o -name '*.inl' -o -name '*.cu' | xargs wc -l | awk '$1 > 700 && $2 != "total"')
[ -n "$long" ] && { echo "longer than 700 lines: $long"; failed=1; }
[ $failed -eq 0 ] && echo "$checked includes follow the rules"
exit $failed
