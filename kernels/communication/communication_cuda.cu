// Buckets of gradients on CUDA devices, and the device's side of all-reduces, which is none: the executor takes their
// values to the host and back.
#include "core/ops/communication.h"
#include "kernels/communication/messages.h"
#include "kernels/device/early.h"

namespace convoy {
namespace communication_cuda {
namespace {

using namespace cuda;

/// Ends of parts that are shorter than a cache line; so many to a launch.
constexpr int most_gaps = 128;
struct Gaps {
  std::byte* begin[most_gaps];
  int bytes[most_gaps];
};

__global__ void clear(const __grid_constant__ Gaps gaps) {
  await_kernel_ahead();
  const int i = int(threadIdx.x), bytes = gaps.bytes[blockIdx.x];
  if (i < bytes) gaps.begin[blockIdx.x][i] = std::byte{0};
}

void copy_if_elsewhere(const Tensor& from, std::byte* to) {
  if (from.bytes() == to) return;
  check(cudaMemcpyAsync(to, from.bytes(), static_cast<size_t>(from.desc().bytes()), cudaMemcpyDeviceToDevice, stream()),
        "copying");
}

std::unique_ptr<Prepared> bucket(const Problem& p) {
  return prepared([offsets = bucket_offsets(p.in)](const KernelArgs& args) {
    const int64_t size = size_of(args.out[0].dtype());
    Gaps gaps;
    int count = 0;
    const auto clear_gaps = [&] {
      if (count > 0) launch_early(clear, dim3(static_cast<unsigned>(count)), dim3(64), 0, gaps);
      count = 0;
    };
    for (size_t i = 0; i < args.in.size(); ++i) {
      std::byte* part = args.out[0].bytes() + offsets[i] * size;
      copy_if_elsewhere(args.in[i], part);
      const int64_t bytes = args.in[i].desc().bytes(), gap = (offsets[i + 1] - offsets[i]) * size - bytes;
      if (gap == 0) continue;
      gaps.begin[count] = part + bytes, gaps.bytes[count++] = int(gap);
      if (count == most_gaps) clear_gaps();
    }
    clear_gaps();
  });
}

std::unique_ptr<Prepared> unbucket(const Problem& p) {
  return prepared([offsets = bucket_offsets(std::span(p.in).subspan(1))](const KernelArgs& args) {
    const int64_t size = size_of(args.in[0].dtype());
    for (size_t i = 0; i < args.out.size(); ++i)
      copy_if_elsewhere(Tensor(args.out[i].desc(), args.in[0].bytes() + offsets[i] * size), args.out[i].bytes());
  });
}

std::unique_ptr<Prepared> pass_on(const Problem&) {
  return prepared([](const KernelArgs& args) { copy_if_elsewhere(args.in[0], args.out[0].bytes()); });
}

}  // namespace
}  // namespace communication_cuda

std::vector<KernelPtr> communication_cuda_kernels() {
  using namespace communication_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::bucket, bytes_in_a_row, bucket));
  list.push_back(kernel("cuda", OpKind::unbucket, bytes_in_a_row, unbucket));
  list.push_back(kernel("communicator", OpKind::all_reduce_start, bytes_in_a_row, pass_on));
  list.push_back(kernel("communicator", OpKind::all_reduce_wait, bytes_in_a_row, pass_on));
  return list;
}

}  // namespace convoy
