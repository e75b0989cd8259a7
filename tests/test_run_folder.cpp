// Who may write to the folder of a run, what it goes on from, and whether its samples are those of before.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "apps/common/checkpoints.h"
#include "apps/common/fingerprint.h"
#include "apps/common/run_lock.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "tests/catch.hpp"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;
using namespace std::chrono_literals;

namespace {

const std::string foreign = "host elsewhere\nnamespace pid:[1]\nprocess 77\nstart 5\n";
const std::string meta = R"({"identity":{},"epoch":0,"step_in_epoch":0,"step":0,"epoch_loss":0,"history":[]})";

void save(const std::string& folder, int64_t step, const std::string& text = meta) {
  save_checkpoint(folder, step, StateStore(), text, 100);
}

}  // namespace

TEST_CASE("a run's lock is there while the run is, and its folder only if something was written", "[apps]") {
  const testing::TemporaryFolder folder;
  const std::string used = folder.path() + "/used", unused = folder.path() + "/unused";
  {
    const RunLock lock(used);
    CHECK(std::filesystem::exists(used + "/run.lock"));
    write_text(used + "/result", "1");
  }
  CHECK(std::filesystem::exists(used + "/result"));
  CHECK_FALSE(std::filesystem::exists(used + "/run.lock"));
  { const RunLock lock(unused); }
  CHECK_FALSE(std::filesystem::exists(unused));
}

TEST_CASE("signals that end a process give its lock back", "[apps]") {
  for (const int number : {SIGINT, SIGHUP, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU}) {
    const testing::TemporaryFolder folder;
    const pid_t child = fork();
    if (child == 0) {
      std::signal(number, SIG_DFL);  // Catch has handlers of its own
      const RunLock lock(folder.path());
      raise(number);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == number));
    CHECK_FALSE(std::filesystem::exists(folder.path() + "/run.lock"));
  }
}

TEST_CASE("the lock of another host holds as long as it is touched", "[apps]") {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/run.lock";
  write_text(path, foreign);
  std::atomic<bool> done{false};
  std::thread holder([&] {
    while (!done) utimensat(AT_FDCWD, path.c_str(), nullptr, 0), std::this_thread::sleep_for(10ms);
  });
  CHECK_THROWS_WITH(RunLock(folder.path(), 10s), Catch::Contains("run.lock: process 77 on host elsewhere is writing"));
  done = true;
  holder.join();
  CHECK_NOTHROW(RunLock(folder.path(), 200ms));
}

TEST_CASE("a lock that names nobody is taken over", "[apps]") {
  const testing::TemporaryFolder folder;
  for (const char* text : {"", "host\n", "something else"}) {
    write_text(folder.path() + "/run.lock", text);
    CHECK_NOTHROW(RunLock(folder.path()));
  }
}

TEST_CASE("damaged checkpoints are skipped, unreadable ones are not", "[apps]") {
  if (!has_hdf5()) return;
  const testing::TemporaryFolder folder;
  const std::string& f = folder.path();
  CHECK(newest_checkpoint(f) == nullptr);
  for (int64_t step : {1, 2, 3}) save(f, step);
  const std::string third = f + "/checkpoint-000000003.h5", second = f + "/checkpoint-000000002.h5";
  CHECK(newest_checkpoint(f)->path() == third);
  const int file = open(third.c_str(), O_RDONLY);
  REQUIRE(flock(file, LOCK_EX) == 0);
  CHECK_THROWS_WITH(newest_checkpoint(f), Catch::Contains("000000003.h5: cannot open: another process holds a lock"));
  close(file);
  std::filesystem::resize_file(third, 100);
  CHECK(newest_checkpoint(f)->path() == second);
  save(f, 4, "5");  // whole, but none of a trainer's
  CHECK(newest_checkpoint(f)->path() == second);
  std::filesystem::remove(second);
  std::filesystem::create_symlink("/proc/self/mem", second);  // whose first bytes the kernel does not give
  CHECK_THROWS_WITH(newest_checkpoint(f), Catch::Contains("000000002.h5: cannot read: Input/output error"));
  std::filesystem::remove(second);
  std::filesystem::resize_file(f + "/checkpoint-000000001.h5", 100);
  CHECK_THROWS_WITH(newest_checkpoint(f), Catch::Contains("no checkpoint is intact") && Catch::Contains("000000003") &&
                                              Catch::Contains("000000004.h5: expected a JSON object") &&
                                              Catch::Contains("000000001"));
}

TEST_CASE("damaged and unfinished checkpoints make room for saves", "[apps]") {
  if (!has_hdf5()) return;
  const testing::TemporaryFolder folder;
  const std::string& f = folder.path();
  save(f, 100), save(f, 150);
  std::filesystem::resize_file(f + "/checkpoint-000000150.h5", 100);
  write_text(f + "/checkpoint-000000160.h5.tmp", "killed");
  std::vector<std::string> damaged;
  CHECK(newest_checkpoint(f, &damaged)->path() == f + "/checkpoint-000000100.h5");
  REQUIRE(damaged == std::vector{f + "/checkpoint-000000150.h5"});
  set_aside(damaged), remove_unfinished(f);
  CHECK(std::filesystem::exists(f + "/checkpoint-000000150.h5.damaged"));
  CHECK_FALSE(std::filesystem::exists(f + "/checkpoint-000000160.h5.tmp"));
  // Ahead of a validation two are kept: if the newer one is taken back, the intact one is still there.
  save_checkpoint(f, 200, StateStore(), meta, 2);
  std::filesystem::remove(f + "/checkpoint-000000200.h5");
  CHECK(newest_checkpoint(f)->path() == f + "/checkpoint-000000100.h5");
}

TEST_CASE("a data set is known by its names and by most of its contents", "[apps]") {
  const testing::TemporaryFolder folder;
  std::vector<std::string> paths;
  for (int i = 0; i < 100; ++i) {
    paths.push_back(folder.path() + "/sample-" + std::to_string(100 + i));
    write_text(paths.back(), std::string(10000, static_cast<char>('a' + i % 20)));
  }
  const auto before = fingerprint(paths);
  CHECK(before.at("files").size() == 64);
  CHECK_NOTHROW(expect_same_samples(before, fingerprint(paths), "here"));
  CHECK_NOTHROW(expect_same_samples(nullptr, before, "here"));  // of an older version
  CHECK(fingerprint({""}).is_null());
  write_text(paths[0], "repaired");
  CHECK_NOTHROW(expect_same_samples(before, fingerprint(paths), "here"));
  for (const std::string& path : paths) write_text(path, std::string(10000, 'z'));  // of the same size
  CHECK_THROWS_WITH(
      expect_same_samples(before, fingerprint(paths), "here"),
      "here: trained on other samples: 64 of 64 files have other contents than before, the first sample-100");
  auto fewer = paths;
  fewer.pop_back();
  CHECK_THROWS_WITH(expect_same_samples(before, fingerprint(fewer), "here"),
                    Catch::Contains("expected 100 with names of digest"));
}
