#include "apps/common/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <optional>
#include <sstream>

#include "apps/common/profile.h"
#include "apps/common/version.h"
#include "core/median.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/hdf5.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t signal_received = 0;

volatile std::sig_atomic_t signal_second = 0;

/// Launchers pass the same request on by more than one way: only one that comes two seconds later is a second request.
extern "C" void on_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const auto second = static_cast<std::sig_atomic_t>(now.tv_sec & 0x3fffffff);
  if (signal_received && second - signal_second >= 2) _exit(128 + number);
  if (!signal_received) signal_second = second;
  signal_received = number;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Drops the lines of an interrupted run that the resumed one will write again.
void keep_lines_before(const std::string& path, int64_t step) {
  std::ifstream in(path);
  std::string line, kept;
  while (std::getline(in, line)) {
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    if (!parsed.is_discarded() && parsed.value("step", int64_t{0}) < step) kept += line + "\n";
  }
  if (in.eof()) write_text(path, kept);
}

}  // namespace

void install_signal_handlers() {
  for (int number : {SIGTERM, SIGUSR1}) std::signal(number, on_signal);
}

Trainer::Trainer(Program& program, Task& task, Ranks& ranks, TrainerOptions options)
    : program_(program), task_(task), ranks_(ranks), source_(task.training()), o_(std::move(options)) {
  for (Executor* executor : {&program_.step(), program_.micro()})
    if (executor) executor->set_groups(ranks_.groups()), executor->set_team(ranks_.team());
  ranks_.set_window(program_.step().window());
  for (const PlannedNode& node : program_.step().plan().nodes)
    if (node.op.kind == OpKind::all_reduce_later) lagged_.push_back(node.op.as<AllReduceAttrs>().id);
  if (steps_per_epoch() < 1)
    fail_usage(fmt::format("a step takes {} samples, more than the {} training samples", samples_per_step(),
                           task_.training_samples()));
}

LoaderOptions Trainer::own_share() const {
  LoaderOptions l = o_.loader;
  l.rank = ranks_.rank(), l.ranks = ranks_.size(), l.block = batch();
  return l;
}

void Trainer::share_statistics() {
  if (ranks_.size() == 1 || program_.statistics().empty()) return;
  std::vector<double> all;
  const auto each = [&](auto&& body) {
    for (const std::string& name : program_.statistics()) {
      const Tensor& t = program_.store().get(name);
      for (int64_t c = 0; c < t.shape().c(); ++c) body(t, c);
    }
  };
  each([&](const Tensor& t, int64_t c) { all.push_back(t.at(0, 0, 0, 0, c) / ranks_.size()); });
  ranks_.world().all_reduce_sum(std::span(all));
  size_t next = 0;
  each([&](const Tensor& t, int64_t c) { t.set(0, 0, 0, 0, c, all[next++]); });
}

void Trainer::settle() {
  for (int64_t id : lagged_) ranks_.world().wait(id);
}

std::string Trainer::meta() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const EpochRecord& r : history_)
    if (r.epoch < epoch_)  // an epoch cut short by --max-steps is not part of what a resume continues
      rows.push_back({r.epoch, r.learning_rate, r.loss, r.validation.loss, r.validation.metric, r.seconds});
  return nlohmann::json{{"epoch", epoch_},        {"step_in_epoch", step_in_epoch_},
                        {"step", step_},          {"epoch_loss", epoch_loss_},
                        {"history", rows},        {"identity", o_.identity},
                        {"config", o_.config},    {"version", version_text()},
                        {"ranks", ranks_.size()}, {"samples_per_step", samples_per_step()}}
      .dump();
}

std::string Trainer::load_newest() {
  for (const CheckpointFile& file : list_checkpoints(o_.output_dir)) {
    std::optional<Checkpoint> saved_state;
    nlohmann::json meta;
    try {
      saved_state.emplace(file.path);
      meta = nlohmann::json::parse(saved_state->meta());
      for (const char* cursor : {"identity", "epoch", "step_in_epoch", "step", "epoch_loss", "history"})
        meta.at(cursor);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      fmt::print(stderr, "warning: skipping a damaged checkpoint: {}\n", error.what());
      continue;
    } catch (const nlohmann::json::exception& error) {
      fmt::print(stderr, "warning: skipping a damaged checkpoint: {}: {}\n", file.path, error.what());
      continue;
    }
    const bool other_ranks = meta.value("ranks", 1) != ranks_.size();
    for (const auto& [key, value] : o_.identity.items()) {
      if (other_ranks && std::find(o_.per_rank.begin(), o_.per_rank.end(), key) != o_.per_rank.end()) continue;
      const nlohmann::json saved = meta["identity"].value(key, nlohmann::json());
      const std::string text = saved.is_string() ? saved.get<std::string>() : std::string();
      const bool has_meaning = o_.agrees && (saved.is_string() || (saved.is_null() && value.is_string()));
      if (saved != value && !(has_meaning && o_.agrees(key, saved.is_null() ? nullptr : &text)))
        fail_usage(
            fmt::format("--resume: {}: setting {}: expected {}, found {}", file.path, key, saved.dump(), value.dump()));
    }
    saved_state->restore(program_.store());  // intact: states that do not fit are a mistake, not damage
    fmt::print("resuming from {}", file.path);
    return saved_state->meta();
  }
  fmt::print("no intact checkpoint in {}: starting from the beginning\n", o_.output_dir);
  return {};
}

void Trainer::take(const nlohmann::json& meta) {
  const auto number = [](const nlohmann::json& v) { return v.is_null() ? NAN : v.get<double>(); };  // JSON has no NaN
  for (const auto& r : meta.at("history"))
    history_.push_back(
        {r.at(0), number(r.at(1)), number(r.at(2)), {number(r.at(3)), number(r.at(4))}, number(r.at(5))});
  epoch_ = meta.at("epoch"), step_in_epoch_ = meta.at("step_in_epoch"), step_ = meta.at("step");
  epoch_loss_ = number(meta.at("epoch_loss"));
  fmt::print(" at epoch {}, step {}\n", epoch_, step_);
  const int64_t before = meta.value("samples_per_step", samples_per_step());
  if (const int ranks = meta.value("ranks", ranks_.size()); ranks != ranks_.size())
    fmt::print("the number of ranks changes from {} to {}, the samples of a step from {} to {}\n", ranks, ranks_.size(),
               before, samples_per_step());
  if (before == samples_per_step() || step_in_epoch_ == 0) return;
  // The position counts samples; of a step that is cut through, the rest is left out.
  const int64_t seen = step_in_epoch_ * before, steps = (seen + samples_per_step() - 1) / samples_per_step();
  epoch_loss_ *= double(steps) / double(step_in_epoch_);
  step_in_epoch_ = std::min(steps, steps_per_epoch());
}

void Trainer::resume() {
  std::string text;
  if (ranks_.root()) text = load_newest();
  text = ranks_.broadcast_text(text);
  if (text.empty()) return;
  take(nlohmann::json::parse(text));
  std::vector<std::byte> unused;  // takes what another member of the team writes
  for (const auto& [name, tensor] : program_.store().entries()) {
    const auto bytes = static_cast<size_t>(tensor.desc().bytes());
    const bool fills = program_.store().fills(name);
    if (!fills) unused.resize(std::max(unused.size(), bytes));
    ranks_.world().broadcast({fills ? tensor.bytes() : unused.data(), bytes}, 0);
  }
  program_.to_device();
  ranks_.meet_team();
}

void Trainer::save() {
  settle();
  program_.to_host();
  share_statistics();
  if (!has_hdf5() || !ranks_.root()) return;  // a build without HDF5 says so when it starts
  const auto start = Clock::now();
  ranks_.set_busy(true);
  const nlohmann::json number = {{"step_num", step_}};
  mllog_.start("save_start", number);
  save_checkpoint(o_.output_dir, step_, program_.store(), meta(), o_.keep_checkpoints);
  mllog_.end("save_stop", number);
  ranks_.set_busy(false);
  checkpoint_seconds_ += seconds_since(start);
  note("checkpoint", start);
}

void Trainer::check_finite(float loss) {
  Executor& e = program_.step();
  if (e.tensor("finite").data<float>()[0] != 0) return;
  if (program_.options().training.lag > 0 && step_ == 0) return;  // no gradients have arrived yet
  const double* scale = program_.store().get(scale_state_name).data<double>();
  // f16 overflows now and then: the update was skipped and the scale halved. A scale that keeps falling is divergence.
  const bool scaled = program_.options().compute == DType::f16;
  if (scaled && std::isfinite(loss) && scale[int(ScaleField::scale)] >= 1) return;
  refill_inputs();  // the arena reused their memory
  const std::string node = e.find_non_finite();
  throw Error(
      ErrorKind::diverged,
      fmt::format("step {}: not finite (loss {}): first at {}; parameters keep the values of step {}", step_, loss,
                  node.empty() ? (ranks_.size() > 1 ? "the gradients of another rank" : "the gradients") : node,
                  step_));
}

void Trainer::fill_inputs(Executor& e, Loader* loader) {
  const Tensor x = e.tensor("x"), y = e.tensor("target");
  if (!loader) return task_.fill_dummy(x, y, o_.seed);
  const int64_t input_bytes = x.desc().bytes() / batch(), target_bytes = y.desc().bytes() / batch();
  for (int64_t n = 0; n < batch(); ++n) loader->next(x.bytes() + n * input_bytes, y.bytes() + n * target_bytes);
}

void Trainer::refill_inputs() {
  if (ranks_.size() > 1) program_.step().tensor(stop_request_name).data<float>()[0] = 0;
  if (!source_) return fill_inputs(program_.step(), nullptr);
  Loader loader(source_, own_share(), epoch_, (step_in_epoch_ * passes() + passes() - 1) * batch());
  fill_inputs(program_.step(), &loader);
}

std::optional<Outcome> Trainer::stop_rule(const EpochRecord& record) {
  if (task_.reached(record.validation)) {
    mllog_.event("target_accuracy_reached", record.validation.metric, {{"epoch_num", record.epoch + 1}});
    return Outcome::target_reached;
  }
  if (!source_ || task_.validation_samples() == 0) return std::nullopt;
  since_best_ = record.validation.loss < best_loss_ - 1e-5 ? 0 : since_best_ + 1;
  best_loss_ = std::min(best_loss_, record.validation.loss);
  if (o_.early_stopping > 0 && since_best_ >= o_.early_stopping) return Outcome::stopped_early;
  return std::nullopt;
}

void Trainer::one_pass(Executor& e, Loader* loader, int64_t pass) {
  const auto start = Clock::now();
  fill_inputs(e, loader);
  note("input", start);
  // Dummy inputs are rewritten because the arena reuses their memory; that is not part of the step.
  if (!loader) dummy_seconds_ += seconds_since(start);
  double* state = program_.store().get(step_state_name).data<double>();
  state[int(StepField::micro_step)] = double(pass);
  state[int(StepField::first_sample)] =
      double(step_ * samples_per_step() + pass * global_batch() + ranks_.rank() * batch());
  e.run();
}

void Trainer::one_step(Loader* loader) {
  const double rate = o_.rate(epoch_, position());
  if (step_ == first_step_ + 1) {  // the first step also pays for touching its memory
    program_.step().reset_times();
    if (program_.micro()) program_.micro()->reset_times();
  }
  const auto start = Clock::now();
  const double wait_before = loader ? loader->wait_seconds() : 0, dummy_before = dummy_seconds_;
  double* state = program_.store().get(step_state_name).data<double>();
  state[int(StepField::learning_rate)] = rate;
  state[int(StepField::step)] = double(step_);
  state[int(StepField::seed_low)] = double(o_.seed & 0xffffffffu);
  state[int(StepField::seed_high)] = double(o_.seed >> 32);
  const CommunicationTimes before = ranks_.times();
  ranks_.world().take_first_wait();  // of what lies behind: only waits of this step count
  for (int64_t pass = 0; pass + 1 < passes(); ++pass) one_pass(*program_.micro(), loader, pass);
  const bool several = ranks_.size() > 1;
  if (several) program_.step().tensor(stop_request_name).data<float>()[0] = signal_received ? 1.f : 0.f;
  one_pass(program_.step(), loader, passes() - 1);
  // All ranks see the same requests in the same step.
  stop_requested_ = several ? program_.step().tensor("stop_requests").data<float>()[0] > 0 : signal_received != 0;
  const float loss = program_.step().tensor("loss").data<float>()[0];
  check_finite(loss);
  const double wait = loader ? loader->wait_seconds() - wait_before : 0;
  const double seconds = seconds_since(start) - (dummy_seconds_ - dummy_before);
  wait_seconds_ += wait, train_seconds_ += seconds, epoch_loss_ += double(loss);
  const CommunicationTimes after = ranks_.times();
  steps_communication_.in_flight += after.in_flight - before.in_flight;
  if (several)
    waits_.push_back({ranks_.world().take_first_wait(), after.exposed - before.exposed, after.met - before.met});
  steps_communication_.reductions += after.reductions - before.reductions;
  steps_communication_.bytes += after.bytes - before.bytes;
  step_seconds_.push_back(seconds);
  metrics_ << nlohmann::json{{"step", step_},         {"epoch", epoch_},    {"loss", loss},
                             {"learning_rate", rate}, {"seconds", seconds}, {"data_wait_seconds", wait}}
                  .dump()
           << std::endl;
  ++step_, ++step_in_epoch_;
  // At an epoch's end its mean is logged, unless the run stops there.
  const bool ends = (step_in_epoch_ >= steps_per_epoch() || step_limit_reached()) && !stop_requested_;
  if (o_.log_steps > 0 && step_ % o_.log_steps == 0 && !ends) log_training(rate, double(loss));
}

void Trainer::log_training(double rate, double loss) {
  const nlohmann::json at = {{"epoch_num", epoch_ + 1}, {"step_num", step_}};
  mllog_.event("learning_rate", rate, at);
  mllog_.event("train_loss", loss, at);
  task_.log_training(mllog_, program_.step(), ranks_.others(), at);
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
      mean_exposed_ += w.exposed / double(ranks);
      // Lagged gradients were sent a step ago: hardly anybody waits for ranks that are late in this one.
      if (lagged_.empty()) mean_late_ += (std::min(w.exposed - w.met, last - w.arrival) + w.met) / double(ranks);
    }
  }
  waits_.clear();
}

void Trainer::train_epoch() {
  std::unique_ptr<Loader> loader;
  if (source_) loader = std::make_unique<Loader>(source_, own_share(), epoch_, step_in_epoch_ * passes() * batch());
  const bool terminal = ranks_.root() && isatty(STDOUT_FILENO);
  if (step_in_epoch_ == 0) epoch_loss_ = 0;
  while (step_in_epoch_ < steps_per_epoch() && !step_limit_reached()) {
    one_step(loader.get());
    if (terminal) {
      fmt::print("\repoch {} step {}/{} loss {:.4f} {:.2f} s/step ", epoch_ + 1, step_in_epoch_, steps_per_epoch(),
                 epoch_loss_ / double(step_in_epoch_), step_seconds_.back());
      std::fflush(stdout);
    }
    if (o_.checkpoint_steps > 0 && step_ % o_.checkpoint_steps == 0 && step_in_epoch_ < steps_per_epoch()) save();
    if (stop_requested()) interrupted_ = true;
    if (interrupted_) break;
  }
  if (terminal) fmt::print("\r\033[K");
  if (!metrics_) fail_runtime(o_.output_dir + "/metrics.jsonl: cannot write (disk full?)");
}

void Trainer::validate(double epoch_seconds, int64_t epoch_steps) {
  EpochRecord record{epoch_,
                     o_.rate(epoch_, std::max<int64_t>(0, position() - 1)),
                     epoch_loss_ / double(std::max<int64_t>(1, step_in_epoch_)),
                     {},
                     0};
  const auto start = Clock::now();
  const nlohmann::json number = {{"epoch_num", epoch_ + 1}};
  if (epoch_steps > 0) {
    log_training(record.learning_rate, record.loss);
    mllog_.event("tracked_stats", {{"throughput", double(epoch_steps * samples_per_step()) / epoch_seconds}},
                 {{"epoch_num", epoch_ + 1}, {"step_num", step_}});
  }
  if (source_ && task_.validation_samples() > 0) {
    share_statistics();
    mllog_.start("eval_start", number);
    record.validation = task_.validate(program_, ranks_.others());
    validated_ = true;
    mllog_.end("eval_stop", number);
    note("validation", start);
    task_.log_quality(mllog_, record.validation, epoch_ + 1);
  }
  validation_seconds_ += seconds_since(start);
  record.seconds = epoch_seconds + seconds_since(start);
  history_.push_back(record);
  if (ranks_.root()) write_history();
  fmt::print("epoch {:3d}  lr {:.3g}  loss {:.4f}  validation loss {:.4f}  {} {:.4f}  {:.1f} s\n", epoch_ + 1,
             record.learning_rate, record.loss, record.validation.loss, task_.metric(), record.validation.metric,
             record.seconds);
  std::fflush(stdout);
}

void Trainer::write_history() const {
  std::string metric = task_.metric();
  for (char& c : metric) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::string text = "epoch,lr,loss,val_loss,val_" + metric + ",time\n";
  for (const EpochRecord& r : history_)
    text += fmt::format("{},{:.9g},{:.9g},{:.9g},{:.9g},{:.3f}\n", r.epoch, r.learning_rate, r.loss, r.validation.loss,
                        r.validation.metric, r.seconds);
  write_text(o_.output_dir + "/history.csv", text);
}

Outcome Trainer::run() {
  ranks_.agree({{"data", o_.data_digest},
                {"statistics", o_.identity.value("statistics", "")},
                {"parameters", program_.parameters()},
                {"version", version_text()}});
  if (!o_.resume && ranks_.root() && !list_checkpoints(o_.output_dir).empty())
    fail_usage(o_.output_dir +
               " holds checkpoints of another run: continue it with --resume, or choose another --output-dir");
  if (!has_hdf5()) fmt::print(stderr, "warning: this build has no HDF5: no checkpoints are written\n");
  if (o_.resume) resume();
  first_step_ = step_;
  clock_offset_ = ranks_.clock_offset();
  const std::string metrics_path = ranks_.root() ? o_.output_dir + "/metrics.jsonl" : "/dev/null";
  if (o_.resume && ranks_.root() && fs::exists(metrics_path)) keep_lines_before(metrics_path, step_);
  metrics_.open(metrics_path, o_.resume ? std::ios::app : std::ios::trunc);
  if (!metrics_) fail_runtime(metrics_path + ": cannot open for writing");
  mllog_.open(ranks_.root() ? o_.output_dir + "/mlperf.log" : "/dev/null", o_.resume);
  if (o_.trace) {
    if (program_.micro()) program_.micro()->start_trace();
    program_.step().start_trace(), ranks_.world().start_trace();
  }

  const nlohmann::json& c = o_.config;
  const auto setting = [&](const char* key) { return c.value(key, std::string()); };
  mllog_.event("cache_clear", setting("mlperf-cache-clear") == "true");
  mllog_.init_start();
  if (o_.staging) mllog_.interval("staging_start", "staging_stop", *o_.staging);
  mllog_.event("submission_org", setting("mlperf-org"));
  mllog_.event("submission_division", setting("mlperf-division"));
  mllog_.event("submission_status", setting("mlperf-status"));
  mllog_.event("submission_platform", setting("mlperf-platform"));
  mllog_.event("seed", o_.seed);
  mllog_.event("number_of_ranks", ranks_.size());
  mllog_.event("number_of_nodes", ranks_.nodes());
  mllog_.event("accelerators_per_node", program_.options().plan.device == DeviceKind::cuda ? 1 : 0);
  mllog_.event("global_batch_size", samples_per_step());
  mllog_.event("train_samples", task_.training_samples());
  mllog_.event("eval_samples", task_.validation_samples());
  mllog_.event("opt_name", setting("optimizer"));
  task_.log_start(mllog_);
  mllog_.end("init_stop");
  mllog_.start("run_start");

  std::optional<Outcome> stopped;
  for (const EpochRecord& record : history_)
    if (!stopped) stopped = stop_rule(record);
  while (epoch_ < o_.epochs && !stopped && !step_limit_reached()) {
    const auto start = Clock::now();
    const int64_t steps_before = step_;
    mllog_.start("epoch_start", {{"epoch_num", epoch_ + 1}});
    train_epoch();
    compare_waits();
    if (interrupted_) {
      save();
      stopped = Outcome::interrupted;
      break;
    }
    mllog_.end("epoch_stop", {{"epoch_num", epoch_ + 1}});
    validate(seconds_since(start), step_ - steps_before);
    const bool complete = step_in_epoch_ >= steps_per_epoch();
    if (complete) ++epoch_, step_in_epoch_ = 0;
    save();
    if (complete) stopped = stop_rule(history_.back());
    if (!stopped && stop_requested()) stopped = Outcome::interrupted;
  }
  const Outcome outcome = stopped.value_or(Outcome::finished);
  // A resumed run with nothing left to do still reports what its weights are worth.
  if (!validated_ && source_ && task_.validation_samples() > 0 && outcome != Outcome::interrupted) {
    const auto start = Clock::now();
    task_.validate(program_, ranks_.others());
    note("validation", start);
    if (task_.renews_statistics()) save();  // by which the weights were judged
  }
  settle();
  const bool success = !task_.has_target() ? outcome != Outcome::interrupted : outcome == Outcome::target_reached;
  mllog_.end("run_stop", {{"status", success ? "success" : "aborted"}});
  if (o_.trace) write_trace();
  return outcome;
}

void Trainer::note(const char* what, Clock::time_point start) {
  if (!o_.trace) return;
  const double begin = std::chrono::duration<double, std::micro>(start.time_since_epoch()).count();
  host_events_.push_back({what, begin, 1e6 * seconds_since(start)});
}

void Trainer::write_trace() {
  RankTrace trace{ranks_.rank(), clock_offset_, {&program_.step()}, &ranks_.world().trace(), &host_events_};
  if (program_.micro()) trace.executors.push_back(program_.micro());
  const std::vector<std::string> rows = ranks_.collect_text(trace_events(trace).dump());
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
          {"exposed_fraction", train_seconds_ > 0 ? mean_exposed_ / train_seconds_ : 0},
          {"late_ranks_seconds_per_step", mean_late_ / steps},
          {"late_ranks_fraction", train_seconds_ > 0 ? mean_late_ / train_seconds_ : 0}};
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
  return {{"steps", step_ - first_step_},
          {"median_step_seconds", middle},
          {"samples_per_second", middle > 0 ? double(samples_per_step()) / middle : 0},
          {"mean_samples_per_second",
           train_seconds_ > 0 ? double((step_ - first_step_) * samples_per_step()) / train_seconds_ : 0},
          {"data_wait_fraction", train_seconds_ > 0 ? wait_seconds_ / train_seconds_ : 0},
          {"skipped_updates", program_.store().get(scale_state_name).data<double>()[int(ScaleField::skipped)]},
          {"seconds",
           {{"training", train_seconds_},
            {"data_wait", wait_seconds_},
            {"validation", validation_seconds_},
            {"checkpoints", checkpoint_seconds_}}},
          {"communication", communication()},
          {"step_phases", phases}};
}

}  // namespace convoy::apps
