// Means between ranks, as nodes of the tape.
#pragma once

#include <functional>
#include <vector>

#include "core/ops/communication.h"
#include "core/tape.h"

namespace convoy {

struct AveragingOptions {
  int64_t ranks = 1;                         ///< 1 or more
  int64_t bucket_bytes = int64_t{25} << 20;  ///< a bucket is closed when it holds at least so much
  DType wire = DType::f32;                   ///< bf16 or f16: gradients travel in half the bytes
  int64_t batch_norm_ranks = 1;  ///< so many neighbouring ranks share batch-norm statistics; divides `ranks`
};

/// Moves every node that `movable` names up to where its last input is ready. Results stay.
void hoist(Tape& tape, const std::function<bool(const Node&)>& movable);

struct AveragedBuckets {
  /// This step's gradients, the state that takes them, and the all-reduce of both.
  struct Lagged {
    ValueId bucket, state;
    int64_t id;
  };
  std::vector<ValueId> buckets;  ///< averaged
  std::vector<Lagged> lagged;
};
/// Appends buckets, filled in the order in which the gradients become ready, with an all-reduce started at once for
/// each and its wait at the end of the tape. Returns the averaged buckets, and in `gradients` the averaged gradients.
/// With `lag` 1 the waits fetch what was started one step earlier, from states "bucket<i>.lagged" that begin as NaN,
/// and the returned starts are left to `start_lagged`.
AveragedBuckets average_gradients(Tape& tape, std::span<const ValueId> parameters, std::vector<ValueId>& gradients,
                                  int64_t lag, const AveragingOptions& o);
/// Appends the starts of a lagged step; behind the last reader of the states.
void start_lagged(Tape& tape, const AveragedBuckets& averaged, const AveragingOptions& o);

/// The mean of a small value over all ranks: started where it is ready, waited for at the end. Behind it `hoist`.
ValueId average_value(Tape& tape, Averaged what, ValueId value, const AveragingOptions& o);

/// After differentiation: batch-norm statistics, and the sums of their backward pass, become means over the group;
/// gradients of gamma and beta stay this rank's own.
void share_batch_norm(Tape& tape, const AveragingOptions& o);

}  // namespace convoy
