#include "layers/schedule.h"

#include <cmath>

namespace convoy {

double LrSchedule::peak(double global_batch) const {
  switch (scaling) {
    case LrScaling::none:
      return base_rate;
    case LrScaling::linear:
      return base_rate * (global_batch / base_batch);
    case LrScaling::sqrt:
      return base_rate * std::sqrt(global_batch / base_batch);
  }
  return base_rate;
}

double LrSchedule::rate(int64_t epoch, double global_batch) const {
  const double top = peak(global_batch);
  if (epoch < warmup_epochs) return base_rate + double(epoch) * (top - base_rate) / double(warmup_epochs);
  double factor = 1;
  int64_t latest = -1;
  for (const auto& [boundary, multiplier] : decay)
    if (boundary < epoch && boundary > latest) latest = boundary, factor = multiplier;
  return top * factor;
}

}  // namespace convoy
