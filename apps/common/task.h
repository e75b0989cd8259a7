// What differs between the networks' training runs: their samples, and how good a network is.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "apps/common/interruption.h"
#include "apps/common/mllog.h"
#include "core/philox.h"
#include "io/loader.h"
#include "models/program.h"

namespace convoy::apps {

/// Loss and the task's measure over the validation samples.
struct Quality {
  double loss = NAN, metric = NAN;
  bool finite() const { return std::isfinite(loss) && std::isfinite(metric); }
};

class Task {
 public:
  virtual ~Task() = default;
  virtual int64_t training_samples() const = 0;
  virtual int64_t validation_samples() const = 0;
  /// The samples to train on; null for dummy data.
  virtual std::shared_ptr<const SampleSource> training() const = 0;
  /// Over all validation samples; with `ranks` each evaluates its share of them. Throws what `stop` throws, with the
  /// program's states as before or, where statistics are renewed, as renewed.
  virtual Quality validate(Program& program, Communicator* ranks, const StopPoint& stop) = 0;
  /// Whether validate() changes states that checkpoints hold.
  virtual bool renews_statistics() const { return false; }
  /// The metric that the user asked for, and whether it is there.
  virtual std::optional<double> target() const = 0;
  virtual bool reached(const Quality& quality) const = 0;
  /// Name of the measure ("MAE"); in history.csv "val_" and the same in small letters.
  virtual std::string metric() const = 0;
  /// Inputs of a step without data, the same for equal seeds.
  virtual void fill_dummy(const Tensor& x, const Tensor& target, uint64_t seed) const = 0;
  /// The benchmark's name, hyper-parameters and, per epoch, result in the MLPerf log's keys. Samples are those of all
  /// ranks.
  virtual void log_start(MlLog& log, int64_t samples_per_pass, int64_t samples_per_step) const = 0;
  /// What the MLPerf log says of the last pass of training besides loss and rate; every rank calls it.
  virtual void log_training(MlLog&, Executor&, Communicator* /*ranks*/, const MlLog::Json& /*metadata*/) const {}
  virtual void log_quality(MlLog& log, const Quality& quality, const MlLog::Json& metadata) const = 0;
};

/// Dummy inputs: calls set(i, word) with a random word for every element.
template <class Set>
void for_random_words(const Tensor& x, const PhiloxStream& random, Set&& set) {
  const int64_t elements = x.shape().elements();
  for (int64_t i = 0; i < elements; i += 4) {
    const PhiloxBlock block = random.block(static_cast<uint64_t>(i));
    for (int64_t k = 0; k < std::min<int64_t>(4, elements - i); ++k) set(i + k, block[static_cast<size_t>(k)]);
  }
}

}  // namespace convoy::apps
