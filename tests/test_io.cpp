// Formats: known answers, round trips, and damage of every kind, each ending in one clear error or a correct read.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/philox.h"
#include "io/checkpoint.h"
#include "io/crc32c.h"
#include "io/dataset.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/cosmoflow_source.h"
#include "io/loader.h"
#include "io/safetensors.h"
#include "io/tfrecord.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
namespace fs = std::filesystem;
using convoy::testing::TemporaryFolder;

namespace {

std::vector<std::byte> counts(int64_t elements, uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(elements * 2));
  const PhiloxStream random(seed, 1);
  for (int64_t i = 0; i < elements; ++i) {
    const auto value = static_cast<int16_t>(random.below(static_cast<uint64_t>(i), 5));
    std::memcpy(&bytes[static_cast<size_t>(i * 2)], &value, 2);
  }
  return bytes;
}

const std::vector<float> labels{0.5f, -0.25f, 0.125f, -1.0f};

void write_raw(const std::string& path, int64_t size, bool channels_first) {
  const std::vector<std::byte> voxels = counts(size * size * size * 4, 3);
  Hdf5File file(path, Hdf5File::Mode::create);
  if (channels_first) {
    std::vector<std::byte> moved(voxels.size());
    for (int64_t v = 0; v < size * size * size; ++v)
      for (int64_t c = 0; c < 4; ++c)
        std::memcpy(&moved[static_cast<size_t>((c * size * size * size + v) * 2)],
                    &voxels[static_cast<size_t>((v * 4 + c) * 2)], 2);
    const int64_t extents[] = {4, size, size, size};
    file.write("full", DType::i16, extents, moved);
  } else {
    const int64_t extents[] = {size, size, size, 4};
    file.write("full", DType::i16, extents, voxels);
  }
  const int64_t four[] = {4};
  file.write("unitPar", DType::f32, four, std::as_bytes(std::span(labels)));
}

StateStore small_store() {
  Tape tape;
  tape.parameter("conv1.weight", {4, 3, 3, 3, 2}, {StateInit::Kind::glorot_uniform, 0, 54, 108});
  tape.parameter("dense1.weight", {5, 1, 1, 1, 7}, {StateInit::Kind::he_normal, 0, 7, 5});
  tape.parameter("dense1.bias", Shape::vector(5), {StateInit::Kind::constant, 0.5, 0, 0});
  StateStore store;
  store.initialise(tape, 1);
  return store;
}

/// Writes `data` with one change and reads it back: an Error of any kind or a result, never anything else.
template <class Read>
void sweep(const std::string& path, const std::vector<std::byte>& good, size_t step, Read&& read) {
  size_t errors = 0, tried = 0;
  const auto attempt = [&](const std::vector<std::byte>& data) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
    ++tried;
    try {
      read();
    } catch (const Error& error) {
      ++errors;
      if (std::string(error.what()).find(fs::path(path).filename().string()) == std::string::npos)
        FAIL("an error does not name the file: " << error.what());
    }
  };
  for (size_t at = 0; at < good.size(); at += step) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x41};
    attempt(bad);
    attempt({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at)});
  }
  INFO(path);
  CHECK(tried > 50);
  CHECK(errors >= tried / 2);  // every truncation at least
}

}  // namespace

TEST_CASE("CRC32C known answer, both implementations", "[crc]") {
  const std::string digits = "123456789";
  const auto bytes = std::as_bytes(std::span(digits));
  CHECK(crc32c(bytes) == 0xE3069283u);
  CHECK(crc32c_table(bytes) == 0xE3069283u);
  CHECK(crc32c(bytes.subspan(4), crc32c(bytes.first(4))) == 0xE3069283u);
}

TEST_CASE("TFRecords have the official size and survive a round trip, plain and gzip", "[tfrecord]") {
  const std::vector<std::byte> voxels = counts(16 * 16 * 16 * 4, 1);
  const std::vector<std::byte> file = encode_tfrecord(voxels, labels);
  for (const auto& data : {file, gzip_compress(file, 6)}) {
    const Sample s = decode_tfrecord(data, "a.tfrecord", 4);
    CHECK(s.voxels == voxels);
    CHECK(s.target == labels);
    CHECK(s.shape == SampleShape{16, 4, 4, DType::i16});
  }
  CHECK(encode_tfrecord(std::vector<std::byte>(16777216), labels).size() == 16777287);
}

TEST_CASE("damaged TFRecords say what is wrong", "[tfrecord][malformed]") {
  const std::vector<std::byte> good = encode_tfrecord(counts(8 * 8 * 8 * 4, 1), labels);
  const auto message = [](std::vector<std::byte> data) {
    try {
      decode_tfrecord(data, "dir/a.tfrecord", 4);
    } catch (const Error& error) {
      CHECK(error.exit_code() == 3);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto flipped = [&](size_t at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{1};
    return bad;
  };
  using Catch::Contains;
  CHECK_THAT(message({}), Contains("dir/a.tfrecord") && Contains("at least 16 bytes, found 0"));
  CHECK_THAT(message(flipped(3)), Contains("CRC of the record length"));
  CHECK_THAT(message(flipped(good.size() / 2)),
             Contains("CRC of the record data") && Contains("expected") && Contains("found"));
  CHECK_THAT(message({good.begin(), good.end() - 5}), Contains("length field says"));
  CHECK_THAT(message(encode_tfrecord(counts(100, 1), labels)), Contains("key x") && Contains("200 bytes are no cube"));
  CHECK_THAT(message(encode_tfrecord(counts(8 * 8 * 8 * 4, 1), {})), Contains("key y"));
  std::vector<std::byte> gz = gzip_compress(good, 6);
  gz.resize(gz.size() / 2);
  CHECK_THAT(message(gz), Contains("gzip"));
}

TEST_CASE("byte flips and truncation of one file of each format", "[malformed]") {
  const TemporaryFolder folder;
  const ReadOptions read{4, 8};
  const std::string record = folder / "flip.tfrecord", zipped = folder / "flipz.tfrecord", hdf5 = folder / "flip.hdf5",
                    tensors = folder / "flip.safetensors";
  const std::vector<std::byte> plain = encode_tfrecord(counts(8 * 8 * 8 * 4, 1), labels);
  sweep(record, plain, 37, [&] { read_sample(samples_in(record, read).at(0), read); });
  sweep(zipped, gzip_compress(plain, 6), 11, [&] { read_sample(samples_in(zipped, read).at(0), read); });
  write_raw(hdf5, 8, false);
  sweep(hdf5, read_file(hdf5), 67, [&] {
    for (const SampleRef& ref : samples_in(hdf5, read)) read_sample(ref, read);
  });
  const StateStore store = small_store();
  std::vector<NamedArray> arrays;
  for (const auto& [name, tensor] : store.entries()) arrays.push_back(to_torch(name, tensor));
  write_safetensors(tensors, arrays);
  sweep(tensors, read_file(tensors), 7, [&] {
    for (const NamedArray& a : read_safetensors(tensors))
      from_torch(a, store.contains(a.name) ? store.get(a.name) : Tensor::zeros(Shape::vector(1), DType::f32), tensors);
  });
  const std::string saved = save_checkpoint(folder.path(), 12, store, "{}", 1);
  sweep(saved, read_file(saved), 101, [&] { Checkpoint(saved).restore(store); });
}

TEST_CASE("gzip files of several members and with zeros behind them are whole", "[tfrecord]") {
  const std::vector<std::byte> data = counts(1000, 3);
  const auto first = gzip_compress(std::span(data).first(700), 6),
             second = gzip_compress(std::span(data).subspan(700), 6);
  std::vector<std::byte> both = first;
  both.insert(both.end(), second.begin(), second.end());
  CHECK(gzip_decompress(both, "both") == data);
  both.resize(both.size() + 512);
  CHECK(gzip_decompress(both, "padded") == data);
  both.back() = std::byte{1};
  CHECK_THROWS_WITH(gzip_decompress(both, "more"), Catch::Contains("more: 512 bytes follow the gzip data"));
  both = first;
  both.insert(both.end(), second.begin(), second.end() - 1);
  CHECK_THROWS_WITH(gzip_decompress(both, "cut"), Catch::Contains("cut: damaged or truncated gzip data"));
}

TEST_CASE("raw, LBANN, split and sharded HDF5 give the same voxels", "[hdf5]") {
  const TemporaryFolder folder;
  write_raw(folder / "first.hdf5", 8, false);
  write_raw(folder / "lbann.hdf5", 8, true);
  const ReadOptions read{4, 4};
  const auto a = samples_in(folder / "first.hdf5", read), b = samples_in(folder / "lbann.hdf5", read);
  REQUIRE(a.size() == 8);
  REQUIRE(b.size() == 8);
  for (size_t i = 0; i < 8; ++i) {
    const Sample x = read_sample(a[i], read), y = read_sample(b[i], read);
    CHECK(x.voxels == y.voxels);
    CHECK(x.target == labels);
    CHECK(x.shape.size == 4);
  }
  // Crop 5 is the corner (1, 0, 1): axis 0 outermost.
  const std::vector<std::byte> all = counts(8 * 8 * 8 * 4, 3);
  const Sample crop = read_sample(a[5], read);
  CHECK(std::memcmp(crop.voxels.data(), &all[static_cast<size_t>(((4 * 8 + 0) * 8 + 4) * 4 * 2)], 32) == 0);
  CHECK_THROWS_WITH(samples_in(folder / "first.hdf5", {4, 3}), Catch::Contains("8") && Catch::Contains("3"));
}

TEST_CASE("wrong HDF5 contents are named", "[hdf5][malformed]") {
  const TemporaryFolder folder;
  const int64_t flat[] = {5}, cube[] = {4, 4, 4, 4};
  const std::vector<std::byte> voxels = counts(256, 1);
  {
    Hdf5File file(folder / "other.h5", Hdf5File::Mode::create);
    file.write("z", DType::f32, flat, std::vector<std::byte>(20));
    Hdf5File shape(folder / "shape.h5", Hdf5File::Mode::create);
    shape.write("full", DType::f32, flat, std::vector<std::byte>(20));
    Hdf5File nan(folder / "nan.h5", Hdf5File::Mode::create);
    const float bad[] = {NAN};
    const int64_t one[] = {1};
    nan.write("x", DType::i16, cube, std::vector<std::byte>(512));
    nan.write("y", DType::f32, one, std::as_bytes(std::span(bad)));
    Hdf5File negative(folder / "negative.h5", Hdf5File::Mode::create);
    std::vector<std::byte> minus = std::vector<std::byte>(512);
    minus[7] = std::byte{0xff};
    negative.write("x", DType::i16, cube, minus);
    const float fine[] = {0.5f};
    negative.write("y", DType::f32, one, std::as_bytes(std::span(fine)));
  }
  const float four[] = {0.1f, 0.2f, 0.3f, 0.4f};
  const int64_t two[] = {2}, three[] = {3}, targets[] = {4};
  const auto write = [&](const std::string& name, const auto& fill) {
    Hdf5File file(folder / name, Hdf5File::Mode::create);
    fill(file);
  };
  write("physical.h5", [&](Hdf5File& file) {
    file.write("full", DType::i16, std::array<int64_t, 4>{8, 8, 8, 4}, std::vector<std::byte>(4096));
    file.write("unitPar", DType::f32, targets, std::as_bytes(std::span(four)));
    file.write("physPar", DType::f32, three, std::as_bytes(std::span(four).first(3)));
  });
  write("wide.h5", [&](Hdf5File& file) {
    file.write("x", DType::i32, cube, std::vector<std::byte>(1024));
    file.write("y", DType::f32, targets, std::as_bytes(std::span(four)));
  });
  write("infinite.h5", [&](Hdf5File& file) {
    std::vector<float> values(256);
    values[9] = INFINITY;
    file.write("x", DType::f32, cube, std::as_bytes(std::span(values)));
    file.write("y", DType::f32, targets, std::as_bytes(std::span(four)));
  });
  const auto write_shard = [&](const std::string& name, int64_t rows, std::span<const int64_t> physical) {
    write(name, [&](Hdf5File& file) {
      const int64_t chunk[] = {1, 4, 4, 4, 1};
      file.create("voxels", DType::i16, std::array<int64_t, 5>{rows, 4, 4, 4, 1}, chunk, 1);
      if (rows == 2)
        file.write_box("voxels", DType::i16, std::array<int64_t, 5>{}, std::array<int64_t, 5>{2, 4, 4, 4, 1},
                       counts(2 * 64, 1));
      file.write("unitPar", DType::f32, std::array<int64_t, 2>{2, 2}, std::as_bytes(std::span(four)));
      file.write("physPar", DType::f32, physical, std::as_bytes(std::span(four)));
      file.write_text("format", "convoy-cosmoflow-1");
    });
  };
  const auto write_huge = [&](const std::string& name, const char* voxels, const char* target) {
    write(name, [&](Hdf5File& file) {
      const int64_t chunk[] = {64, 64, 64, 4};
      file.create(voxels, DType::i16, std::array<int64_t, 4>{2048, 2048, 2048, 4}, chunk, 1);
      file.write(target, DType::f32, targets, std::as_bytes(std::span(four)));
    });
  };
  write_huge("huge.h5", "x", "y"), write_huge("whole.h5", "full", "unitPar");
  write_shard("rows.h5", int64_t{1} << 40, std::array<int64_t, 2>{2, 2});
  write_shard("rank.h5", 2, std::array<int64_t, 3>{2, 1, 2});
  write_shard("shard.h5", 2, std::array<int64_t, 2>{2, 2});
  {
    Hdf5File file(folder / "box.h5", Hdf5File::Mode::create);
    CHECK_THROWS_WITH(file.write("y", DType::f32, two, std::as_bytes(std::span(four))),
                      Catch::Contains("expected 2 elements, found 4"));
  }
  const ReadOptions read{4, 4};
  const auto read_all = [&](const std::string& name) {
    for (const SampleRef& ref : samples_in(folder / name, read)) read_sample(ref, read);
  };
  CHECK_THROWS_WITH(read_all("other.h5"), Catch::Contains("expected data sets") && Catch::Contains("found z"));
  CHECK_THROWS_WITH(read_all("shape.h5"), Catch::Contains("full is 5"));
  CHECK_THROWS_WITH(read_all("nan.h5"), Catch::Contains("target 0 is not finite"));
  CHECK_THROWS_WITH(read_all("negative.h5"), Catch::Contains("expected particle counts"));
  CHECK_THROWS_WITH(read_all("physical.h5"), Catch::Contains("physPar has 3 parameters, expected 4"));
  CHECK_THROWS_WITH(read_all("wide.h5"), Catch::Contains("wide.h5: data set x holds wide integers"));
  CHECK_THROWS_WITH(read_all("infinite.h5"), Catch::Contains("infinite.h5: voxel 9 is not finite"));
  CHECK_THROWS_WITH(read_all("rows.h5"), Catch::Contains("expected a row for each of 1099511627776 samples"));
  const char* no_simulation = "a sample of 2048x2048x2048x4, which no simulation has";
  CHECK_THROWS_WITH(read_all("huge.h5"), Catch::Contains("huge.h5: data set x: ") && Catch::Contains(no_simulation));
  const SampleRef whole = samples_in(folder / "whole.h5", {4, 2048}).at(0);
  CHECK_THROWS_WITH(read_sample(whole, {4, 2048}), Catch::Contains(no_simulation));
  // Of a large volume, a crop is no large sample; HDF5 would read what nobody wrote as zeros.
  CHECK_THROWS_WITH(
      read_sample(whole, read),
      Catch::Contains(
          "whole.h5: data set full: of 32768 chunks 0 are there, one that is asked for is not: nobody wrote it"));
  const std::vector<SampleRef> shard = samples_in(folder / "shard.h5", read);
  CHECK(read_physical(shard.at(1)) == std::vector<float>{four[2], four[3]});
  CHECK(read_sample(shard.at(1), read).physical == read_physical(shard.at(1)));
  CHECK_THROWS_WITH(read_all("rank.h5"), Catch::Contains("physPar is 2x1x2, expected 2x2 as unitPar is"));
  CHECK_THROWS_WITH(read_file(folder.path()), Catch::Contains("expected a file, found a folder"));
  CHECK_THROWS_WITH(read_file(folder / "none"), Catch::Contains("none: cannot open: No such file or directory"));
  CHECK_THROWS_WITH(samples_below(folder / "none", read), Catch::Contains("no such folder"));
  fs::create_directory(folder / "empty");
  CHECK_THROWS_WITH(samples_below(folder / "empty", read), Catch::Contains("found none"));
}

namespace {

ListSamples listing(const ReadOptions& options) {
  return [options](const std::string& path, int64_t most) { return samples_below(path, options, most); };
}

}  // namespace

TEST_CASE("a split never puts one universe on both sides", "[dataset]") {
  const TemporaryFolder folder;
  for (int universe = 0; universe < 10; ++universe)
    for (int part = 0; part < 3; ++part)
      write_file(folder / ("univ_" + std::to_string(universe) + "_00" + std::to_string(part) + ".tfrecord"),
                 encode_tfrecord(counts(4 * 4 * 4 * 4, 1), labels));
  const DataSplit split = split_samples(folder.path(), listing({4, 4}), 0.3, 5);
  CHECK(split.train.size() == 21);
  CHECK(split.validation.size() == 9);
  for (const SampleRef& v : split.validation)
    for (const SampleRef& t : split.train) CHECK(universe_of(v) != universe_of(t));
  CHECK(split_samples(folder.path(), listing({4, 4}), 0.3, 5).validation[0].path == split.validation[0].path);
}

TEST_CASE("the loader's order is a permutation, resumable anywhere, the same for any thread count", "[loader]") {
  const TemporaryFolder folder;
  for (int i = 0; i < 7; ++i) {
    std::vector<float> y{float(i), 0, 0, 0};
    write_file(folder / ("u_" + std::to_string(i) + "_000.tfrecord"),
               encode_tfrecord(counts(4 * 4 * 4 * 4, static_cast<uint64_t>(i)), y));
  }
  const auto refs = samples_below(folder.path(), {4, 4});
  LoaderOptions o{.seed = 3};
  CosmoflowReading reading;
  reading.read = {4, 4};
  reading.expected = {4, 4, 4, DType::i16};
  reading.augment = Augment::cube;
  reading.seed = 3;
  const auto stream = [&](LoaderOptions options, int64_t epoch, int64_t position, int count) {
    Loader loader(std::make_shared<CosmoflowSource>(refs, reading), options, epoch, position);
    std::vector<std::pair<float, std::vector<std::byte>>> result;
    for (int i = 0; i < count; ++i) {
      std::vector<std::byte> voxels(512);
      float target[4];
      loader.next(voxels.data(), reinterpret_cast<std::byte*>(target));
      result.emplace_back(target[0], voxels);
    }
    return result;
  };
  const auto whole = stream(o, 0, 0, 21);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<bool> seen(7);
    for (int i = 0; i < 7; ++i) seen[static_cast<size_t>(whole[static_cast<size_t>(epoch * 7 + i)].first)] = true;
    CHECK(std::count(seen.begin(), seen.end(), true) == 7);
  }
  const auto later = stream(o, 1, 3, 11);
  for (size_t i = 0; i < later.size(); ++i) CHECK(later[i] == whole[10 + i]);
  o.threads = 3;
  o.queue = 5;
  reading.cache = std::make_shared<SampleCache>();
  CHECK(stream(o, 0, 0, 21) == whole);
  reading.cache.reset();
  // Shares of two nodes with two ranks and one: each deals out its own, of which the smaller one's come again.
  std::vector<int> times(7);
  for (const auto& [samples, ranks] : {std::pair<std::vector<int64_t>, int>{{0, 2, 4, 6}, 2}, {{1, 3, 5}, 1}})
    for (int rank = 0; rank < ranks; ++rank) {
      LoaderOptions own{.seed = 3, .rank = 7, .ranks = 9};
      own.share = std::make_shared<LoaderShare>(LoaderShare{samples, rank, ranks, 2 - ranks, 4});
      const int count = 4 / ranks;
      const auto epochs = stream(own, 0, 0, 2 * count);
      for (const auto& [target, voxels] : epochs) {
        CHECK(std::find(samples.begin(), samples.end(), int64_t(target)) != samples.end());
        ++times[static_cast<size_t>(target)];
      }
      const auto second = stream(own, 1, 0, count);
      CHECK(std::equal(second.begin(), second.end(), epochs.begin() + count));
      CHECK(own.one_by_one(7, false).share == nullptr);
    }
  CHECK(epoch_order(50, 3, 0, 1) != epoch_order(50, 3, 0, 0));
  for (const int i : {0, 2, 4, 6}) CHECK(times[static_cast<size_t>(i)] == 2);
  CHECK(times[1] + times[3] + times[5] == 8);
  CHECK(std::min({times[1], times[3], times[5]}) == 2);
  reading.expected.size = 8;
  CHECK_THROWS_WITH(stream(o, 0, 0, 1), Catch::Contains("expected 8x8x8x4") && Catch::Contains("found 4x4x4x4"));
}

TEST_CASE("safetensors files have no gaps and nothing behind their tensors", "[malformed]") {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& header, size_t bytes) {
    const uint64_t length = header.size();
    std::vector<std::byte> all(8 + header.size() + bytes);
    std::memcpy(all.data(), &length, 8);
    std::memcpy(all.data() + 8, header.data(), header.size());
    write_file(folder / "w.safetensors", all);
    return read_safetensors(folder / "w.safetensors").size();
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
                    b = R"("b":{"dtype":"F32","shape":[1],"data_offsets":[)";
  CHECK(file("{" + a + "," + b + "8,12]}}", 12) == 2);
  CHECK_THROWS_WITH(file("{" + a + "," + b + "8,12]}}", 13), Catch::Contains("expected 12 bytes of data, found 13"));
  CHECK_THROWS_WITH(file("{" + a + "," + b + "4,8]}}", 8), Catch::Contains("expected a tensor at byte 8"));
  CHECK_THROWS_WITH(file("{" + a + "," + b + "12,16]}}", 16), Catch::Contains("expected a tensor at byte 8"));
  CHECK_THROWS_WITH(file(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8),
                    Catch::Contains("expected whole numbers as shape, found [2.5]"));
}

TEST_CASE("samples with more targets than the first are refused unless fewer are asked for", "[loader]") {
  const TemporaryFolder folder;
  for (const int targets : {4, 6})
    write_file(folder / ("u_" + std::to_string(targets) + "_000.tfrecord"),
               encode_tfrecord(counts(4 * 4 * 4 * 4, 1), std::vector<float>(size_t(targets), 0.5f)));
  CosmoflowReading reading;
  reading.read = {4, 4};
  reading.expected = {4, 4, 4, DType::i16};
  reading.take_targets = 4;
  std::vector<std::byte> voxels(512), targets(16);
  const auto load = [&](bool fewer) {
    reading.fewer_targets = fewer;
    CosmoflowSource source(samples_below(folder.path(), {4, 4}), reading);
    for (int64_t i : {0, 1}) source.load(i, 0, voxels.data(), targets.data());
  };
  CHECK_THROWS_WITH(load(false), Catch::Contains("u_6_000.tfrecord: expected 4 targets, found 6"));
  CHECK_NOTHROW(load(true));
}

TEST_CASE("a volume without particles is refused where it would be divided by their mean", "[loader]") {
  const TemporaryFolder folder;
  write_file(folder / "u.tfrecord", encode_tfrecord(std::vector<std::byte>(512), std::vector<float>(4)));
  CosmoflowReading reading;
  reading.read = {4, 4}, reading.expected = {4, 4, 4, DType::i16}, reading.refuse_empty = true;
  std::vector<std::byte> voxels(512), targets(16);
  const CosmoflowSource source(samples_below(folder.path(), {4, 4}), reading);
  CHECK_THROWS_WITH(source.load(0, 0, voxels.data(), targets.data()),
                    Catch::Contains("u.tfrecord: expected particles"));
}

TEST_CASE("permuted targets are those of other samples, whether samples are kept or not", "[loader]") {
  const TemporaryFolder folder;
  constexpr int samples = 9;
  for (int i = 0; i < samples; ++i)
    write_file(folder / ("u_" + std::to_string(i) + "_000.tfrecord"),
               encode_tfrecord(counts(4 * 4 * 4 * 4, 1), std::vector<float>(4, float(i))));
  std::vector<std::byte> voxels(512);
  const auto order = [&](bool keeps, uint64_t seed) {
    CosmoflowReading reading;
    reading.read = {4, 4};
    reading.expected = {4, 4, 4, DType::i16};
    reading.permute_targets = true, reading.seed = seed;
    if (keeps) reading.cache = std::make_shared<SampleCache>();
    const CosmoflowSource source(samples_below(folder.path(), {4, 4}), reading);
    std::vector<float> found;
    for (int64_t i = 0; i < samples; ++i) {
      std::array<float, 4> target{};
      source.load(i, 0, voxels.data(), reinterpret_cast<std::byte*>(target.data()));
      CHECK(std::count(target.begin(), target.end(), target[0]) == 4);
      found.push_back(target[0]);
    }
    return found;
  };
  const std::vector<float> read = order(false, 1);
  CHECK(read == order(true, 1));
  CHECK(read != order(false, 2));
  std::vector<float> sorted = read;
  std::sort(sorted.begin(), sorted.end());
  for (int i = 0; i < samples; ++i) CHECK(sorted[size_t(i)] == float(i));
  CHECK(read != sorted);
}

TEST_CASE("a loader decodes what will be asked for and no more", "[loader]") {
  struct Numbers : SampleSource {
    mutable std::atomic<int> loaded{0};
    int64_t size() const override { return 7; }
    int64_t input_bytes() const override { return 8; }
    int64_t target_bytes() const override { return 8; }
    void load(int64_t sample, int64_t, std::byte* input, std::byte* target) const override {
      std::memcpy(input, &sample, 8), std::memcpy(target, &sample, 8), ++loaded;
    }
  };
  for (const auto& [rank, ranks, expected] :
       {std::tuple{0, 1, 5}, {0, 3, 2}, {1, 3, 2}, {2, 3, 1}, {3, 6, 1}, {5, 6, 0}}) {
    const auto source = std::make_shared<Numbers>();
    const LoaderOptions o = LoaderOptions{.threads = 3, .rank = rank, .ranks = ranks}.one_by_one(5, false);
    REQUIRE(o.count == expected);
    {
      Loader loader(source, o, 0, 0);
      int64_t input = -1, target = -1;
      const auto next = [&] {
        loader.next(reinterpret_cast<std::byte*>(&input), reinterpret_cast<std::byte*>(&target));
      };
      for (int64_t i = rank; i < 5; i += ranks) {
        next();
        CHECK(input == i);
        CHECK(target == i);
      }
      CHECK_THROWS_AS(next(), std::logic_error);
    }
    CHECK(source->loaded == expected);
  }
}

TEST_CASE("the 48 symmetries are distinct permutations of the voxels", "[loader]") {
  const SampleShape shape{4, 4, 4, DType::i16};
  std::vector<std::byte> voxels(512);
  for (int16_t i = 0; i < 256; ++i) std::memcpy(&voxels[static_cast<size_t>(i) * 2], &i, 2);
  std::vector<std::vector<std::byte>> results;
  for (int s = 0; s < 48; ++s) {
    std::vector<std::byte> out(512);
    apply_cube_symmetry(shape, s, voxels.data(), out.data());
    int64_t sum = 0;
    for (size_t i = 0; i < 256; ++i) {
      int16_t v;
      std::memcpy(&v, &out[i * 2], 2);
      sum += v;
      CHECK(v % 4 == static_cast<int>(i % 4));  // channels stay where they are
    }
    CHECK(sum == 255 * 256 / 2);
    for (const auto& other : results) CHECK(out != other);
    results.push_back(out);
  }
  CHECK(results[0] == voxels);
}

TEST_CASE("checkpoints keep the last K, restore all bits, and refuse strangers", "[checkpoint]") {
  const TemporaryFolder folder;
  const StateStore store = small_store();
  for (int64_t step : {1, 2, 3, 4})
    save_checkpoint(folder.path(), step, store, "{\"step\":" + std::to_string(step) + "}", 2);
  const auto files = list_checkpoints(folder.path());
  REQUIRE(files.size() == 2);
  CHECK(files[0].step == 4);
  CHECK(files[1].step == 3);
  const StateStore other = small_store();
  for (float& v : other.get("conv1.weight").span<float>()) v = 0;
  const Checkpoint newest(files[0].path);
  CHECK(newest.meta() == "{\"step\":4}");
  newest.restore(other);
  CHECK(std::memcmp(other.get("conv1.weight").bytes(), store.get("conv1.weight").bytes(),
                    static_cast<size_t>(store.get("conv1.weight").desc().bytes())) == 0);
  Tape tape;
  tape.parameter("conv9.weight", Shape::vector(3), {});
  StateStore stranger;
  stranger.initialise(tape, 1);
  CHECK_THROWS_WITH(newest.restore(stranger), Catch::Contains("expected state conv9.weight"));
  std::vector<std::byte> data = read_file(files[0].path);
  data[data.size() / 2] ^= std::byte{1};
  write_file(files[0].path, data);
  CHECK_THROWS_AS(Checkpoint(files[0].path), Error);
  // Saves that start over below damaged files are kept.
  const std::string early = save_checkpoint(folder.path(), 1, store, "{}", 1);
  CHECK(fs::exists(early));
  save_checkpoint(folder.path(), 2, store, "{}", 1);
  CHECK(!fs::exists(early));
  CHECK(list_checkpoints(folder.path()).size() == 3);
}

TEST_CASE("a full disk loses nothing that was saved", "[checkpoint]") {
  if (!fs::exists("/dev/full")) return;
  const TemporaryFolder folder;
  write_text(folder / "kept.txt", "before");
  // A link to /dev/full in place of the temporary file makes every write fail with "no space left".
  fs::create_symlink("/dev/full", folder / "kept.txt.tmp");
  CHECK_THROWS_WITH(write_text(folder / "kept.txt", "after"), Catch::Contains("kept.txt") && Catch::Contains("space"));
  const auto kept = read_file(folder / "kept.txt");
  CHECK(std::string(reinterpret_cast<const char*>(kept.data()), kept.size()) == "before");
}

TEST_CASE("safetensors use PyTorch's layout", "[safetensors]") {
  const TemporaryFolder folder;
  const StateStore store = small_store();
  const NamedArray weight = to_torch("conv1.weight", store.get("conv1.weight"));
  CHECK(weight.shape == std::vector<int64_t>{4, 2, 3, 3, 3});
  float value;
  std::memcpy(&value, &weight.data[static_cast<size_t>((((3 * 2 + 1) * 3 + 2) * 3 + 0) * 3 + 1) * 4], 4);
  CHECK(value == float(store.get("conv1.weight").at(3, 2, 0, 1, 1)));
  CHECK(to_torch("dense1.weight", store.get("dense1.weight")).shape == std::vector<int64_t>{5, 7});
  CHECK(to_torch("dense1.bias", store.get("dense1.bias")).shape == std::vector<int64_t>{5});
  write_safetensors(folder / "w.safetensors", {weight});
  const auto back = read_safetensors(folder / "w.safetensors");
  const Tensor copy = Tensor::zeros(store.get("conv1.weight").desc());
  from_torch(back.at(0), copy, "w");
  CHECK(std::memcmp(copy.bytes(), store.get("conv1.weight").bytes(), static_cast<size_t>(copy.desc().bytes())) == 0);
  CHECK_THROWS_WITH(from_torch(back.at(0), store.get("dense1.weight"), "w.safetensors"),
                    Catch::Contains("expected shape [5,7], found [4,2,3,3,3]"));
}

TEST_CASE("files below a folder: links are followed, broken ones named", "[io][malformed]") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  fs::create_directories(folder / "data"), fs::create_directories(folder / "elsewhere");
  for (const char* name : {"data/a.h5", "elsewhere/b.h5"}) std::ofstream(folder / name) << "x";
  fs::create_directory_symlink(folder / "elsewhere", folder / "data/more");
  CHECK(files_below(folder / "data", {".h5"}) ==
        std::vector<std::string>{folder / "data/a.h5", folder / "data/more/b.h5"});
  fs::create_symlink(folder / "gone.h5", folder / "data/c.h5");
  CHECK_THROWS_WITH(files_below(folder / "data", {".h5"}), Catch::Contains("data/c.h5: a link to nothing"));
  CHECK(files_below(folder / "data", {".h5"}, BrokenLinks::listed).at(1) == folder / "data/c.h5");
}

TEST_CASE("a sample's universe: numbered cubes share one, compressed or not", "[io]") {
  const auto universe = [](const char* path) { return universe_of({path, FileFormat::tfrecord, 0}); };
  CHECK(universe("d/univ_a_007.tfrecord") == "univ_a");
  CHECK(universe("d/univ_a_007.tfrecord.gz") == "univ_a");
  CHECK(universe("d/univ_a.tfrecord") == "univ_a");
  CHECK(universe_of({"d/univ_3.hdf5", FileFormat::raw_hdf5, 0, "labels 1"}) == "labels 1");
}

TEST_CASE("cubes of one universe stay together whatever their HDF5 files are called", "[dataset]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "lbann"), fs::create_directory(folder / "split");
  const int64_t cube[] = {8, 8, 8, 4}, four[] = {4};
  for (int universe = 0; universe < 6; ++universe)
    for (int part = 0; part < 8; ++part) {
      const std::vector<float> y{float(universe) / 8, 0.5f, -0.25f, 1};
      const auto write = [&](const std::string& path, const char* voxels, const char* target) {
        Hdf5File file(path, Hdf5File::Mode::create);
        file.write(voxels, DType::i16, cube, counts(8 * 8 * 8 * 4, 1));
        file.write(target, DType::f32, four, std::as_bytes(std::span(y)));
      };
      // Named by position, as LBANN cuts universes, and numbered across all of them.
      const std::string corner =
          std::to_string(part / 4) + "_" + std::to_string(part / 2 % 2) + "_" + std::to_string(part % 2);
      write(folder / ("lbann/univ_" + std::to_string(universe) + "_" + corner + ".hdf5"), "full", "unitPar");
      write(folder / ("split/cube_" + std::to_string(part * 6 + universe) + ".hdf5"), "x", "y");
    }
  for (const char* name : {"lbann", "split"}) {
    const DataSplit split = split_samples(folder / name, listing({4, 8}), 0.34, 5);
    CHECK(split.validation.size() == 16);
    CHECK(split.train.size() == 32);
    const auto first_label = [](const SampleRef& ref) { return read_sample(ref, {4, 8}).target[0]; };
    for (const SampleRef& v : split.validation)
      for (const SampleRef& t : split.train) REQUIRE(first_label(v) != first_label(t));
  }
}

TEST_CASE("raw cubes in floating point hold counts", "[hdf5]") {
  const TemporaryFolder folder;
  for (const bool channels_first : {false, true}) {
    const std::string name = channels_first ? "first" : "last", whole = folder / (name + ".h5"),
                      wide = folder / (name + "-wide.h5"), half = folder / (name + "-half.h5");
    write_raw(whole, 8, channels_first);
    const Hdf5File source(whole, Hdf5File::Mode::read);
    const std::vector<int64_t> extents = source.extents("full");
    std::vector<std::byte> values(8 * 8 * 8 * 4 * sizeof(float));
    source.read("full", DType::f32, values, std::vector<int64_t>(4), extents);
    const int64_t four[] = {4};
    const auto write = [&](const std::string& path) {
      Hdf5File file(path, Hdf5File::Mode::create);
      file.write("full", DType::f32, extents, values);
      file.write("unitPar", DType::f32, four, std::as_bytes(std::span(labels)));
    };
    write(wide);
    const ReadOptions read{4, 4};
    const auto ours = samples_in(wide, read), theirs = samples_in(whole, read);
    REQUIRE(ours.size() == 8);
    for (size_t i = 0; i < ours.size(); ++i) {
      CHECK(read_sample(ours[i], read).shape == read_sample(theirs[i], read).shape);
      CHECK(read_sample(ours[i], read).voxels == read_sample(theirs[i], read).voxels);
    }
    reinterpret_cast<float*>(values.data())[0] += 0.5f;
    write(half);
    CHECK_THROWS_WITH(
        read_sample(samples_in(half, read)[0], read),
        Catch::Contains("half.h5: data set full holds ") && Catch::Contains("expected counts from 0 to 32767"));
  }
}

TEST_CASE("compressed cubes are cut into chunks of bounded size", "[hdf5]") {
  CHECK(cube_chunk(64, 4) == std::array<int64_t, 4>{64, 64, 64, 4});
  CHECK(cube_chunk(1024, 4) == std::array<int64_t, 4>{128, 128, 128, 4});
}

TEST_CASE("physical parameters beside the voxels of one cube are read", "[hdf5]") {
  const TemporaryFolder folder;
  const std::vector<float> physical{0.3f, 0.8f, 0.96f, 70};
  const int64_t cube[] = {4, 4, 4, 4}, four[] = {4}, three[] = {3};
  const auto write = [&](const std::string& path, std::span<const int64_t> extents) {
    Hdf5File file(path, Hdf5File::Mode::create);
    file.write("x", DType::i16, cube, counts(4 * 4 * 4 * 4, 1));
    file.write("y", DType::f32, four, std::as_bytes(std::span(labels)));
    const auto count = static_cast<size_t>(extents[0]);
    file.write("physPar", DType::f32, extents, std::as_bytes(std::span(physical).first(count)));
  };
  write(folder / "a.hdf5", four), write(folder / "b.hdf5", three);
  const auto read = [&](const char* name) { return read_sample(samples_in(folder / name, {4, 4}).at(0), {4, 4}); };
  CHECK(read("a.hdf5").physical == physical);
  CHECK(read_physical(samples_in(folder / "a.hdf5", {4, 4}).at(0)) == physical);
  CHECK_THROWS_WITH(read("b.hdf5"), Catch::Contains("b.hdf5: data set physPar has 3 parameters, expected 4"));
}
