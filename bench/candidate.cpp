#include "bench/candidate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

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

std::shared_ptr<Buffer> memory(int64_t bytes) {
  return device ? device->allocate(bytes) : std::make_shared<Buffer>(bytes, Buffer::Fill::zero);
}
Tensor zeros(const TensorDesc& desc) {
  if (!device) return Tensor::zeros(desc);
  const Tensor there(desc, memory(desc.span_bytes()));
  const Tensor here = Tensor::zeros(desc);
  device->upload(there.bytes(), here.bytes(), desc.span_bytes());
  device->synchronize();
  return there;
}

std::vector<Tensor> filled_inputs(const Problem& p) {
  std::vector<Tensor> in;
  for (size_t i = 0; i < p.in.size(); ++i) {
    const Tensor here = Tensor::zeros(p.in[i]);
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
  const int64_t bytes = a.desc().span_bytes();
  const Tensor x = Tensor::zeros(a.desc()), y = Tensor::zeros(b.desc());
  device->download(x.bytes(), a.bytes(), bytes), device->download(y.bytes(), b.bytes(), bytes);
  device->synchronize();
  double difference = 0, size = 0;
  bool finite = true;
  dispatch_dtype(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < bytes / size_of(a.dtype()); ++i) {
      const double found = to_double(x.data<T>()[i]), right = to_double(y.data<T>()[i]);
      finite = finite && std::isfinite(found);
      difference += a.dtype() == DType::u8 ? double(found != right) : (found - right) * (found - right);
      size += a.dtype() == DType::u8 ? 1 : right * right;
    }
  });
  if (a.dtype() == DType::u8) return difference <= 0.02 * size;
  const double bound = a.dtype() == DType::bf16 ? 1e-2 : a.dtype() == DType::f16 ? 2e-3 : 1e-4;
  return finite && std::sqrt(difference) <= bound * std::sqrt(size) + 1e-30;
}

}  // namespace

void use_device(Device* wanted) {
  device = wanted;
}

void Candidate::add_stage(const Kernel& kernel, const Problem& p, std::vector<Tensor> in, std::vector<Tensor> out) {
  Stage stage;
  stage.prepared = kernel.prepare(p);
  stage.workspace = memory(stage.prepared->workspace_bytes());
  stage.in = std::move(in), stage.out = std::move(out);
  for (const PackRequest& request : stage.prepared->packed_weights()) {
    stage.packs.push_back(memory(request.bytes));
    stage.packed.push_back(stage.packs.back()->data());
    stage.requests.push_back(request);
  }
  stages_.push_back(std::move(stage));
}

Candidate::Candidate(const Kernel& kernel, const Problem& p) : name_(kernel.name()) {
  std::vector<Tensor> in = filled_inputs(p);
  const auto updated = static_cast<size_t>(op_def(p.op.kind).updated_inputs);
  for (size_t i = 0; i < p.out.size(); ++i)
    results_.push_back(i + updated >= p.out.size() ? in[p.in.size() - (p.out.size() - i)] : zeros(p.out[i]));
  add_stage(kernel, p, std::move(in), results_);
  detail_ = stages_[0].prepared->detail();
}

std::unique_ptr<Candidate> Candidate::of_definition(const Problem& p,
                                                    const std::function<const Kernel*(const Problem&)>& choose) {
  const auto [tape, in, out] = definition_of(p.op, p.in);
  std::unique_ptr<Candidate> c(new Candidate);
  std::vector<Tensor> values(tape.values().size());
  const std::vector<Tensor> inputs = filled_inputs(p);
  for (size_t i = 0; i < in.size(); ++i) values[static_cast<size_t>(in[i])] = inputs[i];
  for (const Node& node : tape.nodes()) {
    const Problem q{node.op, tape.descs(node.in), tape.descs(node.out), p.device, p.threads};
    const Kernel* chosen = choose(q);
    if (!chosen) return nullptr;
    std::vector<Tensor> node_in, node_out;
    for (ValueId id : node.in) node_in.push_back(values[static_cast<size_t>(id)]);
    for (ValueId id : node.out) {
      values[static_cast<size_t>(id)] = zeros(tape.desc(id));
      node_out.push_back(values[static_cast<size_t>(id)]);
    }
    c->add_stage(*chosen, q, std::move(node_in), std::move(node_out));
    c->detail_ += (c->detail_.empty() ? "" : "+") + std::string(chosen->name());
    if (const std::string ran = c->stages_.back().prepared->detail(); !ran.empty()) c->detail_ += "(" + ran + ")";
  }
  for (ValueId id : out) c->results_.push_back(values[static_cast<size_t>(id)]);
  return c;
}

std::unique_ptr<Candidate> Candidate::definition(const KernelList& list, const Problem& p) {
  if (!op_def(p.op.kind).lower) return nullptr;
  const std::string_view library = device ? "cudnn" : "onednn";
  bool used = false;
  auto c = of_definition(p, [&](const Problem& q) {
    const Kernel* chosen = nullptr;
    for (const auto& kernel : list)
      if (kernel->supports(q).ok && (!chosen || (kernel->name() == library && chosen->name() != library)))
        chosen = kernel.get();
    used = used || (chosen && chosen->name() == library);
    return chosen;
  });
  if (!c || !used) return nullptr;
  c->name_ = std::string(library) + "_definition";
  return c;
}

std::unique_ptr<Candidate> Candidate::plain(const KernelList& list, const Problem& p) {
  if (op_def(p.op.kind).updated_inputs > 0) return nullptr;
  return of_definition(p, [&](const Problem& q) {
    const Kernel* chosen = nullptr;
    for (const auto& kernel : list)
      if (kernel->supports(q).ok) chosen = kernel.get();
    return chosen;
  });
}

bool Candidate::agrees_with(Candidate& other) {
  run(), other.run();
  for (size_t i = 0; i < results_.size(); ++i)
    if (!agree(results_[i], other.results_[i])) return false;
  return true;
}

double Candidate::run() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  if (device) device->clear_marks(), device->mark();
  for (Stage& s : stages_) {
    for (size_t i = 0; i < s.requests.size(); ++i)
      s.requests[i].pack(s.in[static_cast<size_t>(s.requests[i].input)], s.packed[i]);
    s.prepared->run({s.in, s.out, s.packed, s.workspace->data()});
  }
  if (device) {
    device->mark(), device->synchronize();
    return device->seconds_after(0);
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Candidate::minimum() const {
  return *std::min_element(seconds.begin(), seconds.end());
}

double Candidate::median() const {
  return convoy::median(seconds);
}

}  // namespace convoy::bench
