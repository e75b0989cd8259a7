#include "apps/common/checkpoints.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace convoy::apps {
namespace {

/// HDF5 locks what it opens unless this variable forbids it.
bool hdf5_locks() {
  const char* wish = std::getenv("HDF5_USE_FILE_LOCKING");
  return !wish || (std::string_view(wish) != "FALSE" && std::string_view(wish) != "0");
}

/// Throws Error(data) where the system keeps the file's bytes back, which HDF5 does not tell from damage.
void expect_readable(const std::string& path) {
  struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) close(fd);
    }
  } const file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail_data(path + ": cannot open: " + std::strerror(errno));
  if (hdf5_locks() && flock(file.fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail_data(path + ": cannot open: another process holds a lock on it");
  std::vector<char> block(size_t{1} << 20);
  ssize_t got = 1;
  while (got > 0) got = read(file.fd, block.data(), block.size());
  if (got < 0) fail_data(path + ": cannot read: " + std::strerror(errno));
}

/// Throws Error(data) naming what is wrong with the file's contents.
std::shared_ptr<const Checkpoint> read_checkpoint(const std::string& path) {
  auto checkpoint = std::make_shared<const Checkpoint>(path);
  const auto meta = nlohmann::json::parse(checkpoint->meta(), nullptr, false);
  if (!meta.is_object()) fail_data(path + ": expected a JSON object beside the states, found something else");
  for (const char* key : {"identity", "epoch", "step_in_epoch", "step", "epoch_loss", "history"})
    if (!meta.contains(key)) fail_data(path + ": expected " + key + " beside the states, found none");
  return checkpoint;
}

}  // namespace

std::shared_ptr<const Checkpoint> newest_checkpoint(const std::string& folder) {
  std::string reasons;
  for (const CheckpointFile& file : list_checkpoints(folder)) {
    expect_readable(file.path);
    try {
      return read_checkpoint(file.path);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      fmt::print(stderr, "warning: skipping a damaged checkpoint: {}\n", error.what());
      reasons += (reasons.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  if (!reasons.empty()) fail_data(fmt::format("{}: no checkpoint is intact: {}", folder, reasons));
  return nullptr;
}

}  // namespace convoy::apps
