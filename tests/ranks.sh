# Sourced by the tests of several ranks, behind `build`, `flavour` (openmpi or mpich), `launcher` and, where ranks may be
# silent for longer than 8 seconds, `silence`: how they are started, a small data set, and what training on it takes.
bin=$build/bin
source=$(cd "$(dirname "$0")/.." && pwd)
. "$source/tests/expect.sh"
# For Open MPI as root on few cores, without a search for networks, which takes half of a short run; MPICH looks at none of them.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_pml=ob1
command -v "mpirun.$flavour" > /dev/null && launcher=mpirun.$flavour
[ "$flavour" = openmpi ] && patient='' || patient=-disable-auto-cleanup
# Programs that were linked for MPICH, too, have a suffix; a build with a single MPI has none.
suffix='' other=''
if [ -x "$bin/cosmoflow_train_mpich" ]; then
  if [ "$flavour" = openmpi ]; then other=$bin/cosmoflow_train_mpich; else suffix=_mpich other=$bin/cosmoflow_train; fi
fi
ranks() { local n=$1; shift; timeout 120 "$launcher" $patient -n "$n" "$@"; }
# near FIELD PART TABLE TABLE: as many rows below the heads, whose numbers differ by no more than this part of the first.
near() {
  [ -s "$3" ] && awk -F, -v field="$1" -v part="$2" 'NR == FNR { one[FNR] = $field; rows = FNR; next }
    FNR > 1 { d = ($field - one[FNR]) / one[FNR]; if (!(d <= part && d >= -part)) far = 1 }
    END { exit far || rows < 2 || FNR != rows }' "$3" "$4" && ok || bad "column $1 of $3 and $4 differs: $(cut -d, -f"$1" "$3" "$4" | tr '\n' ' ')"
}
# messages FOLDER NAME...: the trace of a run has them.
messages() {
  local name folder=$1; shift
  for name in "$@"; do
    grep -q "\"name\":\"$name\",\"cat\":\"messages\"" "$folder/trace.json" && ok || bad "$folder/trace.json: no message $name"
  done
}

expect 0 "wrote 12 + 5 universes" "$bin/cosmoflow_simulate" --out data --universes 12 --validation 5 --size 16 --steps 4
common=(--data-dir data --n-epochs 3 --optimizer Adam --augment cube --seed 5 --fc1-size 16 --fc2-size 8 --threads 1 --comm-timeout "${silence:-8}")
train=("$bin/cosmoflow_train$suffix" "${common[@]}")
