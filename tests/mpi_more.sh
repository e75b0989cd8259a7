#!/usr/bin/env bash
# Several ranks end to end, where no time is measured: failing MPI calls, mistakes, staging, climate segmentation. Most of
# it sleeps or starts programs: side by side, and beside other tests.
# usage: mpi_more.sh BUILD_DIR openmpi|mpich [LAUNCHER]
set -u
source=$(cd "$(dirname "$0")/.." && pwd)
build=$1 flavour=$2 launcher=${3:-mpirun} silence=60  # others compute meanwhile
. "$(dirname "$0")/ranks.sh"
unset OMPI_MCA_pml  # as people run it

failing_mpi() {
# A rank that is gone while communicators are set up: the other one sits in an MPI call that waits for it.
if [ "$flavour" = openmpi ]; then
  cat > leave.c <<'C'
#include <mpi.h>
#include <stdlib.h>
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *part) {
  int rank;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 1) _Exit(9);
  return PMPI_Comm_split_type(comm, type, key, info, part);
}
C
  "$(command -v mpicc.openmpi || echo mpicc)" -shared -fPIC -o leave.so leave.c
  ranks 2 --enable-recovery -x LD_PRELOAD="$work/leave.so" "${train[@]}" --batch-size 1 --output-dir early > early.txt 2>&1
  grep -q "rank 1 on .* has ended" early.txt && ok || bad "no rank named that was lost during the set-up: $(tail -3 early.txt)"
  # An error of MPI's counts as a lost rank, unless it can be nothing but a mistake.
  cat > fail.c <<'C'
#include <mpi.h>
#include <stdlib.h>
int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  int rank;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) return getenv("TRUNCATES") ? MPI_ERR_TRUNCATE : MPI_ERR_OTHER;
  return PMPI_Irecv(buffer, count, type, from, tag, comm, request);
}
C
  "$(command -v mpicc.openmpi || echo mpicc)" -shared -fPIC -o fail.so fail.c
  for case in "TRUNCATES=1 1" "OTHER=1 76"; do
    rm -f code.0
    ranks 2 --enable-recovery env LD_PRELOAD="$work/fail.so" "${case% *}" sh -c '"$@"; echo $? > code.$OMPI_COMM_WORLD_RANK' run \
      "$bin/standing_still" at-work > failed.txt 2>&1
    [ "$(cat code.0)" = "${case#* }" ] && grep -q "standing_still: error: MPI: MPI_ERR_" failed.txt && ok ||
      bad "MPI fails, $case: exit $(cat code.0): $(tail -3 failed.txt)"
  done
fi
}
mistakes_and_staging() {
# Mistakes: another MPI's launcher, settings that differ, a bad file that one rank meets, impossible wishes.
expect 2 "setting seed differs between ranks: rank 0 has \"5\", rank 1 has \"6\"" timeout 90 "$launcher" \
  -n 1 "${train[@]}" --batch-size 1 --output-dir y : -n 1 "${train[@]}" --batch-size 1 --output-dir y --seed 6
# Algorithms that differ are told, not tried; tables count by what they hold.
differs() { # TEXT "FLAGS OF RANK 0" "FLAGS OF RANK 1"
  expect 2 "$1" timeout 90 "$launcher" -n 1 "${train[@]}" --batch-size 1 --output-dir y $2 : -n 1 "${train[@]}" --batch-size 1 --output-dir y $3
}
differs 'setting all-reduce differs between ranks: rank 0 has "ring", rank 1 has "shared"' '--all-reduce ring' '--all-reduce shared'
"$source/tests/compile_plugin.sh" "$build" -I"$source" -I"$build/generated" "$source/tests/consumer/my_dense.cpp" -o mine.so || bad "no plugin"
expect 2 'setting plugins (CONVOY_PLUGINS) differs between ranks: rank 0 has "", rank 1 has "mine"' timeout 90 "$launcher" \
  -n 1 "${train[@]}" --batch-size 1 --output-dir y : -n 1 env CONVOY_PLUGINS=./mine.so "${train[@]}" --batch-size 1 --output-dir y
echo '2 1 4 shared' > table
differs 'setting comm-table differs between ranks' "--comm-table $work/table" ''
mkdir -p node.0 node.1 && cp table node.0/table && echo '2 1 4 ring' > node.1/table
expect 2 'setting comm-table (contents) differs between ranks' timeout 90 "$launcher" \
  -n 1 sh -c 'cd node.0 && exec "$@"' run "${train[@]}" --data-dir "$work/data" --batch-size 1 --output-dir y --comm-table table : \
  -n 1 sh -c 'cd node.1 && exec "$@"' run "${train[@]}" --data-dir "$work/data" --batch-size 1 --output-dir y --comm-table table
cp -r data fewer
mv "fewer/train/$(ls fewer/train | head -1)" fewer/train/renamed.tfrecord
expect 2 "data-dir differs between ranks" timeout 90 "$launcher" -n 1 "${train[@]}" --batch-size 1 --output-dir y : \
  -n 1 "${train[@]}" --batch-size 1 --output-dir y --data-dir fewer
stage_two() { # Each rank is told of its folder by a link of one name.
  mkdir -p here.$1 && ln -sfn "$work/$2" "here.$1/data"
}
stage_two 0 data; stage_two 1 fewer
expect 3 "rank 1 has no such file" timeout 90 "$launcher" -n 1 sh -c 'cd here.0 && exec "$@"' run "${train[@]}" --batch-size 1 --output-dir y : \
  -n 1 sh -c 'cd here.1 && exec "$@"' run "${train[@]}" --batch-size 1 --output-dir y
expect 3 "expected a name in UTF-8" ranks 2 "${train[@]}" --batch-size 1 --output-dir y --data-dir $'caf\xe9'
expect 2 "--peer-access has no effect on the CPU" ranks 2 "${train[@]}" --batch-size 1 --output-dir y --peer-access
expect 2 "--peer-access and --all-reduce exclude each other" ranks 2 "${train[@]}" --batch-size 1 --output-dir y --peer-access --all-reduce ring
expect 2 "expected 1 on a single rank" "$bin/climseg_train" --data dummy --batchnorm-group-size 2 --output-dir y
expect 2 "expected one of shared" "$bin/cosmoflow_train" "${common[@]}" --output-dir y --all-reduce pigeon
expect 2 "shared refuses" ranks 2 "${train[@]}" --batch-size 1 --output-dir z --ranks-per-node 1 --all-reduce shared
expect 2 "a step takes 24 samples, more than the 12" ranks 2 "${train[@]}" --batch-size 12 --output-dir z
cp -r data broken
truncate -s 3000 "broken/train/$(ls broken/train | tail -1)"
expect 3 "$(ls broken/train | tail -1)" ranks 2 "${train[@]}" --data-dir broken --batch-size 1 --output-dir w

# Staging: every file is read once, a second run copies nothing, a damaged copy is replaced.
stage=("${train[@]}" --batch-size 1 --stage-dir 'stage-{node}' --ranks-per-node 2 --max-steps 1)
expect 0 "staged 17 files" ranks 4 "${stage[@]}" --output-dir s1
grep -q '"key":"staging_stop"' s1/mlperf.log && ok || bad "no staging_stop in mlperf.log"
for node in 0 1; do diff -r data stage-$node -x '.convoy-stage.*' -x '*.svg' -x simulation.json > /dev/null && ok || bad "stage-$node differs from data"; done
expect 0 "17 files reused" ranks 4 "${stage[@]}" --output-dir s2
printf x | dd of="stage-1/train/$(ls stage-1/train | head -1)" bs=1 seek=700 conv=notrunc 2> /dev/null
expect 0 "16 files reused" ranks 4 "${stage[@]}" --output-dir s3
# What one run reads another may read, too, but not replace.
exec 9> stage-0/.convoy-stage.lock
flock -s 9
expect 0 "17 files reused" ranks 4 "${stage[@]}" --output-dir s7
rm -r broken && cp -r data broken && rm "broken/train/$(ls broken/train | head -1)"
expect 2 "stage-0: files there would change while another run reads them" ranks 4 "${stage[@]}" --data-dir broken --output-dir s5
[ "$(ls stage-0/train | wc -l)" -eq "$(ls data/train | wc -l)" ] && ok || bad "a refused run removes staged files"
exec 9>&-
rm -r broken && cp -r data broken && rm "broken/train/$(ls broken/train | head -1)"
expect 0 "staged 16 files" ranks 4 "${stage[@]}" --data-dir broken --output-dir s5
diff -r broken stage-1 -x '.convoy-stage.*' -x '*.svg' -x simulation.json > /dev/null && ok || bad "a second data set mixes with the first"
expect 2 "which is read, or lies in it" ranks 4 "${stage[@]}" --data-dir broken --output-dir stage-0/run
# Of a staging that was broken off the names are known: another data set takes its place.
expect 0 "staged 17 files" ranks 4 "${stage[@]}" --output-dir s8
sed -i 's/,[0-9]*\]/,null]/g' stage-0/.convoy-stage.json && touch "stage-0/train/$(ls data/train | head -1).tmp"
expect 0 "staged 16 files" ranks 4 "${stage[@]}" --data-dir broken --output-dir s9
diff -r broken stage-0 -x '.convoy-stage.*' -x '*.svg' -x simulation.json > /dev/null && ok || bad "what a broken staging left mixes with the next: $(ls stage-0/train)"
cp "data/train/$(ls data/train | head -1)" stage-0/train/mine.tfrecord
expect 3 "mine.tfrecord: is no staged file" ranks 4 "${stage[@]}" --output-dir s6
expect 2 "is --data-dir itself" ranks 2 "${train[@]}" --batch-size 1 --stage-dir data --output-dir s4

# Shares: every node keeps and reads training files of its own, and of the validation files those that its ranks see.
share=("${train[@]}" --batch-size 1 --stage-dir 'share-{node}' --stage-share --ranks-per-node 2)
expect 0 "staged 17 files as shares of 8 to 9" ranks 4 "${share[@]}" --output-dir h1 --save h1.safetensors
for part in "train 6 6 12" "validation 3 2 5"; do
  read -r folder first second both <<< "$part"
  found="$(ls share-0/$folder | wc -l) $(ls share-1/$folder | wc -l) $({ ls share-0/$folder; ls share-1/$folder; } | sort -u | wc -l)"
  [ "$found" = "$first $second $both" ] && ok || bad "shares of $folder: expected $first $second $both, found $found"
done
expect 0 "finished: 4 steps" ranks 4 "${share[@]}" --output-dir h2 --max-steps 4
expect 0 "17 files reused" ranks 4 "${share[@]}" --output-dir h2 --resume --save h2.safetensors
same h1.safetensors h2.safetensors
expect 2 "setting stage-share nodes: expected 2, found 4" ranks 4 "${share[@]}" --ranks-per-node 1 --output-dir h2 --resume
expect 2 "--stage-share: expected as many ranks on every node, found 2 and 1" ranks 3 "${share[@]}" --output-dir h3
expect 2 "--stage-share: expected a training file for each of 2 nodes, found 1" ranks 4 "${share[@]}" --n-train 1 --output-dir h3
expect 2 "--stage-dir one is that of several nodes: write {node}" ranks 2 "${share[@]}" --stage-dir one --ranks-per-node 1 --output-dir h3
expect 0 "wrote 17 samples" "$bin/convoy_data" convert data --out shards --format sharded-hdf5 --shard 4
expect 0 "each node trains on 4 to 8 samples of its own" ranks 4 "${share[@]}" --data-dir shards --output-dir h5
expect 0 "staged 5 files as shares of 2 to 4" ranks 4 "${share[@]}" --data-dir shards --output-dir h5 --resume
expect 2 "--stage-share has no effect without --stage-dir" "$bin/cosmoflow_train" "${common[@]}" --stage-share --output-dir h3
rm -r broken && cp -r data broken && truncate -s 3000 "broken/train/$(ls broken/train | tail -1)"
expect 3 "share-1/train/$(ls broken/train | tail -1)" ranks 4 "${share[@]}" --data-dir broken --output-dir h4
}
climate_over_ranks() {
# Climate segmentation, with batch-norm statistics over both ranks.
expect 0 "wrote" "$bin/climate_simulate" --orography none --height 64 --width 96 --days 2 --validation-days 2 --steps 2 --out weather
climate=("$bin/climseg_train$suffix" --data-dir weather --width-divisor 16 --crop 32x48 --crops-per-image 2 --max-epochs 2 --seed 4 --threads 1)
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c2 --batchnorm-group-size 2 --lr-scaling linear --trace
messages c2 "batch-norm statistics 0" bucket0  # of both communicators
# Milestones count steps, of which other ranks make other numbers.
for rule in "cosine_annealing --lr-t-max 6" "polynomial --lr-t-max 6 --lr-warmup-steps 1"; do
  # shellcheck disable=SC2086
  expect 0 "finished: 2 steps" ranks 2 "${climate[@]}" --lr-schedule $rule --output-dir "decays-${rule%% *}" --max-steps 2
done
expect 0 "--lr-t-max count steps of 1 samples from here on, of which 4 lie behind" "${climate[@]}" --output-dir decays-cosine_annealing --resume --max-steps 5
expect 0 "--lr-warmup-steps and --lr-t-max count steps of 1 samples" "${climate[@]}" --output-dir decays-polynomial --resume --lr-t-max 12 --max-steps 5
late=("${climate[@]}" --lr-schedule multistep --output-dir c10 --max-steps)
expect 0 "finished: 3 steps" ranks 2 "${late[@]}" 3 --lr-milestones 2
expect 0 "--lr-milestones count steps of 1 samples from here on" "${late[@]}" 7 --lr-milestones 4 --resume
expect 2 "setting lr-milestones: expected \"4\", found \"5\"" "${late[@]}" 7 --lr-milestones 5 --resume
expect 0 "staged 8 files as shares of 4 to 4" ranks 2 "${climate[@]}" --output-dir c9 --stage-dir 'sky-{node}' --stage-share --ranks-per-node 1 --max-steps 2
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c4 --batchnorm-group-size 2 --lr-scaling linear --recompute
columns same 3 c2/history.csv c4/history.csv
# Pictures are of the first validation images, whoever evaluates them.
expect 0 "4 images, masks" "$bin/climseg_predict" --data-dir weather --width-divisor 16 --threads 1 --checkpoint c2 --out c2masks
number=0
for image in weather/validation/*.h5; do
  same "c2masks/validation/$(basename "$image" .h5).png" "c2/validation-$number.png"
  number=$((number + 1))
done
# Three images are more than one rank's share of two; members of a team share their weights meanwhile.
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c6 --batch-norm-recalibration 3
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c7 --batch-norm-recalibration 3 --no-share-weights
columns same 3-5 c6/history.csv c7/history.csv
expect 0 "finished" ranks 2 "${climate[@]}" --output-dir c8
columns unlike 4 c6/history.csv c8/history.csv
expect 0 "finished" "$bin/climseg_train" "${climate[@]:1}" --output-dir c1 --local-batch-size 2 --lr-scaling linear
near 3 2e-2 c1/history.csv c2/history.csv
expect 2 "--batchnorm-group-size has no effect" ranks 2 "${climate[@]}" --model deeplab --output-dir c5 --batchnorm-group-size 2
expect 2 "do not divide into groups of 2" ranks 3 "${climate[@]}" --output-dir c3 --batchnorm-group-size 2
}
beside failing_mpi
beside mistakes_and_staging
beside climate_over_ranks
join_checks
conclude
