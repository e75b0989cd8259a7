// What a training run tells of itself: lines and tables while it goes on, times and rates at its end.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "apps/common/profile.h"
#include "apps/common/trainer.h"
#include "core/median.h"
#include "io/file.h"

namespace convoy::apps {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

/// Drops the lines of an interrupted run that the resumed one will write again, and one that was cut off.
void keep_lines_before(const std::string& path, int64_t step) {
  std::ifstream in(path);
  std::string line, kept;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    if (parsed.is_discarded()) continue;
    if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number())
      fail_data(fmt::format("{}:{}: expected an object with a step, found {}", path, number, line.substr(0, 80)));
    if (parsed["step"].get<int64_t>() < step) kept += line + "\n";
  }
  if (in.eof()) write_text(path, kept);
}

/// Of the first so many steps, also those of runs that this one goes on from: updates skipped for overflow. Where
/// gradients lag, the first step had none to apply, and counts as skipped in the state.
double skipped_updates(Program& program, int64_t steps) {
  const bool without_gradients = program.options().training.lag > 0 && steps > 0;
  const double* scale = program.store().get(scale_state_name).data<double>();
  return scale[int(ScaleField::skipped)] - (without_gradients ? 1 : 0);
}

}  // namespace

void Trainer::open_metrics() {
  const std::string path = ranks_.root() ? o_.output_dir + "/metrics.jsonl" : "/dev/null";
  if (ranks_.root())  // a pipe would be waited for, and a folder found when there is something to lose
    for (const char* name : {"metrics.jsonl", "history.csv", "summary.json"})
      expect_replaceable(o_.output_dir + "/" + name);
  if (o_.resume && ranks_.root() && fs::exists(path)) keep_lines_before(path, step_);
  metrics_.open(path, o_.resume ? std::ios::app : std::ios::trunc);
  if (!metrics_) fail_runtime(path + ": cannot open for writing");
}

void Trainer::write_history() {
  std::string metric = task_.metric();
  for (char& c : metric) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string text = "epoch,lr,loss,val_loss,val_" + metric + ",time\n";
  for (const EpochRecord& r : history_)
    text += fmt::format("{},{:.9g},{:.9g},{:.9g},{:.9g},{:.3f}\n", r.epoch, r.learning_rate, r.loss, r.validation.loss,
                        r.validation.metric, r.seconds);
  history_failure_.clear();
  try {
    write_text(o_.output_dir + "/history.csv", text);
  } catch (const Error& error) {
    history_failure_ = error.what();
  }
}

bool Trainer::lacks_history() const {
  std::ifstream in(o_.output_dir + "/history.csv");
  const auto lines = std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  return lines < 1 + std::ssize(history_);
}

void Trainer::compare_waits() {
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
      if (lagged_.empty()) mean_late_ += (std::min(w.exposed - w.met, last - w.arrival) + w.met) / double(ranks);
    }
  }
  waits_.clear();
}

void Trainer::note(const char* what, Clock::time_point start) {
  if (!o_.trace) return;
  const double begin = std::chrono::duration<double, std::micro>(start.time_since_epoch()).count();
  const double length = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  host_events_.push_back({what, begin, length});
}

void Trainer::write_trace() {
  if (!o_.trace) return;
  const std::vector<MessageEvent> messages = ranks_.messages();
  RankTrace trace{ranks_.rank(), clock_offset_, {&program_.step()}, &messages, &host_events_};
  if (program_.micro()) trace.executors.push_back(program_.micro());
  const std::vector<std::string> rows = ranks_.collect_text(trace_events(trace));
  if (ranks_.root()) write_text(o_.output_dir + "/trace.json", chrome_trace(rows));
}

nlohmann::json Trainer::communication() const {
  const auto steps = double(std::max<int64_t>(1, step_ - first_step_));
  const CommunicationTimes& c = steps_communication_;
  return {{"ranks", ranks_.size()},
          {"nodes", ranks_.nodes()},
          {"all_reduces_per_step", double(c.reductions) / steps},
          {"mib_per_step", double(c.bytes) / steps / (1 << 20)},
          {"in_flight_seconds_per_step", c.in_flight / steps},
          {"exposed_seconds_per_step", mean_exposed_ / steps},
          {"exposed_fraction", mean_seconds_ > 0 ? mean_exposed_ / mean_seconds_ : 0},
          {"late_ranks_seconds_per_step", mean_late_ / steps},
          {"late_ranks_fraction", mean_seconds_ > 0 ? mean_late_ / mean_seconds_ : 0}};
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
          {"communication", communication()},
          {"step_phases", phases}};
}

}  // namespace convoy::apps
