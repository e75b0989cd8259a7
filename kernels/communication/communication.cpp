// Buckets and all-reduces. A bucket whose parts were written in place costs nothing; the all-reduces hand a buffer to
// the communicator and fetch it back. Without ranks a mean is the value itself.
#include <cstring>

#include "core/ops/communication.h"
#include "kernels/communication/messages.h"

namespace convoy {

Support bytes_in_a_row(const Problem& p) {
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& d : *list)
      if (!d.dense()) return Support::no("needs dense tensors, found " + d.str());
  return Support::yes();
}

namespace {

void copy_if_elsewhere(const std::byte* from, std::byte* to, int64_t bytes) {
  if (from != to) std::memcpy(to, from, static_cast<size_t>(bytes));
}

std::unique_ptr<Prepared> bucket(const Problem& p) {
  return std::make_unique<PreparedFunction>([offsets = bucket_offsets(p.in)](const KernelArgs& args) {
    const int64_t size = size_of(args.out[0].dtype());
    for (size_t i = 0; i < args.in.size(); ++i) {
      std::byte* part = args.out[0].bytes() + offsets[i] * size;
      const int64_t bytes = args.in[i].desc().bytes();
      copy_if_elsewhere(args.in[i].bytes(), part, bytes);
      // Gaps between parts travel too: they must be numbers.
      std::memset(part + bytes, 0, static_cast<size_t>((offsets[i + 1] - offsets[i]) * size - bytes));
    }
  });
}

std::unique_ptr<Prepared> unbucket(const Problem& p) {
  return std::make_unique<PreparedFunction>(
      [offsets = bucket_offsets(std::span(p.in).subspan(1))](const KernelArgs& args) {
        const int64_t size = size_of(args.in[0].dtype());
        for (size_t i = 0; i < args.out.size(); ++i)
          copy_if_elsewhere(args.in[0].bytes() + offsets[i] * size, args.out[i].bytes(), args.out[i].desc().bytes());
      });
}

std::unique_ptr<Prepared> start(const Problem& p) {
  return std::make_unique<PreparedFunction>([a = p.op.as<AllReduceAttrs>()](const KernelArgs& args) {
    copy_if_elsewhere(args.in[0].bytes(), args.out[0].bytes(), args.in[0].desc().bytes());
    if (!args.groups.empty()) args.groups[static_cast<size_t>(a.group)]->start(a.id, all_reduce(args.out[0], a));
  });
}

std::unique_ptr<Prepared> wait(const Problem& p) {
  return std::make_unique<PreparedFunction>([a = p.op.as<AllReduceAttrs>()](const KernelArgs& args) {
    if (!args.groups.empty()) args.groups[static_cast<size_t>(a.group)]->wait(a.id);
    copy_if_elsewhere(args.in[0].bytes(), args.out[0].bytes(), args.in[0].desc().bytes());
  });
}

}  // namespace

std::vector<KernelPtr> communication_kernels() {
  std::vector<KernelPtr> list;
  const auto add = [&](OpKind kind, auto prepare) {
    list.push_back(std::make_unique<FunctionKernel>("communicator", kind, bytes_in_a_row, prepare));
  };
  add(OpKind::bucket, bucket);
  add(OpKind::unbucket, unbucket);
  add(OpKind::all_reduce_start, start);
  add(OpKind::all_reduce_wait, wait);
  add(OpKind::all_reduce_later, start);  // its one output is the state
  return list;
}

}  // namespace convoy
