// Narrow types where only f32 kernels exist: inputs are cast into the workspace, the f32 kernel runs, the output is
// cast back. The rate is the f32 kernel's; the casts add one read and one write of each operand. Kernels for AVX2 stand
// ahead of it and take every such problem, so it runs where AVX2 is missing, or where --kernel or a tuned table asks.

#include <algorithm>

#include "core/round_up.h"
#include "core/select.h"
#include "kernels/function_kernel.h"
#include "kernels/kernel_list.h"

namespace convoy {
namespace {

bool narrow(DType t) {
  return t == DType::bf16 || t == DType::f16;
}

TensorDesc wide(const TensorDesc& d) {
  return narrow(d.dtype) ? TensorDesc(d.shape, DType::f32) : d;
}

Problem wide_problem(const Problem& p) {
  Problem w = p;
  for (TensorDesc& d : w.in) d = wide(d);
  for (TensorDesc& d : w.out) d = wide(d);
  return w;
}

/// Without Winograd's kernels: those read and write narrow types themselves, and a run may have turned them off.
const Kernel& best(const Problem& p) {
  Selection selection;
  selection.excluded = {"winograd"};
  return *choose_kernel(kernel_list(), p, "widened", selection).kernel;
}

class Widened final : public Prepared {
 public:
  explicit Widened(const Problem& p) {
    const Problem wider = wide_problem(p);
    const Kernel& kernel = best(wider);
    inner_ = kernel.prepare(wider);
    detail_ = "f32 " + std::string(kernel.name()) + " " + inner_->detail();
    for (const PackRequest& request : inner_->packed_weights()) add_pack(p, request);
    for (size_t i = 0; i < p.in.size(); ++i)
      in_.push_back(is_packed(i) ? Side{wider.in[i], nullptr} : side(p.in[i], wider.in[i], p.threads));
    for (const TensorDesc& d : p.out) out_.push_back(side(wide(d), d, p.threads));
    inner_at_ = size_;
    size_ += round_up(inner_->workspace_bytes(), 64);
  }
  int64_t workspace_bytes() const override { return size_; }
  std::vector<PackRequest> packed_weights() const override { return packs_; }
  std::string detail() const override { return detail_; }

  void run(const KernelArgs& args) const override {
    std::vector<Tensor> in, out;
    for (size_t i = 0; i < in_.size(); ++i) {
      if (is_packed(i)) {
        in.emplace_back(in_[i].wide, nullptr);  // the packed form is read in its place
        continue;
      }
      in.push_back(in_[i].cast ? Tensor(in_[i].wide, args.workspace + in_[i].at) : args.in[i]);
      if (in_[i].cast) in_[i].cast->run({{&args.in[i], 1}, {&in.back(), 1}, {}, args.workspace + in_[i].scratch});
    }
    for (size_t i = 0; i < out_.size(); ++i)
      out.push_back(out_[i].cast ? Tensor(out_[i].wide, args.workspace + out_[i].at) : args.out[i]);
    inner_->run({in, out, args.packed, args.workspace + inner_at_});
    for (size_t i = 0; i < out_.size(); ++i)
      if (out_[i].cast) out_[i].cast->run({{&out[i], 1}, {&args.out[i], 1}, {}, args.workspace + out_[i].scratch});
  }

 private:
  struct Side {
    TensorDesc wide;
    std::shared_ptr<const Prepared> cast;  ///< empty where the type is wide already
    int64_t at = 0, scratch = 0;
  };

  bool is_packed(size_t input) const {
    return std::find(packed_inputs_.begin(), packed_inputs_.end(), int(input)) != packed_inputs_.end();
  }

  static std::shared_ptr<const Prepared> make_cast(const TensorDesc& from, const TensorDesc& to, int threads) {
    const Problem cast{{OpKind::cast, CastAttrs{to.dtype}}, {from}, {to}, DeviceKind::cpu, threads};
    return best(cast).prepare(cast);
  }

  Side side(const TensorDesc& from, const TensorDesc& to, int threads) {
    Side s{wide(from), nullptr, size_, 0};
    if (from == to) return s;
    s.cast = make_cast(from, to, threads);
    size_ += round_up(s.wide.bytes(), 64);
    s.scratch = size_;
    size_ += round_up(s.cast->workspace_bytes(), 64);
    return s;
  }

  /// A packed narrow weight: widened first, once per update, in the Pack node.
  void add_pack(const Problem& p, const PackRequest& request) {
    PackRequest outer = request;
    const TensorDesc from = p.in.at(size_t(request.input)), to = wide(from);
    packed_inputs_.push_back(request.input);
    outer.form = "widened " + request.form;
    outer.pack = [cast = make_cast(from, to, p.threads), to, inner = request.pack](const Tensor& weight,
                                                                                   std::byte* packed) {
      const Tensor wide_weight = Tensor::zeros(to);
      cast->run({{&weight, 1}, {&wide_weight, 1}, {}, nullptr});
      inner(wide_weight, packed);
    };
    packs_.push_back(std::move(outer));
  }

  std::unique_ptr<Prepared> inner_;
  std::vector<Side> in_, out_;
  std::vector<int> packed_inputs_;
  std::vector<PackRequest> packs_;
  int64_t size_ = 0, inner_at_ = 0;
  std::string detail_;
};

Support supports(const Problem& p) {
  if (!narrow(p.in[0].dtype)) return Support::no("widens bf16 and f16, found " + p.in[0].str());
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& d : *list)
      if (!d.dense()) return Support::no("needs dense tensors, found " + d.str());
  if (best(wide_problem(p)).name() == reference_name) return Support::no("no f32 kernel but the reference");
  return Support::yes();
}

}  // namespace

std::vector<KernelPtr> widened_kernels() {
  std::vector<KernelPtr> list;
  for (OpKind kind : {OpKind::conv_forward, OpKind::conv_backward_data, OpKind::conv_backward_weights,
                      OpKind::dense_forward, OpKind::dense_backward_data, OpKind::dense_backward_weights})
    list.push_back(std::make_unique<FunctionKernel>(
        "widened", kind, supports,
        [](const Problem& p) -> std::unique_ptr<Prepared> { return std::make_unique<Widened>(p); }));
  return list;
}

}  // namespace convoy
