#include "dist/shared_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string>

#include "core/round_up.h"

namespace convoy {
namespace {

/// How the others find the first member's memory: /proc/<process>/fd/<file>.
struct Offer {
  int64_t process = 0, file = -1;
  uint64_t token = 0;  ///< written behind the bytes: in another container the same path may be another file
};

constexpr int64_t page = 4096;

std::byte* map(int file, int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a refusal costs speed only
  return static_cast<std::byte*>(data);
}

/// Takes the pages now: later there would be nobody to tell that there are none.
bool reserve(int file, int64_t bytes) {
  int code;
  do code = posix_fallocate(file, 0, bytes);
  while (code == EINTR);
  return code == 0;
}

}  // namespace

std::shared_ptr<Buffer> share_buffer(Communicator& members, int64_t bytes) {
  const int64_t rounded = round_up(bytes, page), mapped = rounded + page;
  const auto token_in = [&](std::byte* data) { return reinterpret_cast<uint64_t*>(data + rounded); };
  Offer offer;
  int file = -1;
  std::byte* data = nullptr;
  if (members.rank() == 0) {
    file = memfd_create("convoy", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, mapped) == 0) data = map(file, mapped);
    if (data && !reserve(file, mapped)) munmap(data, static_cast<size_t>(mapped)), data = nullptr;
    std::random_device random;
    offer = {getpid(), file, uint64_t{random()} << 32 | random()};
    if (data) *token_in(data) = offer.token;
  }
  members.broadcast(std::as_writable_bytes(std::span(&offer, 1)), 0);
  if (members.rank() != 0 && offer.file >= 0) {
    const std::string path = "/proc/" + std::to_string(offer.process) + "/fd/" + std::to_string(offer.file);
    file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status {};
    const bool fits = file >= 0 && fstat(file, &status) == 0 && status.st_size == mapped;
    if (fits) data = map(file, mapped);
    if (data && *token_in(data) != offer.token) munmap(data, static_cast<size_t>(mapped)), data = nullptr;
  }
  float failed = data ? 0 : 1;
  members.all_reduce_sum(std::span(&failed, 1));
  if (file >= 0) close(file);
  const auto release = [data, mapped] { munmap(data, static_cast<size_t>(mapped)); };
  if (failed == 0) return std::make_shared<Buffer>(data, bytes, release);
  if (data) release();
  return nullptr;
}

}  // namespace convoy
