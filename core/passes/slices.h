// Concatenations and slices without copies: values that live inside wider ones.
#pragma once

#include <functional>

#include "core/by_value.h"
#include "core/tape.h"

namespace convoy {

/// Where a value lives inside another; `channel` is its first channel there.
struct SliceOf {
  ValueId parent = no_value;
  int64_t channel = 0;
};

/// Lets the inputs of concat nodes be written straight into its output, and slice outputs be views; removes the nodes
/// that became unnecessary and gives the views their strides in `values`. `accepts(node)` is asked for every node that
/// would see a strided value, with `values` already changed; a copy stays wherever it says no. So it does, with
/// `even_places`, for a value of 16 bits whose first channel is less even than its channels and the distance of its
/// pixels tell: kernels of devices read eight, or two, channels at a time by those, before anything has a place.
ByValue<SliceOf> alias_slices(std::vector<Value>& values, std::vector<Node>& nodes,
                              const std::function<bool(const Node&)>& accepts, bool even_places = false);

}  // namespace convoy
