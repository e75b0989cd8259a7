// What a training run tells of itself at its end: times, rates and the trace.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "apps/common/profile.h"
#include "apps/common/trainer.h"
#include "core/median.h"
#include "io/file.h"

namespace convoy::apps {

using Clock = std::chrono::steady_clock;

namespace {

/// Of the first so many steps, also those of runs that this one goes on from: updates skipped for overflow. Where
/// gradients lag, the first step had none to apply, and counts as skipped in the state.
double skipped_updates(Program& program, int64_t steps) {
  const bool without_gradients = program.options().training.lag > 0 && steps > 0;
  const double* scale = program.store().get(scale_state_name).data<double>();
  return scale[int(ScaleField::skipped)] - (without_gradients ? 1 : 0);
}

}  // namespace

void Trainer::note(const char* what, Clock::time_point start) {
  if (!o_.trace) return;
  const double begin = std::chrono::duration<double, std::micro>(start.time_since_epoch()).count();
  const double length = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  host_events_.push_back({what, begin, length});
}

void Trainer::write_trace() {
  if (!o_.trace) return;
  const std::vector<MessageEvent> messages = ranks_.messages();
  RankTrace trace{ranks_.rank(), communication_.clock_offset(), {&program_.step()}, &messages, &host_events_};
  if (program_.micro()) trace.executors.push_back(program_.micro());
  const std::vector<std::string> rows = ranks_.collect_text(trace_events(trace));
  if (ranks_.root()) write_text(o_.output_dir + "/trace.json", chrome_trace(rows));
}

nlohmann::json Trainer::summary() const {
  nlohmann::json phases = phase_seconds(program_.step());
  if (program_.micro()) {  // the passes ahead of the update
    const nlohmann::json more = phase_seconds(*program_.micro());
    for (const auto& [phase, seconds] : more.items())
      phases[phase] = phases.value(phase, 0.0) + double(passes() - 1) * seconds.get<double>();
  }
  // The first step pays for page faults and first touches.
  const std::vector<double> steady(step_seconds_.begin() + (step_seconds_.size() > 1 ? 1 : 0), step_seconds_.end());
  const double middle = median(steady);
  double told = 0;
  for (const auto& [phase, seconds] : phases.items()) told += seconds.get<double>();
  // Inputs, waits for other ranks, and what goes on between nodes; devices do not time their nodes.
  if (const double mean =
          std::accumulate(steady.begin(), steady.end(), 0.0) / double(std::max<size_t>(1, steady.size()));
      told > 0 && mean > told)
    phases[std::string(name_of(Phase::other))] = mean - told;
  return {{"steps", step_ - first_step_},
          {"median_step_seconds", middle},
          {"samples_per_second", middle > 0 ? double(samples_per_step()) / middle : 0},
          {"mean_samples_per_second",
           train_seconds_ > 0 ? double((step_ - first_step_) * samples_per_step()) / train_seconds_ : 0},
          {"data_wait_fraction", train_seconds_ > 0 ? wait_seconds_ / train_seconds_ : 0},
          {"skipped_updates", skipped_updates(program_, step_)},
          {"seconds",
           {{"training", train_seconds_},
            {"data_wait", wait_seconds_},
            {"validation", validation_seconds_},
            {"checkpoints", checkpoint_seconds_}}},
          {"communication", communication_.summary(step_ - first_step_)},
          {"step_phases", phases}};
}

}  // namespace convoy::apps
