#include "apps/common/stage_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace convoy::apps {

StageLock::StageLock(const std::string& folder) : folder_(folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) fail_runtime(folder + ": cannot stage there: " + failed.message());
  const std::string path = (std::filesystem::path(folder) / ".convoy-stage.lock").string();
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) fail_runtime(path + ": cannot create: " + std::strerror(errno));
  read();
}

StageLock::~StageLock() {
  close(file_);
}

void StageLock::write() {
  lock(LOCK_EX, "files there would change while another run reads them");
}

void StageLock::read() {
  lock(LOCK_SH, "another run is copying files there");
}

void StageLock::lock(int kind, const char* trouble) {
  while (flock(file_, kind | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      fail_usage("--stage-dir " + folder_ + ": " + trouble +
                 ": wait for its end, or choose another folder (nodes that share one: {node} in its name)");
    if (errno != EINTR) return;  // no locks here
  }
}

}  // namespace convoy::apps
