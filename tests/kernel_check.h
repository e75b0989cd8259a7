// One loop for every kernel: runs a problem through a kernel and through the reference under poisoned, guarded memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <numbers>
#include <utility>
#include <vector>

#include "core/kernel.h"
#include "core/philox.h"

namespace convoy::testing {

/// Memory that ends at an unmapped page: one byte too far is a crash, not a silent read. Maps are kept for what needs
/// as much or down to half as much, then with whole pages in front out of reach: thousands of runs would spend more on
/// page faults than on kernels. What is left of a page in front is watched. Not for several threads at once.
class GuardedBytes {
 public:
  explicit GuardedBytes(int64_t bytes, int64_t element = 1) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    length_ = (static_cast<size_t>(bytes) + page - 1) / page * page + page;
    if (const auto kept = unused_.lower_bound(length_); kept != unused_.end() && kept->first <= 2 * length_) {
      length_ = kept->first, base_ = kept->second;
      kept_bytes_ -= length_;
      unused_.erase(kept);
    } else {
      base_ =
          static_cast<std::byte*>(mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      mprotect(base_ + length_ - page, page, PROT_NONE);
    }
    data_ = base_ + length_ - page - (bytes + element - 1) / element * element;
    front_ = static_cast<size_t>(data_ - base_) / page * page;
    if (front_ > 0) mprotect(base_, front_, PROT_NONE);
    std::fill(base_ + front_, data_, watched);
  }
  /// Whether nothing was written in front.
  bool front_untouched() const {
    return std::all_of(base_ + front_, data_, [](std::byte b) { return b == watched; });
  }
  ~GuardedBytes() {
    if (!base_) return;
    if (front_ > 0) mprotect(base_, front_, PROT_READ | PROT_WRITE);
    constexpr size_t most_kept = size_t{512} << 20;  // bytes
    unused_.emplace(length_, base_);
    kept_bytes_ += length_;
    if (kept_bytes_ <= most_kept) return;
    const auto largest = std::prev(unused_.end());
    munmap(largest->second, largest->first);
    kept_bytes_ -= largest->first;
    unused_.erase(largest);
  }
  GuardedBytes(GuardedBytes&& o) noexcept : base_(o.base_), data_(o.data_), length_(o.length_), front_(o.front_) {
    o.base_ = nullptr;
  }
  GuardedBytes& operator=(GuardedBytes&& o) noexcept {
    std::swap(base_, o.base_), std::swap(data_, o.data_), std::swap(length_, o.length_), std::swap(front_, o.front_);
    return *this;
  }
  GuardedBytes(const GuardedBytes&) = delete;
  std::byte* data() const { return data_; }

 private:
  static constexpr std::byte watched{0x5a};
  static inline std::multimap<size_t, std::byte*> unused_;  // by length
  static inline size_t kept_bytes_ = 0;
  std::byte *base_ = nullptr, *data_ = nullptr;
  size_t length_ = 0, front_ = 0;
};

/// Calls f(element, value) for all elements in memory order, widened.
template <class F>
void for_each_value(const Tensor& t, F&& f) {
  const Shape& s = t.shape();
  dispatch_dtype(t.dtype(), [&](auto zero) {
    size_t element = 0;
    for_each_index({s.n(), s.d(), s.h(), s.w(), 1}, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t) {
      const auto* pixel = reinterpret_cast<const decltype(zero)*>(t.bytes()) + t.desc().offset(n, d, h, w);
      for (int64_t c = 0; c < s.c(); ++c) f(element++, to_double(pixel[c]));
    });
  });
}
/// The same as a list.
inline std::vector<double> values(const Tensor& t) {
  std::vector<double> all(static_cast<size_t>(t.shape().elements()));
  for_each_value(t, [&](size_t i, double v) { all[i] = v; });
  return all;
}

/// Whether the bytes between the elements of a slice, filled with 0xff by allocate_run, are still that: the channels
/// there belong to other tensors.
inline bool gaps_untouched(const Tensor& t) {
  if (t.desc().dense()) return true;
  std::vector<bool> own(static_cast<size_t>(t.desc().span_bytes()));
  const auto width = static_cast<size_t>(size_of(t.dtype()));
  const Shape& s = t.shape();
  for_each_index({s.n(), s.d(), s.h(), s.w(), 1}, [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t) {
    const size_t at = static_cast<size_t>(t.desc().offset(n, d, h, w)) * width;
    std::fill_n(own.begin() + static_cast<std::ptrdiff_t>(at), static_cast<size_t>(s.c()) * width, true);
  });
  for (size_t i = 0; i < own.size(); ++i)
    if (!own[i] && t.bytes()[i] != std::byte{0xff}) return false;
  return true;
}

/// How inputs are filled where the op has no wish of its own.
enum class Fill { integers, normal };

inline void fill_input(const Problem& p, int index, const Tensor& t, Fill fill, uint64_t seed) {
  const PhiloxStream random(seed, static_cast<uint64_t>(index) + 1);
  const OpDef& def = op_def(p.op.kind);
  if (def.special_input && def.special_input(p.op, index, p.in, t, random)) return;
  uint64_t i = 0;
  PhiloxBlock block{};
  const auto draw = [&]() -> double {
    if (fill == Fill::integers) {
      // Small and sparse, so that every partial sum is exact in f32 whatever the order. A block lasts for 32 of them.
      if (i % 32 == 0) block = random.block(i / 32);
      const uint32_t r = block[i / 8 % 4] >> (i % 8 * 4) & 7;
      return r < 2 ? 1 : r == 2 ? -1 : r == 3 ? 2 : 0;
    }
    // The sum of four uniform numbers, scaled to variance one. A block lasts for two.
    if (i % 2 == 0) block = random.block(i / 2);
    const uint32_t a = block[i % 2 * 2], b = block[i % 2 * 2 + 1];
    const double sum = double((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) + 2;  // of middles of intervals
    return (sum * 0x1p-16 - 2) * std::numbers::sqrt3;
  };
  dispatch_dtype(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    auto* data = reinterpret_cast<T*>(t.bytes());
    for_each_index(t.shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
      data[t.desc().offset(n, d, h, w) + c] = from_double<T>(draw());
      ++i;
    });
  });
}

/// The problem of an op on two threads; updated states are outputs too.
inline Problem problem(const Op& op, std::vector<TensorDesc> in) {
  Problem p{op, std::move(in), {}, DeviceKind::cpu, 2};
  p.out = infer(op, p.in);
  for (size_t i = p.in.size() - static_cast<size_t>(op_def(op.kind).updated_inputs); i < p.in.size(); ++i)
    p.out.push_back(p.in[i]);
  return p;
}

/// Inputs and outputs of one run in guarded memory.
struct Run {
  std::vector<GuardedBytes> memory;
  std::vector<Tensor> in, out;
};

/// Zero inputs, NaN bytes between those of slices, and outputs of NaN bytes; updated states are both, so they start
/// alike in every run.
inline Run allocate_run(const Problem& p) {
  Run run;
  const size_t updated = static_cast<size_t>(op_def(p.op.kind).updated_inputs);
  const auto tensor = [&](const TensorDesc& desc, int byte) {
    run.memory.emplace_back(desc.span_bytes(), size_of(desc.dtype));
    std::memset(run.memory.back().data(), byte, static_cast<size_t>(desc.span_bytes()));
    return Tensor(desc, run.memory.back().data());
  };
  for (const TensorDesc& desc : p.in) run.in.push_back(tensor(desc, desc.dense() ? 0 : 0xff));
  for (size_t i = 0; i + updated < p.out.size(); ++i) run.out.push_back(tensor(p.out[i], 0xff));
  for (size_t i = p.in.size() - updated; i < p.in.size(); ++i) run.out.push_back(run.in[i]);
  return run;
}

inline Run make_run(const Problem& p, Fill fill, uint64_t seed) {
  Run run = allocate_run(p);
  for (size_t i = 0; i < p.in.size(); ++i) fill_input(p, static_cast<int>(i), run.in[i], fill, seed);
  return run;
}

/// Runs of one problem on the same inputs, which are drawn once: drawing takes longer than most kernels.
class Inputs {
 public:
  Run fresh(const Problem& p, Fill fill, uint64_t seed) {
    const auto [drawn, first] = drawn_.try_emplace({fill, seed});
    Run run = first ? make_run(p, fill, seed) : allocate_run(p);
    for (size_t i = 0; i < p.in.size(); ++i) {
      const auto bytes = static_cast<size_t>(p.in[i].span_bytes());
      std::byte* memory = run.in[i].bytes();
      if (first)
        drawn->second.emplace_back(memory, memory + bytes);
      else
        std::copy_n(drawn->second[i].data(), bytes, memory);
    }
    return run;
  }

 private:
  std::map<std::pair<Fill, uint64_t>, std::vector<std::vector<std::byte>>> drawn_;
};

/// Prepares and runs; weights are packed as the plan would, workspace is poisoned and guarded.
inline void execute_on(const Kernel& kernel, const Problem& p, std::span<const Tensor> in,
                       std::span<const Tensor> out) {
  const auto prepared = kernel.prepare(p);
  GuardedBytes workspace(prepared->workspace_bytes(), 64);
  std::memset(workspace.data(), 0xff, static_cast<size_t>(prepared->workspace_bytes()));
  std::vector<GuardedBytes> packs;
  std::vector<std::byte*> packed;
  for (const PackRequest& request : prepared->packed_weights()) {
    packs.emplace_back(request.bytes, 64);
    std::memset(packs.back().data(), 0xff, static_cast<size_t>(request.bytes));
    request.pack(in[static_cast<size_t>(request.input)], packs.back().data());
    packed.push_back(packs.back().data());
  }
  prepared->run({in, out, packed, workspace.data()});
  const auto untouched = [](const GuardedBytes& memory) { return memory.front_untouched(); };
  if (!untouched(workspace) || !std::all_of(packs.begin(), packs.end(), untouched))
    throw std::runtime_error("wrote in front of its workspace or of packed weights");
}
inline void execute(const Kernel& kernel, const Problem& p, Run& run) {
  const size_t inputs = p.in.size() - static_cast<size_t>(op_def(p.op.kind).updated_inputs);
  // Their beginnings: copies of what is larger would take longer than kernels.
  constexpr int64_t most = 1 << 16;
  std::vector<std::vector<std::byte>> before;
  for (size_t i = 0; i < inputs; ++i)
    before.emplace_back(run.in[i].bytes(), run.in[i].bytes() + std::min(most, p.in[i].span_bytes()));
  execute_on(kernel, p, run.in, run.out);
  for (size_t i = 0; i < inputs; ++i)
    if (std::memcmp(before[i].data(), run.in[i].bytes(), before[i].size()) != 0)
      throw std::runtime_error("wrote into input " + std::to_string(i));
  for (const GuardedBytes& memory : run.memory)
    if (!memory.front_untouched()) throw std::runtime_error("wrote in front of a tensor");
}

/// The same problem with every floating-point type replaced by f64.
inline Problem in_double(const Problem& p) {
  Problem d = p;
  for (auto* list : {&d.in, &d.out})
    for (TensorDesc& desc : *list)
      if (is_float(desc.dtype)) desc = TensorDesc(desc.shape, DType::f64);
  // The finite flag of an update is f32 whatever the parameters are.
  if (d.op.kind == OpKind::sgd_update || d.op.kind == OpKind::adam_update || d.op.kind == OpKind::lamb_update)
    d.in[3] = p.in[3];
  if (auto* cast = std::get_if<CastAttrs>(&d.op.attrs); cast && is_float(cast->to)) cast->to = DType::f64;
  return d;
}

/// Copies values between runs of different types.
inline void copy_inputs(const Run& from, Run& to) {
  for (size_t i = 0; i < from.in.size(); ++i)
    if (to.in[i].dtype() == DType::f64 && to.in[i].desc().dense())
      std::ranges::copy(values(from.in[i]), to.in[i].data<double>());
    else
      to.in[i].copy_from(from.in[i]);
}

}  // namespace convoy::testing
