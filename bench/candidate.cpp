#include "bench/candidate.h"

#include <algorithm>
#include <chrono>
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

std::vector<Tensor> filled_inputs(const Problem& p) {
  std::vector<Tensor> in;
  for (size_t i = 0; i < p.in.size(); ++i) {
    in.push_back(Tensor::zeros(p.in[i]));
    fill(p, i, in.back());
  }
  return in;
}

}  // namespace

void Candidate::add_stage(const Kernel& kernel, const Problem& p, std::vector<Tensor> in, std::vector<Tensor> out) {
  Stage stage;
  stage.prepared = kernel.prepare(p);
  stage.workspace = std::make_unique<Buffer>(stage.prepared->workspace_bytes(), Buffer::Fill::zero);
  stage.in = std::move(in), stage.out = std::move(out);
  for (const PackRequest& request : stage.prepared->packed_weights()) {
    stage.packs.push_back(std::make_unique<Buffer>(request.bytes, Buffer::Fill::zero));
    stage.packed.push_back(stage.packs.back()->data());
    stage.requests.push_back(request);
  }
  stages_.push_back(std::move(stage));
}

Candidate::Candidate(const Kernel& kernel, const Problem& p) : name_(kernel.name()) {
  std::vector<Tensor> in = filled_inputs(p), out;
  const auto updated = static_cast<size_t>(op_def(p.op.kind).updated_inputs);
  for (size_t i = 0; i < p.out.size(); ++i)
    out.push_back(i + updated >= p.out.size() ? in[p.in.size() - (p.out.size() - i)] : Tensor::zeros(p.out[i]));
  add_stage(kernel, p, std::move(in), std::move(out));
  detail_ = stages_[0].prepared->detail();
}

std::unique_ptr<Candidate> Candidate::definition(const KernelList& list, const Problem& p) {
  if (!op_def(p.op.kind).lower) return nullptr;
  bool library = false;
  const auto [tape, in, out] = definition_of(p.op, p.in);
  std::unique_ptr<Candidate> c(new Candidate);
  c->name_ = "onednn_definition";
  std::vector<Tensor> values(tape.values().size());
  const std::vector<Tensor> inputs = filled_inputs(p);
  for (size_t i = 0; i < in.size(); ++i) values[static_cast<size_t>(in[i])] = inputs[i];
  for (const Node& node : tape.nodes()) {
    const Problem q{node.op, tape.descs(node.in), tape.descs(node.out), p.device, p.threads};
    const Kernel* chosen = nullptr;
    for (const auto& kernel : list)
      if (kernel->supports(q).ok && (!chosen || (kernel->name() == "onednn" && chosen->name() != "onednn")))
        chosen = kernel.get();
    if (!chosen) return nullptr;
    library = library || chosen->name() == "onednn";
    std::vector<Tensor> node_in, node_out;
    for (ValueId id : node.in) node_in.push_back(values[static_cast<size_t>(id)]);
    for (ValueId id : node.out) {
      values[static_cast<size_t>(id)] = Tensor::zeros(tape.desc(id));
      node_out.push_back(values[static_cast<size_t>(id)]);
    }
    c->add_stage(*chosen, q, std::move(node_in), std::move(node_out));
    c->detail_ += (c->detail_.empty() ? "" : "+") + std::string(chosen->name());
    if (const std::string ran = c->stages_.back().prepared->detail(); !ran.empty()) c->detail_ += "(" + ran + ")";
  }
  return library ? std::move(c) : nullptr;
}

double Candidate::run() {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (Stage& s : stages_) {
    for (size_t i = 0; i < s.requests.size(); ++i)
      s.requests[i].pack(s.in[static_cast<size_t>(s.requests[i].input)], s.packed[i]);
    s.prepared->run({s.in, s.out, s.packed, s.workspace->data()});
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
