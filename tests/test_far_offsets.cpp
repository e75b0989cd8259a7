// Offsets beyond 2^31 elements: slices whose pixels lie gigabytes apart, in memory that is mapped but hardly touched.
#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels/simd/cpu.h"
#include "tests/catch.hpp"
#include "tests/kernel_bounds.h"
#include "tests/kernel_problems.h"
#include "tests/kernel_tiers.h"

using namespace convoy;
using namespace convoy::testing;

namespace {

constexpr int64_t pitch = int64_t{1} << 29;  // elements from pixel to pixel: the fifth lies beyond 2^31

/// Zeros that take memory only where they are written.
class FarMemory {
 public:
  explicit FarMemory(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~FarMemory() {
    if (data_) munmap(data_, bytes_);
  }
  FarMemory(FarMemory&& o) noexcept : bytes_(o.bytes_), data_(std::exchange(o.data_, nullptr)) {}
  FarMemory(const FarMemory&) = delete;
  FarMemory& operator=(const FarMemory&) = delete;
  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

/// Images of this size become slices of `pitch` channels.
const Shape pixels(1, 1, 2, 4, 16);

Problem far_of(Problem p) {
  for (auto* list : {&p.in, &p.out})
    for (TensorDesc& desc : *list)
      if (desc.shape == pixels) desc = strided(desc, pitch);
  return p;
}

std::vector<Problem> near_problems(DType type) {
  const TensorDesc x(pixels, type), square({16, 1, 3, 3, 16}, type), flat({16, 1, 1, 1, 16}, type),
      channels({16, 1, 3, 3, 1}, type), bias(Shape::vector(16), DType::f32);
  const ConvAttrs same{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}};
  ConvAttrs data = same, weights = same, grouped = same, activated = same;
  data.result_size = {1, 2, 4}, weights.result_size = {1, 3, 3}, grouped.groups = 16, activated.slope = 0.25;
  ConvAttrs grouped_weights = weights, grouped_data = data, flat_weights;
  grouped_weights.groups = grouped_data.groups = 16, flat_weights.result_size = {1, 1, 1};
  return {problem({OpKind::conv_forward, same}, {x, square}),
          problem({OpKind::conv_forward, ConvAttrs{}}, {x, flat}),
          problem({OpKind::conv_forward, grouped}, {x, channels}),
          problem({OpKind::conv_activation_forward, activated}, {x, square, bias}),
          problem({OpKind::conv_backward_data, data}, {x, square}),
          problem({OpKind::conv_backward_data, grouped_data}, {x, channels}),
          problem({OpKind::conv_backward_weights, weights}, {x, x}),
          problem({OpKind::conv_backward_weights, flat_weights}, {x, x}),
          problem({OpKind::conv_backward_weights, grouped_weights}, {x, x}),
          problem({OpKind::add, NoAttrs{}}, {x, x}),
          problem({OpKind::activation, ActivationAttrs{.slope = 0.25}}, {x}),
          problem({OpKind::channel_sum, NoAttrs{}}, {x}),
          problem({OpKind::channel_moments, NoAttrs{}}, {x}),
          problem({OpKind::max_pool, PoolAttrs{.kernel = {1, 2, 2}, .stride = {1, 2, 2}}}, {x})};
}

}  // namespace

TEST_CASE("kernels reach elements beyond 2^31", "[kernels]") {
  if (sanitized) {
    WARN("skipped: sanitizers shadow all of the memory");
    return;
  }
  try {  // as much as the widest problem takes
    const FarMemory x(pixels.rows() * pitch * 4), dy(pixels.rows() * pitch * 4), y(pixels.rows() * pitch * 4);
  } catch (const std::bad_alloc&) {
    WARN("skipped: there is no address space for three tensors of 16 GiB");
    return;
  }
  std::map<std::string, int> ran;  // by op
  for (DType type : {DType::f32, DType::bf16})
    for (const Problem& near : near_problems(type)) {
      const Problem far = far_of(near);
      REQUIRE(far.in[0].span_bytes() / size_of(type) > int64_t{1} << 31);
      Run wanted = make_run(near, Fill::integers, 3);
      execute(reference_for(near), near, wanted);
      for (const Kernel* kernel : kernels_under_test()) {
        if (!kernel->supports(far).ok) continue;
        INFO(kernel->name() << " " << far.text());
        std::vector<FarMemory> memory;
        std::vector<Tensor> in, out;
        for (const TensorDesc& desc : far.in) {
          memory.emplace_back(desc.span_bytes());
          in.emplace_back(desc, memory.back().data());
          in.back().copy_from(wanted.in[in.size() - 1]);
        }
        for (const TensorDesc& desc : far.out) {
          memory.emplace_back(desc.span_bytes());
          out.emplace_back(desc, memory.back().data());
        }
        execute_on(*kernel, far, in, out);
        for (size_t i = 0; i < out.size(); ++i) {
          const std::vector<double> found = values(out[i]), right = values(wanted.out[i]);
          double worst = 0;
          for (size_t k = 0; k < found.size(); ++k)  // Winograd's transforms, and means, round
            worst = worse(worst, std::abs(found[k] - right[k]) / std::max(1.0, std::abs(right[k])));
          CHECK(worst <= 0.01);
        }
        ++ran[std::string(op_def(far.op.kind).name)];
      }
    }
  if (!cpu_features().avx2 || only_some_kernels()) return;
  for (const char* op : {"conv_forward", "conv_backward_data", "conv_backward_weights", "conv_activation_forward",
                         "add", "activation", "channel_sum", "channel_moments"}) {
    INFO(op);
    CHECK(ran[op] > 2);
  }
}
