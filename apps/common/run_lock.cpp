#include "apps/common/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "apps/common/say.h"
#include "core/error.h"
#include "io/file.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto heartbeat = 10s;

/// What a signal handler can see of the lock that this process holds.
std::atomic<bool> held{false};
char held_path[PATH_MAX];
char made_path[PATH_MAX];  ///< the folder, where this process made it
int held_file = -1;

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

extern "C" void on_end(int number) {
  release_run_lock();
  std::signal(number, SIG_DFL);
  raise(number);
}

/// What the kernel says of a process: its state and when it began, in ticks since the machine did.
struct Process {
  char state = '?';
  unsigned long long start = 0;
};
std::optional<Process> find_process(long pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(in, text)) return std::nullopt;
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // names hold anything
  Process process;
  fields >> process.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> process.start;
  return process;
}

/// Names of the host and of the set of processes that can be seen, which containers of a host need not share.
std::string this_host() {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, sizeof name - 1);
  return name;
}
std::string this_namespace() {
  char name[64] = {};
  return readlink("/proc/self/ns/pid", name, sizeof name - 1) > 0 ? name : "unknown";
}

/// The content of a lock file: host, namespace, process, its start.
struct Holder {
  std::string host, space;
  long pid = 0;
  unsigned long long start = 0;
  std::string text() const {
    return fmt::format("host {}\nnamespace {}\nprocess {}\nstart {}\n", host, space, pid, start);
  }
  bool seen_from_here() const { return host == this_host() && space == this_namespace(); }
  bool alive() const {
    const auto process = find_process(pid);
    if (!process) return kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;  // /proc may hide other users'
    return process->state != 'Z' && process->state != 'X' && process->start == start;
  }
};

Holder this_process() {
  const long pid = getpid();
  return {this_host(), this_namespace(), pid, find_process(pid).value_or(Process{}).start};
}

std::string content_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Nothing where the text names nobody, as in the moment between being made and being written.
std::optional<Holder> parse_holder(const std::string& text) {
  std::istringstream in(text);
  std::string word;
  Holder h;
  if (in >> word >> h.host >> word >> h.space >> word >> h.pid >> word >> h.start) return h;
  return std::nullopt;
}

/// Time of the last change, read anew from a file server.
std::optional<timespec> last_touched(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat s {};
  const bool there = file >= 0 && fstat(file, &s) == 0;
  if (file >= 0) close(file);
  return there ? std::optional(s.st_mtim) : std::nullopt;
}

[[noreturn]] void refuse(const std::string& path, const Holder& h) {
  fail_usage(
      fmt::format("{}: process {} on host {} is writing to this folder: wait for its end, or choose another "
                  "--output-dir",
                  path, h.pid, h.host));
}

/// Returns when the holder, who cannot be seen from here, has not touched the file for so long; throws when it has.
void watch(const std::string& path, const Holder& h, std::chrono::milliseconds patience) {
  say(stderr, "{}: left by process {} on host {}: waiting {} s for a sign of life\n", path, h.pid, h.host,
      std::chrono::duration_cast<std::chrono::seconds>(patience).count());
  const auto first = last_touched(path);
  for (const auto end = Clock::now() + patience; Clock::now() < end;) {
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(500ms, patience / 4));
    const auto now = last_touched(path);
    if (!now || !first) return;
    if (now->tv_sec != first->tv_sec || now->tv_nsec != first->tv_nsec) refuse(path, h);
  }
}

/// Removes the lock of a process that is gone, unless another one is doing so, or has made a new lock meanwhile.
void remove_stale(const std::string& path, const std::string& content) {
  const std::string aside = fmt::format("{}.{}-{}", path, this_host(), getpid());
  if (std::rename(path.c_str(), aside.c_str()) != 0) return;
  // The lock of someone who was faster goes back to its place, where link() does not replace a third one's.
  if (content_of(aside) != content && link(aside.c_str(), path.c_str()) != 0 && errno != EEXIST)
    fail_runtime(path + ": cannot put the lock of another process back: " + std::strerror(errno));
  unlink(aside.c_str());
}

}  // namespace

void release_run_lock() {
  if (!held.exchange(false)) return;
  struct stat ours {};
  struct stat there {};
  if (fstat(held_file, &ours) == 0 && stat(held_path, &there) == 0 && same_file(ours, there)) unlink(held_path);
  if (made_path[0]) rmdir(made_path);  // which fails, as it should, where something is in it
}

RunLock::RunLock(const std::string& folder, std::chrono::milliseconds patience)
    : path_((fs::path(folder) / "run.lock").string()) {
  const bool made = make_folders(folder);
  // A relative path in a signal handler would be at the mercy of the working directory.
  const std::string absolute = fs::absolute(path_).string();
  if (absolute.size() >= sizeof held_path) fail_usage(path_ + ": the path is too long");
  acquire(patience);
  std::memcpy(held_path, absolute.c_str(), absolute.size() + 1);
  const size_t folder_size = made ? absolute.rfind('/') : 0;
  std::memcpy(made_path, absolute.c_str(), folder_size);
  made_path[folder_size] = '\0';
  held = true;
  for (const int number : {SIGINT, SIGHUP, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU}) {
    struct sigaction present {};
    if (sigaction(number, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) std::signal(number, on_end);
  }
  keep_alive();
}

void RunLock::acquire(std::chrono::milliseconds patience) {
  if (held) fail_usage(path_ + ": this process holds the lock of another folder");
  expect_replaceable(path_);  // a pipe would be waited for
  const Holder me = this_process();
  for (int nameless = 0;;) {
    held_file = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (held_file >= 0) break;
    if (errno != EEXIST) fail_runtime(path_ + ": cannot create: " + std::strerror(errno));
    if (access(path_.c_str(), R_OK) != 0 && errno != ENOENT)
      fail_runtime(path_ + ": cannot read: " + std::strerror(errno));
    const std::string content = content_of(path_);
    const auto holder = parse_holder(content);
    if (!holder && ++nameless <= 20) {  // being written, or just given back
      std::this_thread::sleep_for(50ms);
      continue;
    }
    if (holder && holder->seen_from_here()) {
      if (holder->alive()) refuse(path_, *holder);
    } else if (holder) {
      watch(path_, *holder, patience);
    }
    if (holder)
      say(stderr, "warning: {}: process {} on host {} is gone: taking its place\n", path_, holder->pid, holder->host);
    remove_stale(path_, content);
  }
  const std::string text = me.text();
  if (write(held_file, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const std::string reason = std::strerror(errno);
    unlink(path_.c_str());
    fail_runtime(path_ + ": cannot write: " + reason);
  }
}

/// Touches the file until the lock ends, from a thread that leaves signals to the others.
void RunLock::keep_alive() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  heart_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!ends_.wait_for(lock, heartbeat, [this] { return ending_; })) futimens(held_file, nullptr);
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_one();
  heart_.join();
  release_run_lock();
  close(held_file);
}

}  // namespace convoy::apps
