#include "dist/mpi_transport.h"

#include <algorithm>
#include <utility>

namespace convoy {

MpiTransport::MpiTransport(Watchdog& watchdog, MPI_Comm comm, std::vector<int> nodes, Areas areas)
    : watchdog_(watchdog), comm_(comm), nodes_(std::move(nodes)), areas_(std::move(areas)) {
  const std::lock_guard lock(watchdog_.mutex());
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  nodes_.resize(static_cast<size_t>(size_));
  if (!areas_.memory) return;
  const auto here = std::count(nodes_.begin(), nodes_.end(), nodes_[static_cast<size_t>(rank_)]);
  for (int64_t i = 0; i < here; ++i) area_of_.push_back(areas_.memory->data() + i * areas_.bytes);
}

MpiTransport::~MpiTransport() {
  int over = 0;
  MPI_Finalized(&over);
  if (over) return;
  const std::lock_guard lock(watchdog_.mutex());
  MPI_Comm_free(&comm_);
}

int MpiTransport::keep(int code, MPI_Request request) {
  if (code != MPI_SUCCESS) error_ = code;
  if (free_.empty()) {
    requests_.push_back(request);
    return static_cast<int>(requests_.size()) - 1;
  }
  const int place = free_.back();
  free_.pop_back();
  requests_[static_cast<size_t>(place)] = request;
  return place;
}

int MpiTransport::send(int peer, int tag, std::span<const std::byte> data) {
  const std::lock_guard lock(watchdog_.mutex());
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, peer, tag, comm_, &request);
  return keep(code, request);
}

int MpiTransport::receive(int peer, int tag, std::span<std::byte> data) {
  const std::lock_guard lock(watchdog_.mutex());
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, peer, tag, comm_, &request);
  return keep(code, request);
}

int MpiTransport::start_native(std::span<std::byte> data, DType type) {
  const std::lock_guard lock(watchdog_.mutex());
  MPI_Request request = MPI_REQUEST_NULL;
  const int code =
      MPI_Iallreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size() / static_cast<size_t>(size_of(type))),
                     type == DType::f64 ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, comm_, &request);
  return keep(code, request);
}

bool MpiTransport::done(int message) {
  int through = 0;
  {
    const std::lock_guard lock(watchdog_.mutex());
    if (const int code = MPI_Test(&requests_[static_cast<size_t>(message)], &through, MPI_STATUS_IGNORE);
        code != MPI_SUCCESS)
      error_ = code;
    if (through) free_.push_back(message);
  }
  if (error_ != MPI_SUCCESS) watchdog_.failed(error_);
  return through != 0;
}

}  // namespace convoy
