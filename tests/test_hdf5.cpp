// What the HDF5 layer makes of full disks, threads and elements that are no numbers.
#include <fcntl.h>
#include <hdf5.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "io/checkpoint.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using convoy::testing::TemporaryFolder;

namespace {

/// No file of this process grows beyond so many bytes, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

const std::vector<float> numbers = [] {
  std::vector<float> values;
  for (int i = 0; i < 2000; ++i) values.push_back(float(i % 97));
  return values;
}();

void write_numbers(const std::string& path, int gzip) {
  Hdf5File file(path, Hdf5File::Mode::create);
  const int64_t extents[] = {static_cast<int64_t>(numbers.size())}, chunk[] = {500};
  file.write("group/numbers", DType::f32, extents, std::as_bytes(std::span(numbers)),
             gzip ? std::span<const int64_t>(chunk) : std::span<const int64_t>(), gzip);
  file.write_text("format", "numbers");
  file.close();
}

std::vector<float> read_numbers(const std::string& path) {
  std::vector<float> values(numbers.size());
  Hdf5File(path, Hdf5File::Mode::read).read("group/numbers", DType::f32, std::as_writable_bytes(std::span(values)));
  return values;
}

StateStore store_of(int64_t elements) {
  Tape tape;
  tape.parameter("weight", Shape::vector(elements), {StateInit::Kind::constant, 0.5, 0, 0});
  StateStore store;
  store.initialise(tape, 1);
  return store;
}

}  // namespace

TEST_CASE("files that do not fit are errors, wherever they end, and nothing else breaks", "[hdf5]") {
  const TemporaryFolder folder;
  write_numbers(folder / "whole.h5", 0);
  const auto size = std::filesystem::file_size(folder / "whole.h5");
  int refused = 0;
  for (int gzip : {0, 4})
    for (rlim_t limit = 0; limit < size; limit += 700) {
      const std::string path = folder / ("cut-" + std::to_string(gzip) + "-" + std::to_string(limit) + ".h5");
      try {
        const FileSizeLimit full(limit);
        write_numbers(path, gzip);
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::runtime);
        CHECK_THAT(error.what(), Catch::Contains(path));
        ++refused;
        continue;
      }
      CHECK(read_numbers(path) == numbers);
    }
  CHECK(refused > 12);
  write_numbers(folder / "after.h5", 4);
  CHECK(read_numbers(folder / "after.h5") == numbers);
}

TEST_CASE("a checkpoint that does not fit leaves the one before", "[hdf5][checkpoint]") {
  const TemporaryFolder folder;
  const StateStore small = store_of(100), large = store_of(100000);
  save_checkpoint(folder.path(), 1, small, "{}", 1);
  {
    const FileSizeLimit full(100000);
    CHECK_THROWS_WITH(save_checkpoint(folder.path(), 2, large, "{}", 1), Catch::Contains("checkpoint-000000002.h5"));
  }
  REQUIRE(list_checkpoints(folder.path()).size() == 1);
  Checkpoint(list_checkpoints(folder.path())[0].path).restore(small);
  CHECK_FALSE(std::filesystem::exists(folder / "checkpoint-000000002.h5.tmp"));
}

TEST_CASE("files are read by several threads while another is written", "[hdf5]") {
  const TemporaryFolder folder;
  write_numbers(folder / "read.h5", 4);
  std::vector<int> wrong(3);
  std::vector<std::thread> readers;
  for (int& count : wrong)
    readers.emplace_back([&count, path = folder / "read.h5"] {
      for (int i = 0; i < 50; ++i) count += read_numbers(path) != numbers;
    });
  for (int i = 0; i < 50; ++i) write_numbers(folder / "written.h5", 4);
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == std::vector<int>{0, 0, 0});
  CHECK(read_numbers(folder / "written.h5") == numbers);
}

TEST_CASE("a file that another program writes is called locked, not damaged", "[hdf5][malformed]") {
  if (std::getenv("HDF5_USE_FILE_LOCKING")) return;  // the user decides
  const TemporaryFolder folder;
  const std::string path = folder / "written.h5";
  write_numbers(path, 0);
  const int writer = open(path.c_str(), O_RDONLY);
  REQUIRE(flock(writer, LOCK_EX | LOCK_NB) == 0);
  CHECK_THROWS_WITH(read_numbers(path), Catch::Contains("written.h5: cannot open: another process holds a lock on it"));
  close(writer);
  CHECK(read_numbers(path) == numbers);
}

TEST_CASE("text in place of numbers is called text", "[hdf5][malformed]") {
  const TemporaryFolder folder;
  const std::string path = folder / "text.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), type = H5Tcopy(H5T_C_S1);
  const hsize_t extents[] = {4};
  const hid_t space = H5Screate_simple(1, extents, nullptr),
              set = H5Dcreate2(file, "y", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  CHECK(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, "abcd") >= 0);
  H5Dclose(set), H5Sclose(space), H5Tclose(type), H5Fclose(file);
  const Hdf5File read(path, Hdf5File::Mode::read);
  std::vector<float> values(4);
  const char* expected = "text.h5: data set y: expected integers or floating point, found text";
  CHECK_THROWS_WITH(read.read("y", DType::f32, std::as_writable_bytes(std::span(values))), Catch::Contains(expected));
  CHECK_THROWS_WITH(read.dtype("y"), Catch::Contains(expected));
}

TEST_CASE("chunks that a damaged header makes larger than their data set are refused", "[hdf5][malformed]") {
  const TemporaryFolder folder;
  const std::string path = folder / "chunks.h5";
  const int64_t extents[] = {40, 30, 4};
  const int32_t chunk[] = {20, 15, 4};
  std::vector<float> values(40 * 30 * 4, 3.0f);
  {
    Hdf5File file(path, Hdf5File::Mode::create);
    file.write("field", DType::f32, extents, std::as_bytes(std::span(values)), std::vector<int64_t>{20, 15, 4}, 4);
    file.close();
  }
  const auto read = [&] {
    const Hdf5File file(path, Hdf5File::Mode::read);
    file.read("field", DType::f32, std::as_writable_bytes(std::span(values)));
  };
  read();
  const std::vector<std::byte> good = read_file(path);
  const auto layout = std::as_bytes(std::span(chunk));
  const auto found = std::search(good.begin(), good.end(), layout.begin(), layout.end());
  REQUIRE(found != good.end());
  for (size_t dimension = 0; dimension < 2; ++dimension) {
    std::vector<std::byte> bad = good;
    bad[static_cast<size_t>(found - good.begin()) + 4 * dimension + 1] = std::byte{0xff};
    write_file(path, bad);
    CHECK_THROWS_WITH(read(), Catch::Contains("chunks.h5: data set field: expected chunks within 40x30x4, found ") &&
                                  Catch::Contains(dimension == 0 ? "65300x15x4: damaged" : "20x65295x4: damaged"));
  }
}

TEST_CASE("texts of a fixed length, padded or not, and of any length are read", "[hdf5]") {
  const TemporaryFolder folder;
  const std::string path = folder / "text.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
  const auto write = [&](const char* name, size_t size, H5T_cset_t characters, const void* text) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, size), H5Tset_cset(type, characters);
    const hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(attribute, type, text) >= 0);
    H5Aclose(attribute), H5Tclose(type);
  };
  const char *text = "convoy-climate-1", *none = "";
  write("variable", H5T_VARIABLE, H5T_CSET_UTF8, &text);
  write("empty", H5T_VARIABLE, H5T_CSET_ASCII, &none);
  write("fixed", 16, H5T_CSET_ASCII, text);
  write("padded", 17, H5T_CSET_UTF8, text);
  H5Sclose(space), H5Fclose(file);
  const Hdf5File read(path, Hdf5File::Mode::read);
  for (const char* name : {"variable", "fixed", "padded"}) CHECK(read.read_text(name) == text);
  CHECK(read.read_text("empty") == "");
  CHECK_FALSE(read.read_text("other"));
}

TEST_CASE("products of extents do not overflow", "[hdf5]") {
  const int64_t half = int64_t{1} << 32;
  CHECK(checked_elements(std::vector<int64_t>{2, 3, 4}, 24) == 24);
  CHECK(checked_elements(std::vector<int64_t>{}, 1) == 1);
  CHECK(checked_elements(std::vector<int64_t>{5, 0}, 24) == 0);
  CHECK_FALSE(checked_elements(std::vector<int64_t>{2, 3, 5}, 24));
  CHECK_FALSE(checked_elements(std::vector<int64_t>{half, half}, INT64_MAX));
  CHECK_FALSE(checked_elements(std::vector<int64_t>{half, half, half, half}, INT64_MAX));
  CHECK_FALSE(checked_elements(std::vector<int64_t>{-1, -1}, 24));
}

TEST_CASE("values that do not fit the type asked for are an error", "[hdf5][malformed]") {
  const TemporaryFolder folder;
  const std::string path = folder / "wide.h5";
  const std::vector<int32_t> wide{1, 40000, -2, 7};
  const int64_t extents[] = {4};
  {
    Hdf5File file(path, Hdf5File::Mode::create);
    file.write("counts", DType::i32, extents, std::as_bytes(std::span(wide)));
    file.close();
  }
  const Hdf5File read(path, Hdf5File::Mode::read);
  std::vector<int16_t> values(4);
  CHECK_THROWS_WITH(read.read("counts", DType::i16, std::as_writable_bytes(std::span(values))),
                    Catch::Contains("wide.h5: data set counts holds a value beyond i16"));
  std::vector<float> floats(4);
  read.read("counts", DType::f32, std::as_writable_bytes(std::span(floats)));
  CHECK(floats == std::vector<float>{1, 40000, -2, 7});
}

namespace {

/// A box of numbers that count up, out of a data set of these extents.
template <typename T>
std::vector<T> box_of(const std::vector<int64_t>& extents, const std::vector<int64_t>& start,
                      const std::vector<int64_t>& count) {
  std::vector<T> values;
  for (int64_t i = 0; i < count[0]; ++i)
    for (int64_t j = 0; j < count[1]; ++j)
      for (int64_t k = 0; k < count[2]; ++k)
        values.push_back(static_cast<T>(((start[0] + i) * extents[1] + start[1] + j) * extents[2] + start[2] + k));
  return values;
}

}  // namespace

TEMPLATE_TEST_CASE("boxes of plain and compressed data sets hold their values", "[hdf5]", uint8_t, int16_t, float,
                   double) {
  constexpr DType type = sizeof(TestType) == 1   ? DType::u8
                         : sizeof(TestType) == 2 ? DType::i16
                         : sizeof(TestType) == 4 ? DType::f32
                                                 : DType::f64;
  const TemporaryFolder folder;
  const std::string path = folder / "boxes.h5";
  const std::vector<int64_t> extents{7, 9, 4}, none(3, 0);
  const std::vector<TestType> all = box_of<TestType>(extents, none, extents);
  {
    Hdf5File file(path, Hdf5File::Mode::create);
    const auto bytes = std::as_bytes(std::span(all));
    file.write("whole", type, extents, bytes);
    file.write("plain", type, extents, bytes, std::vector<int64_t>{3, 4, 4});
    file.write("packed", type, extents, bytes, std::vector<int64_t>{3, 4, 4}, 4);
    file.write("columns", type, extents, bytes, std::vector<int64_t>{2, 9, 1}, 1);
    file.close();
  }
  {  // as other programs write: deflate without shuffle, shuffle alone, a filter that only the library undoes
    const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hsize_t dims[] = {7, 9, 4}, chunk[] = {4, 4, 3};
    const hid_t held = type == DType::u8    ? H5T_NATIVE_UINT8
                       : type == DType::i16 ? H5T_NATIVE_INT16
                       : type == DType::f32 ? H5T_NATIVE_FLOAT
                                            : H5T_NATIVE_DOUBLE;
    for (const char* name : {"deflated", "shuffled", "summed"}) {
      const hid_t space = H5Screate_simple(3, dims, nullptr), properties = H5Pcreate(H5P_DATASET_CREATE);
      H5Pset_chunk(properties, 3, chunk);
      if (*name == 'd') H5Pset_deflate(properties, 6);
      if (std::string(name) == "shuffled") H5Pset_shuffle(properties);
      if (std::string(name) == "summed") H5Pset_fletcher32(properties), H5Pset_deflate(properties, 6);
      const hid_t set = H5Dcreate2(file, name, held, space, H5P_DEFAULT, properties, H5P_DEFAULT);
      CHECK(H5Dwrite(set, held, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()) >= 0);
      H5Dclose(set), H5Pclose(properties), H5Sclose(space);
    }
    H5Fclose(file);
  }
  const Hdf5File file(path, Hdf5File::Mode::read);
  for (const char* name : {"whole", "plain", "packed", "columns", "deflated", "shuffled", "summed"})
    for (const auto& [start, count] :
         std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>{{none, extents},
                                                                            {{0, 0, 1}, {7, 9, 2}},
                                                                            {{2, 0, 0}, {4, 9, 4}},
                                                                            {{6, 8, 3}, {1, 1, 1}},
                                                                            {{2, 3, 0}, {3, 5, 4}},
                                                                            {{1, 0, 0}, {0, 9, 4}}}) {
      const std::vector<TestType> expected = box_of<TestType>(extents, start, count);
      std::vector<TestType> values(expected.size());
      INFO(name);
      file.read(name, type, std::as_writable_bytes(std::span(values)), start, count);
      CHECK(values == expected);
    }
  std::vector<double> wide(all.size());  // a type of its own takes the library's way
  file.read("packed", DType::f64, std::as_writable_bytes(std::span(wide)));
  CHECK(std::equal(wide.begin(), wide.end(), all.begin(), [](double a, TestType b) { return a == double(b); }));
}

TEMPLATE_TEST_CASE("boxes hold their values however far apart they lie in the file", "[hdf5]", uint8_t, float) {
  constexpr DType type = sizeof(TestType) == 1 ? DType::u8 : DType::f32;
  struct Part {
    std::vector<int64_t> extents, chunk, start, count;
  };
  const Part part = GENERATE(Part{{3, 64, 1024}, {}, {0, 9, 100}, {3, 20, 200}},     // rows of one plane are close
                             Part{{2, 4, 70000}, {}, {0, 1, 50}, {2, 3, 60}},        // no two rows are
                             Part{{1, 3, 65636}, {}, {0, 0, 0}, {1, 3, 100}},        // bytes: just close enough
                             Part{{1, 3, 65637}, {}, {0, 0, 0}, {1, 3, 100}},        // and just not
                             Part{{1, 1500, 1000}, {}, {0, 0, 1}, {1, 1500, 998}},   // numbers: 6 MB that are close
                             Part{{1, 70000, 3}, {}, {0, 0, 1}, {1, 70000, 1}},      // many runs
                             Part{{2, 2, 1100000}, {}, {0, 0, 0}, {2, 2, 1099999}},  // numbers: runs of 4.4 MB
                             Part{{4, 64, 1024}, {2, 32, 512}, {1, 9, 100}, {3, 50, 800}});  // plain chunks
  const TemporaryFolder folder;
  const std::string path = folder / "far.h5";
  {
    const std::vector<TestType> all = box_of<TestType>(part.extents, {0, 0, 0}, part.extents);
    Hdf5File file(path, Hdf5File::Mode::create);
    file.write("field", type, part.extents, std::as_bytes(std::span(all)), part.chunk);
    file.close();
  }
  const Hdf5File file(path, Hdf5File::Mode::read);
  const std::vector<TestType> expected = box_of<TestType>(part.extents, part.start, part.count);
  std::vector<TestType> values(expected.size());
  file.read("field", type, std::as_writable_bytes(std::span(values)), part.start, part.count);
  INFO(extents_text(part.extents));
  CHECK((values == expected));  // too many to print
  // The file is cut behind the library, which knows its length from before.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  CHECK_THROWS_WITH(file.read("field", type, std::as_writable_bytes(std::span(values)), part.start, part.count),
                    Catch::Contains("far.h5: data set field: cannot read ") && Catch::Contains("bytes at ") &&
                        Catch::Contains(": the file is truncated"));
}

TEST_CASE("values behind links to other files and in virtual data sets are those of their files", "[hdf5]") {
  const TemporaryFolder folder;
  write_numbers(folder / "numbers.h5", 0);
  const std::string other = folder / "other.h5";
  {
    const hid_t file = H5Fcreate(other.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hsize_t many = 100000, count = numbers.size();
    // Where the linked values lie in their file, this one has others.
    const hid_t space = H5Screate_simple(1, &many, nullptr), rows = H5Screate_simple(1, &count, nullptr);
    const std::vector<float> padding(many, 7.0f);
    const hid_t set = H5Dcreate2(file, "padding", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, padding.data());
    H5Dclose(set);
    H5Lcreate_external("numbers.h5", "/group/numbers", file, "linked", H5P_DEFAULT, H5P_DEFAULT);
    for (const char* source : {"numbers.h5", "gone.h5"}) {
      const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
      H5Pset_virtual(properties, rows, source, "/group/numbers", rows);
      const std::string name = std::string("virtual-") + source;
      H5Dclose(H5Dcreate2(file, name.c_str(), H5T_NATIVE_FLOAT, rows, H5P_DEFAULT, properties, H5P_DEFAULT));
      H5Pclose(properties);
    }
    H5Sclose(space), H5Sclose(rows);
    H5Fclose(file);
  }
  const Hdf5File file(other, Hdf5File::Mode::read);
  std::vector<float> values(numbers.size());
  for (const char* name : {"linked", "virtual-numbers.h5"}) {
    INFO(name);
    std::fill(values.begin(), values.end(), -1.0f);
    file.read(name, DType::f32, std::as_writable_bytes(std::span(values)));
    CHECK(values == numbers);
  }
  CHECK_THROWS_WITH(file.read("virtual-gone.h5", DType::f32, std::as_writable_bytes(std::span(values))),
                    Catch::Contains("is virtual, expected data set /group/numbers of") && Catch::Contains("gone.h5"));
  if (std::getenv("HDF5_USE_FILE_LOCKING")) return;  // the user decides
  write_numbers(folder / "gone.h5", 0);
  const int writer = open((folder / "gone.h5").c_str(), O_RDONLY);
  REQUIRE(flock(writer, LOCK_EX | LOCK_NB) == 0);
  CHECK_THROWS_WITH(file.read("virtual-gone.h5", DType::f32, std::as_writable_bytes(std::span(values))),
                    Catch::Contains("gone.h5: cannot open: another process holds a lock on it"));
  close(writer);
}

TEST_CASE("only values of exactly one type are held in it", "[hdf5]") {
  const TemporaryFolder folder;
  const std::string path = folder / "types.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t extent = 4;
  const hid_t space = H5Screate_simple(1, &extent, nullptr);
  for (const auto& [name, type] :
       {std::pair("bytes", H5T_STD_U8LE), {"signed", H5T_STD_I8LE}, {"short", H5T_STD_I16LE}})
    H5Dclose(H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Sclose(space), H5Fclose(file);
  const Hdf5File read(path, Hdf5File::Mode::read);
  CHECK(read.holds("bytes", DType::u8));
  CHECK_FALSE(read.holds("signed", DType::u8));
  CHECK_FALSE(read.holds("short", DType::u8));
  CHECK(read.holds("short", DType::i16));
  CHECK_THROWS_WITH(read.holds("none", DType::u8), Catch::Contains("types.h5: expected data set none, found none"));
}

TEST_CASE("chunks that do not inflate are damaged, those of unknown filters are not", "[hdf5][malformed]") {
  const TemporaryFolder folder;
  write_numbers(folder / "good.h5", 4);
  const std::vector<std::byte> good = read_file(folder / "good.h5");
  const std::array<std::byte, 2> zlib{std::byte{0x78}, std::byte{0x5e}};  // a stream of level 4
  const auto chunk = std::search(good.begin(), good.end(), zlib.begin(), zlib.end());
  REQUIRE(chunk != good.end());
  std::vector<std::byte> bad = good;
  for (size_t i = 2; i < 20; ++i) bad[static_cast<size_t>(chunk - good.begin()) + i] = std::byte{0xff};
  write_file(folder / "bad.h5", bad);
  CHECK_THROWS_WITH(read_numbers(folder / "bad.h5"),
                    Catch::Contains("bad.h5: data set group/numbers: a chunk does not inflate"));

  const H5Z_class2_t other{H5Z_CLASS_T_VERS,
                           32000,
                           1,
                           1,
                           "lzf",
                           nullptr,
                           nullptr,
                           [](unsigned, size_t, const unsigned*, size_t bytes, size_t*, void**) { return bytes; }};
  REQUIRE(H5Zregister(&other) >= 0);
  const std::string path = folder / "lzf.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
              properties = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t count = 4, extent = 2;
  const hid_t space = H5Screate_simple(1, &count, nullptr);
  H5Pset_chunk(properties, 1, &extent), H5Pset_filter(properties, 32000, H5Z_FLAG_MANDATORY, 0, nullptr);
  const hid_t set = H5Dcreate2(file, "field", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  CHECK(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()) >= 0);
  H5Dclose(set), H5Sclose(space), H5Pclose(properties), H5Fclose(file);
  std::vector<float> values(4);
  const auto read = [&] {
    Hdf5File(path, Hdf5File::Mode::read).read("field", DType::f32, std::as_writable_bytes(std::span(values)));
  };
  read();
  CHECK(std::equal(values.begin(), values.end(), numbers.begin()));
  // Its number and the length of its name, as the header has them; the next number belongs to no filter here.
  const std::array<std::byte, 4> number{std::byte{0}, std::byte{0x7d}, std::byte{8}, std::byte{0}};
  std::vector<std::byte> foreign = read_file(path);
  const auto found = std::search(foreign.begin(), foreign.end(), number.begin(), number.end());
  REQUIRE(found != foreign.end());
  *found = std::byte{1};
  write_file(path, foreign);
  CHECK_THROWS_WITH(read(), Catch::Contains("lzf.h5: data set field: was written with filter 32001 (lzf)"));
}

TEST_CASE("chunks are read without an optional filter that they were left out of, and refused by its name else",
          "[hdf5][malformed]") {
  const TemporaryFolder folder;
  const std::string path = folder / "optional.h5";
  constexpr H5Z_filter_t number = 300;  // of those for tests, as the next one, which no plugin has
  {
    // Leaves chunks out that begin with 1, as LZF does with what it cannot shrink.
    const H5Z_class2_t turns{H5Z_CLASS_T_VERS,
                             number,
                             1,
                             1,
                             "turns",
                             nullptr,
                             nullptr,
                             [](unsigned, size_t, const unsigned*, size_t bytes, size_t*, void** data) {
                               auto* values = static_cast<float*>(*data);
                               if (*values == 1) return size_t{0};
                               for (size_t i = 0; i < bytes / sizeof(float); ++i) values[i] = -values[i];
                               return bytes;
                             }};
    REQUIRE(H5Zregister(&turns) >= 0);
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
                properties = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t extent = 6, chunk = 2;
    const float values[] = {1, 1234.5f, 3, 4, 1, 6};
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    H5Pset_chunk(properties, 1, &chunk), H5Pset_filter(properties, number, H5Z_FLAG_OPTIONAL, 0, nullptr);
    H5Pset_fletcher32(properties);
    const hid_t set = H5Dcreate2(file, "field", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    CHECK(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(set), H5Sclose(space), H5Pclose(properties), H5Fclose(file);
  }
  std::vector<std::byte> file = read_file(path);
  const std::array<std::byte, 4> header{std::byte{number & 0xff}, std::byte{number >> 8}, std::byte{8}, std::byte{0}};
  const auto held = std::search(file.begin(), file.end(), header.begin(), header.end());
  REQUIRE(held != file.end());
  *held = std::byte{(number + 1) & 0xff};
  write_file(path, file);
  const auto read = [&](int64_t first, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    Hdf5File(path, Hdf5File::Mode::read)
        .read("field", DType::f32, std::as_writable_bytes(std::span(values)), std::vector{first}, std::vector{count});
    return values;
  };
  CHECK(read(0, 2) == std::vector<float>{1, 1234.5f});
  CHECK(read(5, 1) == std::vector<float>{6});
  const auto lacking = Catch::Contains("optional.h5: data set field: was written with filter 301 (turns), which the ");
  CHECK_THROWS_WITH(read(0, 6), lacking);
  CHECK_THROWS_WITH(read(3, 1), lacking);
  // What is wrong with a chunk that was left out is not for want of the filter.
  const float marked = 1234.5f;
  const auto bytes = std::as_bytes(std::span(&marked, 1));
  const auto found = std::search(file.begin(), file.end(), bytes.begin(), bytes.end());
  REQUIRE(found != file.end());
  *found ^= std::byte{1};
  write_file(path, file);
  CHECK_THROWS_WITH(read(0, 2), Catch::Contains("optional.h5: data set field: cannot read, truncated or damaged"));
}

TEST_CASE("a checkpoint that cannot be deleted is one too many, and no error", "[checkpoint]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "checkpoint-000000001.h5/in the way");
  std::string undeleted;
  const std::string saved = save_checkpoint(folder.path(), 2, StateStore(), "{}", 1, &undeleted);
  CHECK(saved == folder / "checkpoint-000000002.h5");
  CHECK(std::filesystem::exists(saved));
  CHECK_THAT(undeleted, Catch::StartsWith(folder / "checkpoint-000000001.h5: cannot be deleted"));
}
