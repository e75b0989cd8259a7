#!/usr/bin/env bash
# What makes, checks and converts data sets, on tiny ones: names, targets and options of convoy_data and its neighbours.
# usage: data.sh BIN_DIR
set -u
bin=$1
. "$(dirname "$0")/expect.sh"
data=$bin/convoy_data

expect 0 "wrote 2 + 1 universes" "$bin/cosmoflow_simulate" --out raw --universes 2 --validation 1 --size 32 --crop 16 --steps 2 --format hdf5
expect 2 "--crop has no effect on --format hdf5 --no-gzip" "$bin/cosmoflow_simulate" --out x --universes 1 --size 16 --crop 8 --format hdf5 --no-gzip

# Files of one sample each are named after their universe, whatever file the sample came from.
expect 0 "wrote 24 samples" "$data" convert raw --crop 16 --out shards --format sharded-hdf5 --shard 5
expect 0 "wrote 24 samples" "$data" convert shards --out records
present records/train/universe-00001_007.tfrecord records/validation/universe-00002_000.tfrecord
expect 0 "24 samples, 3 universes" "$data" inspect records --limit 0
expect 0 "wrote 16 samples" "$data" convert raw/train --crop 16 --out cubes --format raw-hdf5
present cubes/univ_ics_a0000001_007.hdf5
for universe in 0 1; do  # by their position, as LBANN names them
  for cube in 0 1 2 3 4 5 6 7; do
    mv cubes/univ_ics_a000000${universe}_00$cube.hdf5 cubes/univ${universe}_$((cube / 4))_$((cube / 2 % 2))_$((cube % 2)).hdf5
  done
done
expect 0 "16 samples, 2 universes" "$data" inspect cubes --limit 0
expect 0 "wrote 16 samples" "$data" convert cubes --out from-cubes
expect 0 "16 samples, 2 universes" "$data" inspect from-cubes --limit 0
present from-cubes/univ1_0_0_007.tfrecord
# With a limit, files behind the samples that are shown stay closed, and nothing is said about all.
mkdir behind && cp shards/train/shard-00000.h5 behind/a.h5 && head -c 500 raw/train/univ_ics_a0000000.hdf5 > behind/b.h5
expect 0 "first 2 samples, of 2 files" "$data" inspect behind --limit 2
expect 0 "first 5 samples, of 2 files" "$data" inspect behind --limit 5
without 0 "universes" "$data" inspect behind --limit 2
for limit in "" "--limit 0" "--limit 6"; do expect 3 "behind/b.h5: not an HDF5 file, truncated or damaged" "$data" inspect behind $limit; done
expect 0 "first 16 samples, of 2 files" "$data" inspect raw/train --crop 16 --limit 100
expect 2 "--crop has no effect on data without raw files" "$data" inspect shards --crop 16 --limit 100
mkdir hollow && expect 3 "hollow: expected .tfrecord, .hdf5 or .h5 files, found none" "$data" inspect hollow --limit 1

# What is read is never overwritten or added to, and two conversions are not mixed.
expect 2 "--out: ./shards/../shards is shards, which is read, or lies in it" "$data" convert shards --out ./shards/../shards
expect 2 "--out: shards/more is shards, which is read, or lies in it" "$data" convert shards --out shards/more
expect 2 "shards/train: expected an empty folder or none, found shard-0000" "$data" convert raw --crop 16 --out shards --format sharded-hdf5
expect 2 "records/train: expected an empty folder or none, found universe-" "$data" convert raw --crop 16 --out records
expect 2 "cubes: expected an empty folder or none, found univ" "$data" convert cubes/univ0_0_0_0.hdf5 --out cubes
expect 0 "24 samples, 0 bad" "$data" verify records
# A set in parts joins none that lies there, and stands beside no samples.
expect 0 "wrote 16 samples" "$data" convert raw/train --crop 16 --out parts/train --format raw-hdf5
expect 2 "parts/train: expected an empty folder or none, found univ" "$data" convert raw --crop 16 --out parts --format raw-hdf5
expect 0 "wrote 8 samples" "$data" convert raw/validation --crop 16 --out parts/validation --format raw-hdf5
mkdir only && cp -r raw/train only/train
expect 0 "wrote 8 samples" "$data" convert raw/validation --crop 16 --out joined/validation
expect 2 "joined/validation: expected an empty folder or none, found univ" "$data" convert only --crop 16 --out joined
expect 0 "wrote 16 samples" "$data" convert raw/train --crop 16 --out roots --format sharded-hdf5
expect 2 "roots: expected no samples beside roots/train, found shard-00000.h5" "$data" convert only --crop 16 --out roots
cp raw/validation/*.hdf5 only
expect 2 "only: expected samples in train or beside it, found both" "$data" convert only --crop 16 --out x
expect 3 "/dev/null: expected a file or a folder, found a device or a pipe" "$data" inspect /dev/null
mkdir taken && echo mine > taken/power_spectrum.svg
expect 2 "taken/power_spectrum.svg: is there already" "$bin/cosmoflow_simulate" --out taken --universes 1 --validation 0 --size 16 --steps 2
[ "$(cat taken/power_spectrum.svg)" = mine ] && [ ! -e taken/train ] && ok || bad "a refused simulation left something in taken"
# Links that lead back are named, not followed for ever.
cp -r records loop
ln -s . loop/train/again
ln -s ../validation loop/validation/more
expect 3 "again: a link to loop/train, in which it lies" "$data" verify loop
rm loop/train/again
expect 3 "more: a link to loop/validation, in which it lies" "$data" verify loop
# A shard has physical parameters of all its samples, or of none.
mkdir mixed && cp raw/train/univ_ics_a0000000.hdf5 records/train/universe-00001_00[0-3].tfrecord mixed
expect 0 "wrote 12 samples" "$data" convert mixed --crop 16 --out mixed-shards --format sharded-hdf5 --shard 100
present mixed-shards/shard-00001.h5
grep -q physPar mixed-shards/shard-00000.h5 && ! grep -q physPar mixed-shards/shard-00001.h5 && ok || bad "shards of mixed samples: $(ls mixed-shards)"
# Samples of another extent are named, however many a shard takes.
mkdir sizes && cp raw/train/univ_ics_a0000000.hdf5 sizes/a.hdf5
expect 0 "wrote 8 samples" "$data" convert raw/train/univ_ics_a0000001.hdf5 --crop 16 --out eighths --format raw-hdf5 && cp "$(ls eighths/*.hdf5 | head -1)" sizes/b.hdf5
for shard in 1 64; do
  expect 3 "sizes/b.hdf5: expected 32x32x32x4 i16, 4 targets like the samples before, found 16x16x16x4" "$data" convert sizes --crop 32 --out sized-$shard --format sharded-hdf5 --shard $shard
done
# What a conversion leaves that fails half way is no data set.
mkdir broken && cp raw/train/*.hdf5 broken && second=broken/univ_ics_a0000001.hdf5
head -c 400 /dev/zero | tr '\0' '\377' | dd of=$second bs=1 seek=$(($(stat -c %s $second) / 2)) conv=notrunc status=none
expect 3 "$second: data set full: a chunk does not inflate to its 32768 bytes: truncated or damaged" "$data" convert broken --crop 16 --out half
present half/univ_ics_a0000000_007.tfrecord
expect 3 "half/convoy.unfinished: the program that writes this folder is not done, or did not end well" "$data" verify half
expect 2 "half: expected an empty folder or none" "$data" convert raw/validation --out half
mkdir -p whole && mv half whole/train && cp -r shards/validation whole
expect 3 "whole/train/convoy.unfinished: " "$data" verify whole
expect 0 "8 samples, 0 bad" "$data" verify whole/validation
# Files that do not reach the disk are told, and leave no data set.
cat > lost.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int fsync(int file) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "_005.tfrecord")) return errno = ENOSPC, -1;
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}
C
cc -shared -fPIC -o lost.so lost.c -ldl
expect 1 "a0000000_005.tfrecord: cannot sync to disk: No space left on device" env LD_PRELOAD="$work/lost.so" "$data" convert raw/train --crop 16 --out lost
expect 3 "lost/convoy.unfinished: " "$data" verify lost
# Nothing but the mark goes with a conversion that wrote nothing; folders that were there stay.
rm broken/univ_ics_a0000000.hdf5 && mkdir stays && mkdir target && ln -s target linked
for out in stays linked fresh; do expect 3 "bytes: truncated or damaged" "$data" convert broken --out $out; done
[ -d stays ] && [ -d target ] && [ -z "$(find stays target -type f)" ] && [ -L linked ] && [ ! -e fresh ] && ok || bad "a conversion of nothing leaves $(ls -d stays/* target/* linked fresh 2> /dev/null)"
# Folders within each other go, too, from the innermost on.
mkdir -p deep/inner && cp $second deep/a.hdf5 && cp raw/train/univ_ics_a0000000.hdf5 deep/inner/b.hdf5
expect 3 "deep/a.hdf5: " "$data" convert deep --out nested
[ ! -e nested ] && ok || bad "a conversion of nothing leaves $(find nested)"
# What means nothing for the data is refused, not ignored.
for format in tfrecord raw-hdf5 split-hdf5; do
  expect 2 "--shard has no effect on --format $format" "$data" convert raw --crop 16 --out x --format $format --shard 5
done
for command in inspect verify "convert --out x"; do
  expect 2 "--channels has no effect on data without TFRecords" "$data" $command raw --channels 4
  expect 2 "--crop has no effect on data without raw files" "$data" $command shards --crop 16
done
expect 2 "--limit: expected 0 or more, found -1" "$data" inspect raw --limit -1
[ -e x ] && bad "a refused conversion left its folder" || ok

# What cannot be read is counted, whatever else is there.
mkdir records/spoilt && head -c 500 raw/train/univ_ics_a0000000.hdf5 > records/spoilt/a.h5
ln -s nowhere.tfrecord records/spoilt/b.tfrecord && ln -s nowhere.h5 records/spoilt/c.h5
expect 3 "25 samples, 3 bad" "$data" verify records
expect 3 "bad: records/spoilt/c.h5: no such file" "$data" verify records
expect 3 "records/spoilt/b.tfrecord: a link to nothing" "$data" inspect records
expect 3 "nowhere: no such file or folder" "$data" verify nowhere
expect 3 "bad: records/spoilt/a.h5: not an HDF5 file, truncated or damaged" "$data" verify records/spoilt/a.h5
rm -r records/spoilt
expect 0 "1 samples, 0 bad" "$data" verify records/train/universe-00001_007.tfrecord

# Climate images.
expect 0 "wrote 1 + 1 images" "$bin/climate_simulate" --orography none --height 32 --width 48 --days 1 --validation-days 1 --steps 1 --out sky
cp sky/train/*.h5 one.h5 && cp one.h5 kept.h5
mkdir normalised && cp sky/stats.h5 normalised
expect 2 "normalised/stats.h5: is there already" "$bin/climate_simulate" --orography none --height 32 --width 48 --days 1 --validation-days 0 --steps 1 --out normalised
same sky/stats.h5 normalised/stats.h5
expect 2 "--out: ./one.h5 is read from and would be overwritten" "$data" stats one.h5 --out ./one.h5
ln -s one.h5 alias.h5
expect 2 "--out: alias.h5 is read from and would be overwritten" "$data" stats one.h5 --out alias.h5
expect 2 "--out: one.h5 is read from and would be overwritten" "$data" stats alias.h5 --out one.h5
same one.h5 kept.h5
expect 2 "--out: nowhere/stats.h5: expected a file in a folder that exists, found no folder" "$data" stats sky --out nowhere/stats.h5
expect 2 "--out: sky: expected a file in a folder that exists, found a folder" "$data" stats sky --out sky
expect 2 "--threads: expected 1 to 4096, found 100000" "$data" stats sky --threads 100000 --out x.h5
expect 2 "OMP_NUM_THREADS: expected 1 to 4096, found 70000" env OMP_NUM_THREADS=70000 "$data" stats sky --out x.h5
for wrong in "validation-days 9223372036854775807" "steps 9223372036854775807" "steps 0"; do
  expect 2 "--${wrong% *}: expected" "$bin/climate_simulate" --out x --height 32 --width 48 --${wrong% *} "${wrong#* }"
done
expect 0 "wrote statistics of 2 images" "$data" stats sky --out both.h5
expect 2 "--out: sky/shards is sky, which is read, or lies in it" "$data" convert sky --out sky/shards
expect 0 "wrote 2 images in half precision" "$data" convert sky --out climate-shards
expect 2 "climate-shards/train: expected an empty folder or none, found shard-00000.h5" "$data" convert sky --out climate-shards
expect 3 "shard-00000.h5: is normalised already" "$data" stats climate-shards --out none.h5
head -c 900 one.h5 > sky/validation/late.h5
expect 0 "first 2 images, of 3 files" "$data" inspect sky --limit 2
for limit in "" "--limit 0" "--limit 3"; do expect 3 "sky/validation/late.h5: " "$data" inspect sky $limit; done
expect 3 "sky/validation/late.h5: " "$data" stats sky --out none.h5
[ -e none.h5 ] && bad "stats of bad images are written" || ok
rm sky/validation/late.h5
ln -s nowhere.h5 sky/train/link.h5 && head -c 900 one.h5 > sky/train/cut.h5
expect 3 "2 images read, 2 bad" "$data" verify sky
rm sky/train/link.h5 sky/train/cut.h5

# NetCDF fields: a file of the classic format, words of 32 bits in big-endian order, with int variables alone.
word() { local v; for v in "$@"; do printf "$(printf '\\x%x' $((v >> 24 & 255)) $((v >> 16 & 255)) $((v >> 8 & 255)) $((v & 255)))"; done; }
text() { word ${#1}; printf %s "$1"; head -c $(((4 - ${#1} % 4) % 4)) /dev/zero; }
variable() {  # NAME UNITS BYTES BEGIN DIMENSIONS...
  text "$1"; word $(($# - 4)) "${@:5}"
  if [ -n "$2" ]; then word 12 1; text units; word 2; text "$2"; else word 0 0; fi
  word 4 "$3" "$4"
}
netcdf() {  # UNITS_OF_TIME BEGIN [STEPS]: the header of a file whose values begin there
  local steps=${3:-3}
  printf 'CDF\x01'; word 0 10 3; text time; word $steps; text lat; word 2; text lon; word 3; word 0 0 11 4
  variable time "$1" $((4 * steps)) "$2" 0; variable lat degrees_north 8 $(($2 + 4 * steps)) 1
  variable lon degrees_east 12 $(($2 + 4 * steps + 8)) 2; variable v "" $((24 * steps)) $(($2 + 4 * steps + 20)) 0 1 2
}
fields() { netcdf "$1" "$(netcdf "$1" 0 | wc -c)"; word 0 11 12 -45 45 0 120 240 $(seq 18); }
if [ -x "$bin/climate_convert" ]; then
  convert=("$bin/climate_convert" --height 32 --width 48)
  fields "hours since 2106-03-04 12:00" > dated.nc && fields steps > steps.nc
  expect 0 "v  3 steps" "$bin/climate_convert" --list dated.nc
  expect 0 "PSL     from 101 to 118," "${convert[@]}" --map PSL=dated.nc:v*1e+0+1e+2 --out scaled
  # Images of one day are called so.
  expect 0 "wrote 3 images" "${convert[@]}" --map PSL=dated.nc:v --out dated
  present dated/data-2106-03-04-0000-0.h5 dated/data-2106-03-04-0001-0.h5 dated/data-2106-03-05-0002-0.h5
  expect 0 'steps.nc: dimension time: expected units like "days since 2106-01-01", found "steps": a random split will take every image for a day' \
    "${convert[@]}" --map PSL=steps.nc:v --out steps
  fields "months since 2106-01-01" > months.nc
  expect 0 'months.nc: dimension time: expected units of seconds, minutes, hours or days, found "months since 2106-01-01": a random split' \
    "${convert[@]}" --map PSL=months.nc:v --out months
  present steps/image-0002.h5
  expect 0 "--name: the files' names tell no days" "${convert[@]}" --map PSL=dated.nc:v --out named --name sky
  present named/sky-0002.h5
  expect 2 "dated: expected an empty folder or none, found " "${convert[@]}" --map PSL=dated.nc:v --out dated
  # What NetCDF fills with, in 4 of 6 places and in 1.
  sparse() { netcdf "days since 2106-03-04" "$(netcdf "days since 2106-03-04" 0 | wc -c)"; word 0 1 2 -45 45 0 120 240 "$@" "$@" "$@"; }
  none=-2147483647
  sparse 1 2 $none $none $none $none > sparse.nc && sparse 1 2 3 4 5 $none > dense.nc
  expect 0 "warning: sparse.nc: variable v, channel PSL: 91.15 % of the values were missing" "${convert[@]}" --map PSL=sparse.nc:v --out sparse
  without 0 "were missing" "${convert[@]}" --map PSL=dense.nc:v --out dense
  # A field without a time is the same in all images; steps that not all fields have are left out.
  still() {  # a header with lat and lon alone
    printf 'CDF\x01'; word 0 10 2; text lat; word 2; text lon; word 3; word 0 0 11 3
    variable lat degrees_north 8 "$1" 0; variable lon degrees_east 12 $(($1 + 8)) 1; variable v "" 24 $(($1 + 20)) 0 1
  }
  { still "$(still 0 | wc -c)"; word -45 45 0 120 240 $(seq 6); } > still.nc
  expect 0 "v  no time" "$bin/climate_convert" --list still.nc
  expect 0 "wrote 3 images" "${convert[@]}" --map PSL=dated.nc:v --map TS=still.nc:v --out stands
  # Heights of land alone: missing ones are sea, over which cyclones live; without any there is no place for these.
  heights() { still "$(still 0 | wc -c)"; word -45 45 0 120 240 "$@"; }
  missing=-2147483647
  heights 2000 $missing $missing 1000 $missing $missing > land.nc && heights 2000 1500 1500 1000 1500 1 > dry.nc
  heights $missing $missing $missing $missing $missing $missing > empty.nc
  simulate=("$bin/climate_simulate" --height 64 --width 96 --days 1 --validation-days 0 --cyclones 6)
  expect 0 "orography: land.nc: variable v, up to 2000 m, 65.62 % sea, 65.62 % for lack of heights" "${simulate[@]}" --orography land.nc --out islands
  without 0 "tropical cyclones 0.0000 %" "${simulate[@]}" --orography land.nc --out islands2
  expect 3 "dry.nc: variable v: expected sea, where heights are 0, negative or missing, found heights from 1" "${simulate[@]}" --orography dry.nc --out x
  expect 3 "empty.nc: variable v: expected heights, found every value missing" "${simulate[@]}" --orography empty.nc --out x
  { netcdf "hours since 2106-03-04 12:00" "$(netcdf "hours since 2106-03-04 12:00" 0 2 | wc -c)" 2; word 0 11 -45 45 0 120 240 $(seq 12); } > short.nc
  expect 0 "warning: short.nc: variable v has 2 steps, another 3: those behind are left out" "${convert[@]}" --map PSL=dated.nc:v --map TS=short.nc:v --out shorter
  # Fields of different days make no image; the same number of them do, or what all have.
  fields "hours since 2106-03-05 12:00" > later.nc
  expect 3 "later.nc: variable v: step 0 is of 2106-03-05, but dated.nc: variable v is of 2106-03-04" "${convert[@]}" --map PSL=dated.nc:v --map TS=later.nc:v --out x
  expect 0 "wrote 3 images" "${convert[@]}" --map PSL=dated.nc:v --map TS=later.nc:v --out differ --no-same-days
  expect 3 "dated.nc: variable v: expected 5 steps for --first 2 and --steps 3, found 3" "${convert[@]}" --map PSL=dated.nc:v --out x --first 2 --steps 3
  # The detector of storms looks at five channels, each of which comes from one place.
  labels=("${convert[@]}" --labels --map TMQ=dated.nc:v,U850=dated.nc:v,V850=dated.nc:v,T500=dated.nc:v)
  expect 2 "--labels needs PSL, which is not mapped" "${labels[@]}" --out x
  expect 0 "wrote 3 images" "${labels[@]}" --map PSL=dated.nc:v --out labelled
  expect 0 "; 0 images without labels" "$data" verify labelled
  expect 2 "--map: TMQ is mapped twice" "${labels[@]}" --map PSL=dated.nc:v --map TMQ=steps.nc:v --out x
  expect 3 "dated.nc: variable v, channel PSL: expected values that f32 holds, found" "${convert[@]}" --map PSL=dated.nc:v*1e39 --out x
fi
conclude
