// The rule that ends a training which gets no better.
#pragma once

#include <cmath>
#include <cstdint>

namespace convoy::apps {

class EarlyStop {
 public:
  /// After so many epochs in a row; 0: never.
  explicit EarlyStop(int64_t patience) : patience_(patience) {}
  /// Takes the validation loss of the next epoch. Whether that is the last one of too many that were no better.
  bool counts(double loss) {
    // The best one moves with what counts as better: slow progress adds up.
    if (loss < best_ - least_improvement)
      best_ = loss, since_ = 0;
    else
      ++since_;
    return patience_ > 0 && since_ >= patience_;
  }

 private:
  static constexpr double least_improvement = 1e-5;
  int64_t patience_, since_ = 0;
  double best_ = INFINITY;
};

}  // namespace convoy::apps
