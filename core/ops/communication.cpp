// Averaging between ranks. Gradients travel in buckets: one vector that several gradients are parts of. The plan lets
// producers write into the bucket and readers read from it, so bucket and unbucket usually move nothing.
#include "core/ops/communication.h"

#include <array>

#include "core/ops/families.h"
#include "core/round_up.h"

namespace convoy {
namespace {

constexpr std::array<const char*, 4> kinds{"bucket", "loss", "stop", "batch-norm statistics "};

}  // namespace

std::vector<int64_t> bucket_offsets(std::span<const TensorDesc> parts) {
  std::vector<int64_t> offsets{0};
  for (const TensorDesc& part : parts) {
    const int64_t line = 64 / size_of(part.dtype);
    offsets.push_back(offsets.back() + round_up(part.shape.elements(), line));
  }
  return offsets;
}

int64_t all_reduce_id(Averaged what, int64_t number) {
  return int64_t(kinds.size()) * number + static_cast<int64_t>(what);
}

std::string all_reduce_name(int64_t id) {
  const auto number = id / int64_t(kinds.size()), kind = id % int64_t(kinds.size());
  const auto what = static_cast<Averaged>(kind);
  const bool many = what == Averaged::bucket || what == Averaged::statistics;
  return kinds.at(static_cast<size_t>(kind)) + (many ? std::to_string(number) : "");
}

AllReduce all_reduce(const Tensor& values, const AllReduceAttrs& a) {
  return {{values.bytes(), static_cast<size_t>(values.desc().bytes())},
          values.dtype(),
          a.wire,
          1.0 / double(a.ranks),
          all_reduce_name(a.id)};
}

namespace {

void check_reducible(const Op& op, const TensorDesc& desc) {
  if ((desc.dtype != DType::f32 && desc.dtype != DType::f64) || !desc.dense())
    fail_op(op, "expects dense f32 or f64 values, found " + desc.str());
}

std::vector<TensorDesc> infer_bucket(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, SIZE_MAX);
  check_same_float(op, in);
  for (const TensorDesc& desc : in) check_reducible(op, desc);
  return {TensorDesc(Shape::vector(bucket_offsets(in).back()), in[0].dtype)};
}

/// Inputs: the bucket, then values with the shapes of the parts.
std::vector<TensorDesc> infer_unbucket(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, SIZE_MAX);
  check_same_float(op, in);
  const int64_t expected = bucket_offsets(in.subspan(1)).back();
  if (in[0].shape.elements() != expected)
    fail_op(op, "the parts need a bucket of " + std::to_string(expected) + " elements, found " + in[0].str());
  return {in.begin() + 1, in.end()};
}

std::vector<TensorDesc> infer_reduce(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 1, 1);
  check_reducible(op, in[0]);
  const auto& a = op.as<AllReduceAttrs>();
  if (a.ranks < 1 || a.group < 0 || a.group > 1)
    fail_op(op, "expected 1 rank or more and group 0 or 1, found ranks " + std::to_string(a.ranks) + ", group " +
                    std::to_string(a.group));
  if (a.wire != in[0].dtype && (in[0].dtype != DType::f32 || (a.wire != DType::bf16 && a.wire != DType::f16)))
    fail_op(op, std::string(name_of(in[0].dtype)) + " values cannot travel as " + std::string(name_of(a.wire)));
  return {in[0]};
}

/// Inputs: the bucket, and the state that keeps it until the next step.
std::vector<TensorDesc> infer_later(const Op& op, std::span<const TensorDesc> in) {
  check_inputs(op, in, 2, 2);
  infer_reduce(op, in.first(1));
  if (!(in[0] == in[1])) fail_op(op, in[0].str() + " and " + in[1].str() + " differ");
  return {};
}

}  // namespace

std::vector<OpDef> communication_ops() {
  // The sums of an all-reduce are its communicator's, while other nodes run: these count no operations.
  return {{.kind = OpKind::bucket,
           .family = OpFamily::communication,
           .name = "bucket",
           .default_attrs = NoAttrs{},
           .infer = infer_bucket},
          {.kind = OpKind::unbucket,
           .family = OpFamily::communication,
           .name = "unbucket",
           .default_attrs = NoAttrs{},
           .infer = infer_unbucket},
          {.kind = OpKind::all_reduce_start,
           .family = OpFamily::communication,
           .name = "all_reduce_start",
           .default_attrs = AllReduceAttrs{},
           .infer = infer_reduce,
           .in_place_input = 0},
          {.kind = OpKind::all_reduce_wait,
           .family = OpFamily::communication,
           .name = "all_reduce_wait",
           .default_attrs = AllReduceAttrs{},
           .infer = infer_reduce,
           .in_place_input = 0},
          {.kind = OpKind::all_reduce_later,
           .family = OpFamily::communication,
           .name = "all_reduce_later",
           .default_attrs = AllReduceAttrs{},
           .infer = infer_later,
           .updated_inputs = 1}};
}

}  // namespace convoy
