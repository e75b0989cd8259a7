// Rewrites of a tape. Each states what it keeps: values by name, and results to the last bit unless it says otherwise.
#pragma once

#include "core/kernel.h"
#include "core/tape.h"

namespace convoy {

/// Gives every activation the storage type `compute` and places casts: parameters are cast once per reader type (biases
/// stay f32), tanh and losses stay f32, gradients of parameters come out f32. Changes results by the rounding of
/// `compute`. Apply before differentiation. f32 returns the tape unchanged.
Tape apply_precision(const Tape& tape, DType compute);

/// Replaces leaky_relu -> max_pool with one activation_max_pool, batch_norm -> ReLU with a clamping batch_norm, and a
/// factor above 0 -> leaky_relu with one activation, where nobody else reads what lies between. Bits stay, but for the
/// sign of zeros behind a batch norm, gradients in f16 of values that round to zero, and factors that are no powers of
/// two, whose products with a slope or a gradient round once instead of twice; windows that overlap add a value's
/// gradients up before or behind its slope.
void fuse(Tape& tape);

/// After differentiation: lets a convolution whose output only an activation_max_pool reads write the pooled map and
/// the arg-max itself (conv_pool_forward, under the convolution's name), and one whose output only a leaky_relu without
/// a scale reads end in that (conv_activation_forward; not with groups). Bits stay where a kernel sums in the same
/// order.
void fuse_convolutions(Tape& tape);

/// After differentiation: lets the gradient of a leaky_relu look at what a dropout behind it left, in place of its own
/// output, which then lives no longer than the dropout. What the dropout kept has the sign that it had; elsewhere the
/// gradient is zero whatever the sign. Bits stay.
void forget_dropped(Tape& tape);

/// After differentiation: lets backward_data and backward_weights of a convolution read the pooled gradient and the
/// arg-max in place of the un-pooled gradient (conv_pool_backward_data, conv_pool_backward_weights). A kernel may use
/// that seven of eight gradients are zero; sums then run in another order, within the bound of the sum. Where no kernel
/// takes it, lowering restores the shared un-pooled gradient.
void fuse_backward(Tape& tape);

/// Lets a convolution's data gradient (also a transposed convolution without a bias) that is only added to another
/// value be summed with it by the convolution's kernel (conv_backward_data_add, under the convolution's name), which
/// saves two passes over memory. The planner keeps it where the kernel that would run the convolution alone can. Bits
/// change within the bound of the sum: its order, and in 16-bit types one rounding instead of two.
void fuse_gradient_sums(Tape& tape);

/// Drops nodes whose outputs nobody reads, that update no state and compute nothing kept.
void drop_dead_nodes(Tape& tape);

/// Merges nodes with equal op and inputs (both lowered backward passes of a layer share one gradient). Bits stay.
void merge_equal_nodes(Tape& tape);

/// Lets the backward pass make outputs of cheap ops again (batch norm, activations, sums, factors, also per channel,
/// concatenations, resizes) where their inputs are kept for it anyway, instead of keeping both. Tapes without a loss
/// stay as they are. Run it behind merge_equal_nodes, which would take the second copy away. Bits stay.
void recompute(Tape& tape);
/// The node that a name is a copy of, as `recompute` makes them; any other name is itself.
std::string original_name(const std::string& node);

/// Moves small nodes of a kind next to each other, so that a device runs them in one launch (Joinable): casts of states
/// to the front, gradients of batch norms' parameters to their first reader, updates of running statistics to the end.
/// Bits stay.
void gather(const std::vector<Value>& values, std::vector<Node>& nodes);

/// The plain ops that a fused op stands for, as a tape of their own; inputs and outputs in the op's order.
struct Definition {
  Tape tape;
  std::vector<ValueId> in, out;
};
Definition definition_of(const Op& op, std::span<const TensorDesc> in);

/// Runs the definition of p's op over its tensors: calls run(problem, in, out) for every plain op in order;
/// make(desc) provides the tensors between them.
template <class Make, class Run>
void walk_definition(const Problem& p, std::span<const Tensor> in, std::span<const Tensor> out, Make&& make,
                     Run&& run) {
  const Definition d = definition_of(p.op, p.in);
  std::vector<Tensor> values(d.tape.values().size());
  const auto at = [&](ValueId id) -> Tensor& { return values[static_cast<size_t>(id)]; };
  for (size_t i = 0; i < d.in.size(); ++i) at(d.in[i]) = in[i];
  for (size_t i = 0; i < d.out.size(); ++i) at(d.out[i]) = out[i];
  for (const Node& node : d.tape.nodes()) {
    std::vector<Tensor> node_in, node_out;
    for (ValueId id : node.in) node_in.push_back(at(id));
    for (ValueId id : node.out) {
      if (at(id).empty()) at(id) = make(d.tape.desc(id));
      node_out.push_back(at(id));
    }
    run(Problem{node.op, d.tape.descs(node.in), d.tape.descs(node.out), p.device, p.threads}, node_in, node_out);
  }
}

/// Replaces fused nodes for which `keep_fused` says no by their definition. Bits stay, but for those of sums of
/// gradients, which are added up in another order.
void lower(Tape& tape, const std::function<bool(const Node&)>& keep_fused);

}  // namespace convoy
