#include "dist/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>

#include "core/round_up.h"

namespace convoy {
namespace {

/// How the others find the first member's memory.
struct Offer {
  int64_t process = 0, file = -1;
  uint64_t token = 0;  ///< written behind the bytes: in another container the same path may be another file
};

std::string path_of(const Offer& offer, SharedPlace place) {
  const std::string process = std::to_string(offer.process);
  if (place == SharedPlace::folder) return "/dev/shm/convoy-" + process + "-" + std::to_string(offer.token);
  return "/proc/" + process + "/fd/" + std::to_string(offer.file);
}

std::byte* map(int file, int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a refusal costs speed only
  return static_cast<std::byte*>(data);
}

/// Takes the pages now: later there would be nobody to tell that there are none. They are of the caller's NUMA domain.
bool reserve(int file, int64_t begin, int64_t bytes) {
  int code = 0;
  do code = bytes > 0 ? posix_fallocate(file, begin, bytes) : 0;
  while (code == EINTR);
  return code == 0;
}

}  // namespace

std::shared_ptr<Buffer> share_buffer(Communicator& members, int64_t bytes, SharedPlace place) {
  const int64_t rounded = round_up(bytes, page_bytes), mapped = rounded + page_bytes;
  const auto token_in = [&](std::byte* data) { return reinterpret_cast<uint64_t*>(data + rounded); };
  Offer offer;
  int file = -1;
  std::byte* data = nullptr;
  const auto refuse = [&] {
    if (data) munmap(data, static_cast<size_t>(mapped));
    data = nullptr;
  };
  if (members.rank() == 0) {
    std::random_device random;
    offer = {getpid(), -1, uint64_t{random()} << 32 | random()};
    file = place == SharedPlace::process
               ? memfd_create("convoy", MFD_CLOEXEC)
               : open(path_of(offer, place).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file >= 0 && ftruncate(file, mapped) == 0) data = map(file, mapped);
    if (data && !reserve(file, rounded, page_bytes)) refuse();
    if (data) *token_in(data) = offer.token, offer.file = file;
  }
  members.broadcast(std::as_writable_bytes(std::span(&offer, 1)), 0);
  if (members.rank() != 0 && offer.file >= 0) {
    // In another container the path may be any file, such as a terminal.
    file = open(path_of(offer, place).c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat status {};
    const bool fits = file >= 0 && fstat(file, &status) == 0 && status.st_size == mapped;
    if (fits) data = map(file, mapped);
    if (data && *token_in(data) != offer.token) refuse();
  }
  const int64_t part = round_up(ceil_div(rounded, members.size()), page_bytes),
                begin = std::min(rounded, members.rank() * part), end = std::min(rounded, begin + part);
  if (data && !reserve(file, begin, end - begin)) refuse();
  float failed = data ? 0 : 1;
  members.all_reduce_sum(std::span(&failed, 1));
  if (members.rank() == 0 && file >= 0 && place == SharedPlace::folder) unlink(path_of(offer, place).c_str());
  if (file >= 0) close(file);
  if (failed > 0) refuse();
  if (!data) return nullptr;
  return std::make_shared<Buffer>(data, bytes, [data, mapped] { munmap(data, static_cast<size_t>(mapped)); });
}

}  // namespace convoy
