#include "apps/common/communication_record.h"

#include <algorithm>
#include <span>

namespace convoy::apps {

void CommunicationRecord::begin() {
  clock_offset_ = ranks_.clock_offset();
}

void CommunicationRecord::begin_step() {
  before_ = ranks_.times();
  ranks_.world().take_first_wait();  // of what lies behind: only waits of this step count
}

void CommunicationRecord::end_step(double seconds) {
  const CommunicationTimes after = ranks_.times();
  steps_.in_flight += after.in_flight - before_.in_flight;
  steps_.reductions += after.reductions - before_.reductions;
  steps_.bytes += after.bytes - before_.bytes;
  if (ranks_.size() > 1)
    waits_.push_back(
        {ranks_.world().take_first_wait(), after.exposed - before_.exposed, after.met - before_.met, seconds});
}

void CommunicationRecord::end_epoch(bool lagged) {
  if (ranks_.size() == 1 || waits_.empty()) return;
  const size_t steps = waits_.size();
  // Clocks of nodes drift apart during an epoch, evenly.
  const double before = clock_offset_, drift = (clock_offset_ = ranks_.clock_offset()) - before;
  for (size_t s = 0; s < steps; ++s) waits_[s].arrival -= before + drift * double(s + 1) / double(steps);
  const size_t ranks = static_cast<size_t>(ranks_.size());
  std::vector<Wait> all(steps * ranks);
  ranks_.world().all_gather(std::as_bytes(std::span(waits_)), std::as_writable_bytes(std::span(all)));
  for (size_t s = 0; s < steps; ++s) {
    double last = 0;
    for (size_t r = 0; r < ranks; ++r) last = std::max(last, all[r * steps + s].arrival);
    for (size_t r = 0; r < ranks; ++r) {
      const Wait& w = all[r * steps + s];
      mean_exposed_ += w.exposed / double(ranks), mean_seconds_ += w.seconds / double(ranks);
      // Lagged gradients were sent a step ago: hardly anybody waits for ranks that are late in this one.
      if (!lagged) mean_late_ += (std::min(w.exposed - w.met, last - w.arrival) + w.met) / double(ranks);
    }
  }
  waits_.clear();
}

nlohmann::json CommunicationRecord::summary(int64_t steps) const {
  const auto count = double(std::max<int64_t>(1, steps));
  return {{"ranks", ranks_.size()},
          {"nodes", ranks_.nodes()},
          {"all_reduces_per_step", double(steps_.reductions) / count},
          {"mib_per_step", double(steps_.bytes) / count / (1 << 20)},
          {"in_flight_seconds_per_step", steps_.in_flight / count},
          {"exposed_seconds_per_step", mean_exposed_ / count},
          {"exposed_fraction", mean_seconds_ > 0 ? mean_exposed_ / mean_seconds_ : 0},
          {"late_ranks_seconds_per_step", mean_late_ / count},
          {"late_ranks_fraction", mean_seconds_ > 0 ? mean_late_ / mean_seconds_ : 0}};
}

}  // namespace convoy::apps
