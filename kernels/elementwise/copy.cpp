// Channel copies: one memcpy per row of channels. Bound by memory; most of these nodes disappear in the slice pass.
#include <cstring>

#include "core/parallel.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace {

Support any(const Problem&) {
  return Support::yes();
}

/// f(n, d, h, w) for all pixels.
template <class F>
void for_rows(const Shape& s, int threads, F&& f) {
  parallel_ranges(s.rows(), threads, 64, [&](Range range) {
    for (int64_t row = range.begin; row < range.end; ++row)
      f(row / (s.w() * s.h() * s.d()), row / (s.w() * s.h()) % s.d(), row / s.w() % s.h(), row % s.w());
  });
}

/// Rows of `from`, copied to channel `to_channel` of `to` starting at channel `from_channel`.
void copy_rows(const Tensor& from, int64_t from_channel, const Tensor& to, int64_t to_channel, int64_t channels,
               int threads) {
  const int64_t size = size_of(from.dtype());
  for_rows(from.shape(), threads, [&](int64_t n, int64_t d, int64_t h, int64_t w) {
    std::memcpy(to.bytes() + (to.desc().offset(n, d, h, w) + to_channel) * size,
                from.bytes() + (from.desc().offset(n, d, h, w) + from_channel) * size,
                static_cast<size_t>(channels * size));
  });
}

std::unique_ptr<Prepared> concat(const Problem& p) {
  return std::make_unique<PreparedFunction>([threads = p.threads](const KernelArgs& args) {
    int64_t begin = 0;
    for (const Tensor& in : args.in) {
      copy_rows(in, 0, args.out[0], begin, in.shape().c(), threads);
      begin += in.shape().c();
    }
  });
}

std::unique_ptr<Prepared> slice(const Problem& p) {
  return std::make_unique<PreparedFunction>([a = p.op.as<SliceAttrs>(), threads = p.threads](const KernelArgs& args) {
    copy_rows(args.in[0], a.begin, args.out[0], 0, a.size, threads);
  });
}

std::unique_ptr<Prepared> pad_channels(const Problem& p) {
  return std::make_unique<PreparedFunction>([a = p.op.as<SliceAttrs>(), threads = p.threads](const KernelArgs& args) {
    const Tensor &from = args.in[0], &to = args.out[0];
    const int64_t size = size_of(from.dtype()), begin = a.begin * size, copied = from.shape().c() * size,
                  all = to.shape().c() * size;
    for_rows(from.shape(), threads, [&](int64_t n, int64_t d, int64_t h, int64_t w) {
      std::byte* row = to.bytes() + to.desc().offset(n, d, h, w) * size;
      std::memset(row, 0, static_cast<size_t>(begin));
      std::memcpy(row + begin, from.bytes() + from.desc().offset(n, d, h, w) * size, static_cast<size_t>(copied));
      std::memset(row + begin + copied, 0, static_cast<size_t>(all - begin - copied));
    });
  });
}

}  // namespace

std::vector<KernelPtr> copy_kernels() {
  std::vector<KernelPtr> list;
  list.push_back(std::make_unique<FunctionKernel>("copy", OpKind::concat, any, concat));
  list.push_back(std::make_unique<FunctionKernel>("copy", OpKind::slice, any, slice));
  list.push_back(std::make_unique<FunctionKernel>("copy", OpKind::pad_channels, any, pad_channels));
  return list;
}

}  // namespace convoy
