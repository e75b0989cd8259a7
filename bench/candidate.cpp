#include "bench/candidate.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/median.h"
#include "core/passes/passes.h"
#include "tests/kernel_check.h"

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
    c->detail_ += (c->detail_.empty() ? "" : "+") + std::string(chosen->name());
    c->add_stage(*chosen, q, std::move(node_in), std::move(node_out));
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

std::optional<Problem> reduced(const Problem& p) {
  if (p.op.kind != OpKind::conv_forward && p.op.kind != OpKind::conv_backward_data &&
      p.op.kind != OpKind::conv_backward_weights)
    return std::nullopt;
  ConvAttrs a = p.op.as<ConvAttrs>();
  const bool forward = p.op.kind == OpKind::conv_forward, weights = p.op.kind == OpKind::conv_backward_weights;
  const TensorDesc x = forward || weights ? p.in[0] : p.out[0], w = weights ? p.out[0] : p.in[1];
  Shape small = x.shape;
  small[0] = 1;
  for (int i = 1; i < 4; ++i) small[i] = std::min<int64_t>(small[i], 4);
  ConvAttrs plain = a;
  plain.result_size = {0, 0, 0};
  for (int i = 0; i < 3; ++i)  // the kernel must fit
    small[i + 1] = std::min(x.shape[i + 1], std::max(small[i + 1], a.dilation[i] * (w.shape[i + 1] - 1) + 1 -
                                                                       a.pad_low[i] - a.pad_high[i]));
  const std::vector<TensorDesc> in{TensorDesc(small, x.dtype), TensorDesc(w.shape, x.dtype)};
  const TensorDesc y = infer({OpKind::conv_forward, plain}, in)[0];
  Problem q = p;
  if (forward)
    q.in[0] = in[0], q.out[0] = y;
  else if (weights)
    q.in = {in[0], y};
  else
    a.result_size = {small[1], small[2], small[3]}, q.op.attrs = a, q.in[0] = y, q.out[0] = in[0];
  return q;
}

Check check(const KernelList& list, const Kernel& kernel, const Problem& p) {
  const auto small = reduced(p);
  if (!small || !kernel.supports(*small).ok) return Check::none;
  testing::Run ours = testing::make_run(*small, testing::Fill::integers, 3),
               expected = testing::make_run(*small, testing::Fill::integers, 3);
  testing::execute(kernel, *small, ours);
  for (const auto& reference : list)
    if (reference->name() == reference_name && reference->supports(*small).ok)
      testing::execute(*reference, *small, expected);
  // Winograd's transforms round; everything else is exact on small integers.
  const double tolerance = kernel.name().starts_with("winograd") ? 1e-3 : 0;
  bool equal = true;
  for (size_t i = 0; i < small->out.size(); ++i)
    for_each_index(small->out[i].shape, [&](auto... at) {
      const double value = expected.out[i].at(at...);
      equal = equal && std::abs(ours.out[i].at(at...) - value) <= tolerance * std::max(1.0, std::abs(value));
    });
  return equal ? Check::right : Check::wrong;
}

}  // namespace convoy::bench
