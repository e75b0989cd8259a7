// Sums over CUDA devices of one node, by memory that processes show each other (CUDA inter-process communication):
// every rank adds up its slice of all ranks' values where they lie, then copies the slices of the others. Three events
// say when a rank's values are there, when its slice is summed, and when it has collected all; a counter in memory that
// the hosts share says that an event was recorded, since waiting for one that was not means nothing.
#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "kernels/device/cuda.h"
#include "kernels/device/device.h"
#include "kernels/device/peer_sums.h"

namespace convoy::cuda {
namespace peer_sums {
namespace {

constexpr int most_ranks = 64;

/// Where the ranks' values lie.
struct Sources {
  const float4* at[most_ranks];
};

/// to[i] = (from[0][i] + from[1][i] + ...) * scale for i of [begin, end); `to` is one of the sources.
__global__ void add_slice(const __grid_constant__ Sources from, int ranks, int64_t begin, int64_t end, float scale,
                          float4* to) {
  for (int64_t i = begin + int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < end;
       i += int64_t(gridDim.x) * blockDim.x) {
    float4 sum = from.at[0][i];
    for (int r = 1; r < ranks; ++r) {
      const float4 v = from.at[r][i];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    to[i] = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
  }
}

enum Stage : size_t { ready, summed, collected, stages };

/// What a rank tells the others of one sum. Offsets in arenas differ between ranks where kernels that each chose by
/// time (cuDNN's plans) take workspaces of their own size.
struct Offer {
  int64_t offset, elements;  ///< in its arena
  cudaIpcEventHandle_t events[stages];
};

class CudaPeerSums final : public PeerSums {
 public:
  CudaPeerSums(Communicator& node, std::shared_ptr<Buffer> arena, std::vector<PeerSum> sums,
               std::shared_ptr<Buffer> flags)
      : node_(node),
        arena_(std::move(arena)),
        self_(static_cast<size_t>(node.rank())),
        ranks_(static_cast<size_t>(node.size())),
        sums_(std::move(sums)),
        rounds_(sums_.size()),
        flags_(std::move(flags)),
        arenas_(ranks_),
        values_(sums_.size() * ranks_),
        events_(sums_.size() * ranks_ * stages) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  ~CudaPeerSums() override {
    if (!left_) new std::shared_ptr<Buffer>(arena_);  // others may read it still
    cudaStreamDestroy(stream_);
  }

  void leave() override {
    for (cudaStream_t stream : {stream_, cuda::stream()}) check(cudaStreamSynchronize(stream), "running the queue");
    // Using what its owner has destroyed or freed is undefined: all are through, then nobody holds what is another's.
    node_.barrier();
    for (size_t r = 0; r < ranks_; ++r)
      if (r != self_) close(r);
    node_.barrier();
    close(self_);
    left_ = true;
  }

  /// Empty where all ranks see the memory and the events of all others, else what failed on the first that does not.
  std::string meet() {
    std::string refusal;  // this rank's first
    const auto holds = [&](bool condition, const std::string& else_what) {
      if (!condition && refusal.empty()) refusal = else_what;
      return condition;
    };
    const auto works = [&](cudaError_t status, const std::string& what) {
      return holds(status == cudaSuccess, what + ": " + cudaGetErrorString(status));
    };
    struct {
      cudaIpcMemHandle_t memory;
      int shows;
    } mine{};
    mine.shows = holds(ranks_ <= most_ranks, "more than " + std::to_string(most_ranks) + " ranks") &&
                 works(cudaIpcGetMemHandle(&mine.memory, arena_->data()), "showing memory");
    std::vector<Offer> offers(sums_.size());
    for (size_t s = 0; s < sums_.size(); ++s) {
      offers[s].offset = sums_[s].values - arena_->data(), offers[s].elements = sums_[s].elements;
      for (size_t stage = 0; stage < stages; ++stage) {
        cudaEvent_t& event = events_[index(s, self_, stage)];
        mine.shows = mine.shows &&
                     works(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess),
                           "creating an event") &&
                     works(cudaIpcGetEventHandle(&offers[s].events[stage], event), "showing an event");
      }
    }
    auto all = std::vector<decltype(mine)>(ranks_);
    node_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    std::vector<Offer> theirs(ranks_ * sums_.size());
    node_.all_gather(std::as_bytes(std::span(offers)), std::as_writable_bytes(std::span(theirs)));
    bool sees = true;
    for (size_t r = 0; r < ranks_; ++r) {
      const std::string of_rank = " of rank " + std::to_string(r);
      if (r == self_)
        arenas_[r] = arena_->data();
      else
        sees = sees && all[r].shows &&
               works(cudaIpcOpenMemHandle(&arenas_[r], all[r].memory, cudaIpcMemLazyEnablePeerAccess),
                     "opening the memory" + of_rank);
      for (size_t s = 0; s < sums_.size() && sees; ++s) {
        const Offer& offer = theirs[r * sums_.size() + s];
        values_[s * ranks_ + r] = static_cast<std::byte*>(arenas_[r]) + offer.offset;
        if (r == self_) continue;
        sees = holds(offer.elements == offers[s].elements, "another number of elements in a sum" + of_rank);
        for (size_t stage = 0; stage < stages && sees; ++stage)
          sees = works(cudaIpcOpenEventHandle(&events_[index(s, r, stage)], offer.events[stage]),
                       "opening an event" + of_rank);
      }
    }
    cudaGetLastError();  // a refusal is an answer, not an error
    // A rank that shows nothing says why itself; those that miss it say nothing.
    using Text = std::array<char, 160>;
    Text own{};
    refusal.copy(own.data(), own.size() - 1);
    std::vector<Text> refusals(ranks_);
    node_.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(refusals)));
    for (size_t r = 0; r < ranks_; ++r) {
      if (refusals[r][0] == 0) continue;
      leave();
      return "rank " + std::to_string(r) + ": " + refusals[r].data();
    }
    return {};
  }

  void offer(size_t sum) override {
    ++rounds_[sum];
    tell(sum, ready, cuda::stream());
    check(cudaStreamWaitEvent(stream_, events_[index(sum, self_, ready)]), "waiting for values");
  }

  void queue(size_t sum) override {
    for (size_t r = 0; r < ranks_; ++r) wait(sum, r, ready, stream_);
    const PeerSum& s = sums_[sum];
    const Slice mine = slice(sum, self_);
    Sources from;
    for (size_t r = 0; r < ranks_; ++r) from.at[r] = reinterpret_cast<const float4*>(values_[sum * ranks_ + r]);
    if (mine.end > mine.begin)
      add_slice<<<grid_for(mine.end - mine.begin, 256), 256, 0, stream_>>>(
          from, int(ranks_), mine.begin, mine.end, float(s.scale), reinterpret_cast<float4*>(s.values));
    check_launch("adding up a slice");
    tell(sum, summed, stream_);
    for (size_t r = 0; r < ranks_; ++r) {
      if (r == self_) continue;
      wait(sum, r, summed, stream_);
      const Slice theirs = slice(sum, r);
      check(cudaMemcpyAsync(s.values + 16 * theirs.begin, values_[sum * ranks_ + r] + 16 * theirs.begin,
                            static_cast<size_t>(16 * (theirs.end - theirs.begin)), cudaMemcpyDeviceToDevice, stream_),
            "collecting a slice");
    }
    tell(sum, collected, stream_);
  }

  void await(size_t sum) override {
    check(cudaStreamWaitEvent(cuda::stream(), events_[index(sum, self_, collected)]), "waiting for a sum");
    for (size_t r = 0; r < ranks_; ++r) wait(sum, r, collected, cuda::stream());
  }

 private:
  /// What this rank has of that one's.
  void close(size_t rank) {
    for (size_t i = 0; i < events_.size(); ++i)
      if (i / stages % ranks_ == rank && events_[i]) cudaEventDestroy(std::exchange(events_[i], nullptr));
    if (rank != self_ && arenas_[rank]) cudaIpcCloseMemHandle(std::exchange(arenas_[rank], nullptr));
  }
  struct Slice {
    int64_t begin, end;  ///< in fours
  };
  Slice slice(size_t sum, size_t rank) const {
    const int64_t fours = sums_[sum].elements / 4, ranks = int64_t(ranks_);
    return {fours * int64_t(rank) / ranks, fours * int64_t(rank + 1) / ranks};
  }
  size_t index(size_t sum, size_t rank, size_t stage) const { return (sum * ranks_ + rank) * stages + stage; }
  std::atomic<int64_t>& flag(size_t sum, size_t rank, size_t stage) const {
    return *std::launder(reinterpret_cast<std::atomic<int64_t>*>(flags_->data()) + index(sum, rank, stage));
  }
  /// This rank has come so far on this stream.
  void tell(size_t sum, Stage stage, cudaStream_t on) {
    check(cudaEventRecord(events_[index(sum, self_, stage)], on), "recording an event");
    flag(sum, self_, stage).store(rounds_[sum], std::memory_order_release);
  }
  /// What is queued on this stream next waits for that of another rank.
  void wait(size_t sum, size_t rank, Stage stage, cudaStream_t on) {
    if (rank == self_) return;
    const auto told = [&] { return flag(sum, rank, stage).load(std::memory_order_acquire) >= rounds_[sum]; };
    if (!told())
      node_.wait_until(told, "sum " + std::to_string(sum) + " between devices, for rank " + std::to_string(rank));
    check(cudaStreamWaitEvent(on, events_[index(sum, rank, stage)]), "waiting for a rank");
  }

  Communicator& node_;
  std::shared_ptr<Buffer> arena_;
  size_t self_, ranks_;
  std::vector<PeerSum> sums_;
  std::vector<int64_t> rounds_;
  std::shared_ptr<Buffer> flags_;
  std::vector<void*> arenas_;
  std::vector<std::byte*> values_;  ///< of sum s on rank r at s * ranks_ + r, where this process sees them
  std::vector<cudaEvent_t> events_;
  cudaStream_t stream_ = nullptr;
  bool left_ = false;
};

std::string last_refusal;

}  // namespace
}  // namespace peer_sums

std::unique_ptr<PeerSums> make_peer_sums(Communicator& node, std::shared_ptr<Buffer> arena, std::vector<PeerSum> sums,
                                         std::shared_ptr<Buffer> flags) {
  using namespace peer_sums;
  auto made = std::make_unique<CudaPeerSums>(node, std::move(arena), std::move(sums), std::move(flags));
  last_refusal = made->meet();
  if (!last_refusal.empty()) return nullptr;
  return made;
}

}  // namespace convoy::cuda

const std::string& convoy::why_no_peer_sums() {
  return cuda::peer_sums::last_refusal;
}
