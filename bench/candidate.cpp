#include "bench/candidate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "bench/kernel_kind.h"
#include "bench/pixel_pairs.h"
#include "core/free_memory.h"
#include "core/median.h"
#include "core/passes/passes.h"

namespace convoy::bench {
namespace {

/// Random values in [-0.5, 0.5); large tensors repeat a block whose length is prime, so that filling takes no time.
void fill(const Problem& p, size_t index, const Tensor& t) {
  const PhiloxStream random(1, index);
  const OpDef& def = op_def(p.op.kind);
  if (def.special_input && def.special_input(p.op, int(index), p.in, t, random)) return;
  constexpr int64_t block = 65521;
  const int64_t elements = t.desc().span_bytes() / size_of(t.dtype()), first = std::min(elements, block);
  const Tensor head(TensorDesc(Shape::vector(first), t.dtype()), t.bytes());
  for (int64_t i = 0; i < first; ++i) head.set(0, 0, 0, 0, i, double(random.uniform(static_cast<uint64_t>(i))) - 0.5);
  for (int64_t i = first; i < elements; i += first)
    std::memcpy(t.bytes() + i * size_of(t.dtype()), t.bytes(),
                static_cast<size_t>(std::min(first, elements - i) * size_of(t.dtype())));
}

Device* device = nullptr;

std::shared_ptr<Buffer> host_memory(int64_t bytes) {
  if (const auto left = free_memory(); left && bytes > *left)
    fail_runtime("needs " + std::to_string(bytes >> 20) + " MiB more, " + std::to_string(*left >> 20) +
                 " MiB are free");
  return std::make_shared<Buffer>(bytes, Buffer::Fill::zero);
}
std::shared_ptr<Buffer> memory(int64_t bytes) {
  return device ? device->allocate(bytes) : host_memory(bytes);
}
Tensor host_zeros(const TensorDesc& desc) {
  return Tensor(desc, host_memory(desc.span_bytes()));
}
Tensor zeros(const TensorDesc& desc) {
  if (!device) return host_zeros(desc);
  const Tensor there(desc, memory(desc.span_bytes()));
  const Tensor here = host_zeros(desc);
  device->upload(there.bytes(), here.bytes(), desc.span_bytes());
  device->synchronize();
  return there;
}

std::vector<Tensor> filled_inputs(const Problem& p) {
  std::vector<Tensor> in;
  for (size_t i = 0; i < p.in.size(); ++i) {
    const Tensor here = host_zeros(p.in[i]);
    fill(p, i, here);
    in.push_back(here);
    if (!device) continue;
    in.back() = Tensor(p.in[i], memory(p.in[i].span_bytes()));
    device->upload(in.back().bytes(), here.bytes(), p.in[i].span_bytes());
    device->synchronize();
  }
  return in;
}

/// Relative to the root mean square of the right values; of bytes (arg-max) the share that differs.
bool agree(const Tensor& a, const Tensor& b) {
  const Tensor x = Tensor::zeros(a.desc()), y = Tensor::zeros(b.desc());
  device->download(x.bytes(), a.bytes(), a.desc().span_bytes());
  device->download(y.bytes(), b.bytes(), b.desc().span_bytes());
  device->synchronize();
  double difference = 0, size = 0;
  bool finite = true;
  dispatch_dtype(a.dtype(), [&](auto zero) {
    const PixelPairs<decltype(zero)> pairs(x, y);
    pairs.for_each(0, pairs.pixels(), [&](double found, double right) {
      finite = finite && std::isfinite(found);
      difference += a.dtype() == DType::u8 ? double(found != right) : (found - right) * (found - right);
      size += a.dtype() == DType::u8 ? 1 : right * right;
    });
  });
  if (a.dtype() == DType::u8) return difference <= 0.02 * size;
  const double bound = a.dtype() == DType::bf16 ? 1e-2 : a.dtype() == DType::f16 ? 2e-3 : 1e-4;
  return finite && std::sqrt(difference) <= bound * std::sqrt(size) + 1e-30;
}

/// Time of one call, on a device that of what it started there.
template <class F>
double seconds_of(F&& work) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  if (device) device->clear_marks(), device->mark();
  work();
  if (device) {
    device->mark(), device->synchronize();
    return device->seconds_after(0);
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void use_device(Device* wanted) {
  device = wanted;
}

void Candidate::add_stage(const std::vector<const Kernel*>& kernels, const Problem& p, std::vector<Tensor> in,
                          std::vector<Tensor> out) {
  Stage stage;
  for (const Kernel* kernel : kernels) {
    Way way;
    way.name = kernel->name();
    way.prepared = kernel->prepare(p);
    way.workspace = memory(way.prepared->workspace_bytes());
    for (const PackRequest& request : way.prepared->packed_weights()) {
      way.packs.push_back(memory(request.bytes));
      way.packed.push_back(way.packs.back()->data());
      way.requests.push_back(request);
    }
    stage.ways.push_back(std::move(way));
  }
  stage.in = std::move(in), stage.out = std::move(out);
  stages_.push_back(std::move(stage));
}

Candidate::Candidate(const Kernel& kernel, const Problem& p) : name_(kernel.name()) {
  std::vector<Tensor> in = filled_inputs(p);
  const auto updated = static_cast<size_t>(op_def(p.op.kind).updated_inputs);
  for (size_t i = 0; i < p.out.size(); ++i)
    results_.push_back(i + updated >= p.out.size() ? in[p.in.size() - (p.out.size() - i)] : zeros(p.out[i]));
  add_stage({&kernel}, p, std::move(in), results_);
  detail_ = stages_[0].ways[0].prepared->detail();
}

std::unique_ptr<Candidate> Candidate::of_definition(
    const Problem& p, const std::function<std::vector<const Kernel*>(const Problem&)>& choose) {
  std::unique_ptr<Candidate> c(new Candidate);
  // Dense, as its ops are: they would take the rows of a slice for their own.
  for (const TensorDesc& desc : p.out) c->results_.push_back(zeros(TensorDesc(desc.shape, desc.dtype)));
  bool runs = true;
  walk_definition(p, filled_inputs(p), c->results_, zeros,
                  [&](const Problem& q, const std::vector<Tensor>& in, const std::vector<Tensor>& out) {
                    const std::vector<const Kernel*> chosen = choose(q);
                    runs = runs && !chosen.empty();
                    if (runs) c->add_stage(chosen, q, in, out);
                  });
  if (!runs) return nullptr;
  c->keep_fastest_ways();
  for (const Stage& s : c->stages_) {
    const Way& way = s.ways[0];
    c->detail_ += (c->detail_.empty() ? "" : "+") + way.name;
    if (const std::string ran = way.prepared->detail(); !ran.empty()) c->detail_ += "(" + ran + ")";
  }
  return c;
}

std::unique_ptr<Candidate> Candidate::definition(const KernelList& list, const Problem& p) {
  if (!op_def(p.op.kind).lower) return nullptr;
  const std::string library = device ? "cudnn" : "onednn";
  bool used = false;
  auto c = of_definition(p, [&](const Problem& q) {
    std::vector<const Kernel*> of_library, others;
    for (const auto& kernel : list)
      if (kernel->supports(q).ok) {
        const bool layout = kernel->name() == library || kernel->name().starts_with(library + "_");
        (layout ? of_library : others).push_back(kernel.get());
      }
    used = used || !of_library.empty();
    others.resize(std::min<size_t>(1, others.size()));
    return of_library.empty() ? others : of_library;
  });
  if (!c || !used) return nullptr;
  c->name_ = library + "_definition";
  return c;
}

std::unique_ptr<Candidate> Candidate::plain(const KernelList& list, const Problem& p) {
  if (op_def(p.op.kind).updated_inputs > 0) return nullptr;
  return of_definition(p, [&](const Problem& q) {
    std::vector<const Kernel*> chosen;
    for (const auto& kernel : list)
      if (kernel->supports(q).ok) chosen = {kernel.get()};
    return chosen;
  });
}

bool Candidate::agrees_with(Candidate& other) {
  run(), other.run();
  for (size_t i = 0; i < results_.size(); ++i)
    if (!agree(results_[i], other.results_[i])) return false;
  return true;
}

void Candidate::run_stage(const Stage& stage, const Way& way) {
  for (size_t i = 0; i < way.requests.size(); ++i)
    way.requests[i].pack(stage.in[static_cast<size_t>(way.requests[i].input)], way.packed[i]);
  way.prepared->run({stage.in, stage.out, way.packed, way.workspace->data()});
}

void Candidate::keep_fastest_ways() {
  constexpr int repeats = 3;
  for (Stage& stage : stages_) {
    std::vector<double> times;
    for (const Way& way : stage.ways) {
      run_stage(stage, way);  // touches its memory, and writes what the next stage reads
      times.push_back(INFINITY);
      for (int i = 0; i < repeats && stage.ways.size() > 1; ++i)
        times.back() = std::min(times.back(), seconds_of([&] { run_stage(stage, way); }));
    }
    const auto best = std::min_element(times.begin(), times.end()) - times.begin();
    std::swap(stage.ways.front(), stage.ways[static_cast<size_t>(best)]);
    stage.ways.erase(stage.ways.begin() + 1, stage.ways.end());
  }
}

double Candidate::run() {
  return seconds_of([&] {
    for (const Stage& stage : stages_) run_stage(stage, stage.ways[0]);
  });
}

double Candidate::minimum() const {
  return *std::min_element(seconds.begin(), seconds.end());
}

double Candidate::median() const {
  return convoy::median(seconds);
}

namespace {

/// On a device the plain kernel is what the others are checked against.
bool trusted(const Candidate& c) {
  return c.checked || c.name() == "cuda_plain";
}

bool may_be_chosen(const Candidate& c) {
  return !c.wrong && !is_definition(c.name());
}

}  // namespace

const Candidate* fastest_kernel(const std::vector<std::unique_ptr<Candidate>>& candidates) {
  const Candidate* best = nullptr;
  for (const auto& c : candidates) {
    if (!may_be_chosen(*c)) continue;
    const bool better = !best || (trusted(*c) != trusted(*best) ? trusted(*c) : c->minimum() < best->minimum());
    if (better) best = c.get();
  }
  return best;
}

const Candidate* passed_over(const std::vector<std::unique_ptr<Candidate>>& candidates, const Candidate& chosen) {
  if (!trusted(chosen)) return nullptr;
  const Candidate* fastest = &chosen;
  for (const auto& c : candidates)
    if (!trusted(*c) && may_be_chosen(*c) && c->minimum() < fastest->minimum()) fastest = c.get();
  return fastest == &chosen ? nullptr : fastest;
}

}  // namespace convoy::bench
