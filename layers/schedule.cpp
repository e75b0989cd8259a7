#include "layers/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

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

double StepSchedule::rate(int64_t step) const {
  if (step < warmup_steps) {
    const double share = double(step) / double(warmup_steps);
    return warmup_factor == 1 ? base_rate * share : base_rate * (1 + (warmup_factor - 1) * share);
  }
  const int64_t at = step - warmup_steps;
  const double top = base_rate * (warmup_steps > 0 ? warmup_factor : 1),
               left = 1 - double(std::min(at, length)) / double(length);
  switch (kind) {
    case Kind::constant:
      return top;
    case Kind::multistep:
      return top *
             std::pow(decay_rate, double(std::count_if(milestones.begin(), milestones.end(), [&](int64_t milestone) {
                        return at >= milestone + (warmup_steps > 0);
                      })));
    case Kind::cosine:
      return eta_min + (top - eta_min) * 0.5 * (1 + std::cos(std::numbers::pi * double(at) / double(length)));
    case Kind::polynomial:
      return eta_min + (top - eta_min) * std::pow(left, power);
  }
  return top;
}

}  // namespace convoy
