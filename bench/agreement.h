// Whether kernels that are right on small versions of a problem agree at its full size.
#pragma once

#include <memory>
#include <vector>

#include "bench/candidate.h"
#include "core/tensor.h"

namespace convoy::bench {

/// Results of one problem within what kernels may err: floats by their root mean square (every element of them, or it
/// would take many wrong ones among millions to be seen), bytes, which say which of nearly equal values won, in nearly
/// all places. `narrow`: the problem has inputs of 16 bits.
bool agree_on_host(const Tensor& a, const Tensor& b, bool narrow);

/// Of candidates on the CPU that ran once, marks as wrong those whose results are not those of most. Small versions do
/// not reach what large sizes alone do: stores past the caches, many bands and parts, long pitches. `referees`, which
/// ran as well, are there for their results alone. Of two that differ the one that could not be checked is wrong, or
/// both.
void mark_disagreement(const std::vector<std::unique_ptr<Candidate>>& candidates, bool narrow,
                       const std::vector<std::unique_ptr<Candidate>>& referees = {});

}  // namespace convoy::bench
