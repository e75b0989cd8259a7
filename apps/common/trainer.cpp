#include "apps/common/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>

#include "apps/common/say.h"
#include "apps/common/stop_signal.h"
#include "apps/common/version.h"
#include "io/hdf5.h"

namespace convoy::apps {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Whether something that is done every so many times is due behind this one; 0: never.
bool meets(int64_t count, int64_t interval) {
  return interval > 0 && count % interval == 0;
}

}  // namespace

void expect_whole_step(int64_t samples_per_step, int64_t samples) {
  if (samples_per_step > samples)
    fail_usage(fmt::format("a step takes {} samples, more than the {} training samples", samples_per_step, samples));
}

Trainer::Trainer(Program& program, Task& task, Ranks& ranks, TrainerOptions options)
    : program_(program),
      task_(task),
      ranks_(ranks),
      source_(task.training()),
      o_(std::move(options)),
      communication_(ranks),
      early_stop_(o_.early_stopping) {
  for (Executor* executor : {&program_.step(), program_.micro()})
    if (executor) executor->set_groups(ranks_.groups()), executor->set_team(ranks_.team());
  ranks_.set_window(program_.step().window());
  if (program_.on_device() && ranks_.size() > 1) say("gradients go {}\n", ranks_.meet_devices(program_.step()));
  for (const PlannedNode& node : program_.step().plan().nodes)
    if (node.op.kind == OpKind::all_reduce_later) lagged_.push_back(node.op.as<AllReduceAttrs>().id);
  expect_whole_step(samples_per_step(), task_.training_samples());
}

LoaderOptions Trainer::own_share(int64_t passes) const {
  LoaderOptions l = o_.loader;
  l.rank = ranks_.rank(), l.ranks = ranks_.size(), l.block = batch(), l.count = passes * batch();
  return l;
}

void Trainer::share_statistics() {
  if (ranks_.size() == 1 || program_.statistics().empty()) return;
  program_.to_host(program_.statistics());
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
  program_.to_device(program_.statistics());
}

void Trainer::settle() {
  for (int64_t id : lagged_) ranks_.world().wait(id);
}

std::string Trainer::first_not_finite() {
  refill_inputs();  // the arena reused their memory
  const std::string name = program_.step().find_non_finite();
  // Buckets that lag hold means over all ranks.
  if (!name.empty() && !name.ends_with(".lagged")) return name;
  return ranks_.size() > 1 ? "the gradients of another rank" : "the gradients";
}

void Trainer::check_finite(float loss) {
  if (program_.step().tensor("finite").data<float>()[0] != 0) return;
  // Lagged ones are those of the step before, whose inputs and parameters are gone; the first step has none.
  const bool lagged_gradients = program_.options().training.lag > 0 && std::isfinite(loss);
  if (lagged_gradients && step_ == 0) return;
  const double* scale = program_.store().get(scale_state_name).data<double>();
  // f16 overflows now and then: the update was skipped and the scale halved. One that cannot fall any more is
  // divergence. Sums over a million pixels take scales far below 1.
  const bool scaled = program_.options().compute == DType::f16 && !program_.options().training.scaling_stays;
  if (scaled && std::isfinite(loss) && scale[int(ScaleField::scale)] > smallest_loss_scale) return;
  settle();                    // a replay reads what gradients travel in
  if (saved_step_ == step_) {  // all that goes on from there ends here
    if (ranks_.root()) set_newest_aside("every run that goes on from it diverges at once");
    ranks_.world().barrier();  // nobody ends the run before that is done
  }
  const std::string first = lagged_gradients ? fmt::format("the gradients of step {}", step_ - 1) : first_not_finite();
  throw Error(ErrorKind::diverged,
              fmt::format("step {}: not finite (loss {}): first at {}; parameters keep the values of step {}", step_,
                          loss, first, step_));
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
  Loader loader(source_, own_share(1), epoch_, (step_in_epoch_ * passes() + passes() - 1) * batch());
  fill_inputs(program_.step(), &loader);
}

bool Trainer::reaches_target(const Quality& quality, int64_t epoch) {
  if (!quality.finite() || !task_.reached(quality)) return false;
  mllog_.event("target_accuracy_reached", *task_.target(), position(epoch));
  return true;
}

std::optional<Outcome> Trainer::stop_rule(const EpochRecord& record) {
  if (reaches_target(record.validation, record.epoch)) return Outcome::target_reached;
  if (!source_ || task_.validation_samples() == 0 || !record.validation.finite()) return std::nullopt;
  if (early_stop_.counts(record.validation.loss)) return Outcome::stopped_early;
  return std::nullopt;
}

bool Trainer::fills_ahead() const {
  const bool follows = step_in_epoch_ + 1 < steps_per_epoch() && (o_.max_steps == 0 || step_ + 1 < o_.max_steps);
  const bool logged = meets(step_ + 1, o_.log_steps);
  return program_.on_device() && passes() == 1 && follows && !logged;
}

void Trainer::stage(Executor& e) {
  if (ranks_.size() > 1 && &e == &program_.step())
    e.tensor(stop_request_name).data<float>()[0] = wants_stop() ? 1.f : 0.f;
  e.stage_inputs();
}

void Trainer::one_pass(Executor& e, Loader* loader, int64_t pass, double rate) {
  const auto start = Clock::now();
  if (!inputs_ahead_) {
    fill_inputs(e, loader);
    stage(e);
    note("input", start);
  }
  // Dummy inputs are rewritten because the arena reuses their memory; that is not part of the step.
  if (!loader) dummy_seconds_ += seconds_since(start);
  program_.set_clock({.learning_rate = rate,
                      .step = step_,
                      .seed = o_.seed,
                      .first_sample = step_ * samples_per_step() + pass * global_batch() + ranks_.rank() * batch(),
                      .micro_step = pass});
  e.start();
  inputs_ahead_ = loader && fills_ahead();
  if (inputs_ahead_) {
    e.inputs_free();
    const auto next = Clock::now();
    fill_inputs(e, loader);
    stage(e);
    note("input", next);
  }
  e.finish();
}

void Trainer::one_step(Loader* loader) {
  const double rate = o_.rate(epoch_, position());
  if (step_ == first_step_ + 1) {  // the first step also pays for touching its memory
    program_.step().reset_times();
    if (program_.micro()) program_.micro()->reset_times();
  }
  const auto start = Clock::now();
  const double wait_before = loader ? loader->wait_seconds() : 0, dummy_before = dummy_seconds_;
  communication_.begin_step();
  for (int64_t pass = 0; pass + 1 < passes(); ++pass) one_pass(*program_.micro(), loader, pass, rate);
  const bool several = ranks_.size() > 1;
  one_pass(program_.step(), loader, passes() - 1, rate);
  // All ranks see the same requests in the same step.
  stop_requested_ = several ? program_.step().tensor("stop_requests").data<float>()[0] > 0 : wants_stop();
  const float loss = program_.step().tensor("loss").data<float>()[0];
  check_finite(loss);
  const double wait = loader ? loader->wait_seconds() - wait_before : 0;
  const double seconds = seconds_since(start) - (dummy_seconds_ - dummy_before);
  wait_seconds_ += wait, train_seconds_ += seconds, epoch_loss_ += double(loss);
  communication_.end_step(seconds);
  step_seconds_.push_back(seconds);
  tables_.add_step({{"step", step_},
                    {"epoch", epoch_},
                    {"loss", loss},
                    {"learning_rate", rate},
                    {"seconds", seconds},
                    {"data_wait_seconds", wait}});
  ++step_, ++step_in_epoch_;
  // At an epoch's end its mean is logged, unless the run stops there.
  const bool ends = (step_in_epoch_ >= steps_per_epoch() || step_limit_reached()) && !stop_requested_;
  if (meets(step_, o_.log_steps) && !ends) log_training(rate, double(loss));
}

void Trainer::log_training(double rate, double loss) {
  const MlLog::Json at = position(epoch_);
  mllog_.event("learning_rate", rate, at);
  mllog_.event("train_loss", loss, at);
  task_.log_training(mllog_, program_.step(), ranks_.others(), at);
}

void Trainer::train_epoch() {
  inputs_ahead_ = false;  // the loader begins anew
  std::unique_ptr<Loader> loader;
  int64_t steps = steps_per_epoch() - step_in_epoch_;
  if (o_.max_steps > 0) steps = std::min(steps, o_.max_steps - step_);
  if (source_ && steps > 0)
    loader =
        std::make_unique<Loader>(source_, own_share(steps * passes()), epoch_, step_in_epoch_ * passes() * batch());
  // Launchers may give rank 0 a terminal whose text ends in a file.
  const bool terminal = !ranks_.session() && isatty(STDOUT_FILENO);
  if (step_in_epoch_ == 0) epoch_loss_ = 0;
  while (step_in_epoch_ < steps_per_epoch() && !step_limit_reached()) {
    try {
      one_step(loader.get());
    } catch (const Error& error) {
      // A sample that cannot be read: what was learnt until here is kept. Other ranks could not join in saving; a
      // device is at work by then, and the passes of a step have renewed running statistics.
      const bool between_steps = ranks_.size() == 1 && !fills_ahead() && passes() == 1;
      if (error.kind() == ErrorKind::data && between_steps && step_ > first_step_ && has_hdf5()) save_or_warn();
      throw;
    }
    if (terminal) {
      say("\repoch {} step {}/{} loss {:.4f} {:.2f} s/step ", epoch_ + 1, step_in_epoch_, steps_per_epoch(),
          epoch_loss_ / double(step_in_epoch_), step_seconds_.back());
      std::fflush(stdout);
    }
    if (stop_requested_) break;
    // Behind an epoch whose last step it is, a limit of steps and a request to stop all is saved anyway.
    if (meets(step_, o_.checkpoint_steps) && step_in_epoch_ < steps_per_epoch() && !step_limit_reached())
      save(o_.keep_checkpoints);
  }
  if (terminal) say("\r\033[K");
}

void Trainer::save_or_warn() {
  try {
    save(o_.keep_checkpoints + 1);
  } catch (const Error& error) {
    say(stderr, "warning: {}\n", error.what());
  }
}

std::string Trainer::lost_log() const {
  const std::string lost = tables_.lost();
  return lost.empty() && mllog_.failed() ? mllog_.path() + ": cannot write (disk full?)" : lost;
}

bool Trainer::wants_stop() const {
  return stop_signalled() || !lost_log().empty();
}

StopPoint Trainer::stop_point() const {
  return {[this] { return wants_stop(); }, ranks_.others()};
}

void Trainer::expect_logs() const {
  if (const std::string lost = lost_log(); !lost.empty())
    fail_runtime(lost + (has_hdf5() ? fmt::format("; step {} is saved", step_) : ""));
}

void Trainer::validate(double epoch_seconds, int64_t epoch_steps) {
  EpochRecord record{epoch_,
                     o_.rate(epoch_, std::max<int64_t>(0, position() - 1)),
                     epoch_loss_ / double(std::max<int64_t>(1, step_in_epoch_)),
                     {},
                     0};
  const auto start = Clock::now();
  const MlLog::Json at = position(epoch_);
  if (epoch_steps > 0) {
    log_training(record.learning_rate, record.loss);
    mllog_.event("tracked_stats", {{"throughput", double(epoch_steps * samples_per_step()) / epoch_seconds}}, at);
  }
  if (source_ && task_.validation_samples() > 0) {
    share_statistics();
    mllog_.start("eval_start", at);
    record.validation = task_.validate(program_, ranks_.others(), stop_point());
    validated_ = true;
    mllog_.end("eval_stop", at);
    note("validation", start);
    task_.log_quality(mllog_, record.validation, at);
  }
  validation_seconds_ += seconds_since(start);
  record.seconds = epoch_seconds + seconds_since(start);
  history_.push_back(record);
  say("epoch {:3d}  lr {:.3g}  loss {:.4f}  validation loss {:.4f}  {} {:.4f}  {:.1f} s\n", epoch_ + 1,
      record.learning_rate, record.loss, record.validation.loss, task_.metric(), record.validation.metric,
      record.seconds);
  std::fflush(stdout);
  if (!source_ || task_.validation_samples() == 0 || record.validation.finite()) return;
  // An arg-max of NaN is a class, too: a network that diverged could reach a target, or be saved over a good one. In
  // f16 whole images overflow while running statistics are young; steps that overflowed were skipped, weights are
  // sound.
  const std::string what = fmt::format("epoch {}: the validation is not finite (loss {}, {} {})", epoch_ + 1,
                                       record.validation.loss, task_.metric(), record.validation.metric);
  if (program_.options().compute != DType::f16)
    throw Error(ErrorKind::diverged, what + "; what was saved last is kept");
  if (ranks_.root()) say(stderr, "warning: {}: it counts for nothing\n", what);
}

void Trainer::log_start() {
  const nlohmann::json& c = o_.config;
  const auto setting = [&](const char* key) { return c.value(key, std::string()); };
  mllog_.event("cache_clear", setting("mlperf-cache-clear") == "true");
  // Version 3 of the rules leaves staging out of what is timed.
  if (o_.staging) mllog_.interval("staging_start", "staging_stop", *o_.staging);
  mllog_.init_start(o_.staging ? o_.staging->second : 0);
  mllog_.event("submission_org", setting("mlperf-org"));
  mllog_.event("submission_division", setting("mlperf-division"));
  mllog_.event("submission_status", setting("mlperf-status"));
  mllog_.event("submission_platform", setting("mlperf-platform"));
  mllog_.event("seed", o_.seed);
  mllog_.event("number_of_ranks", ranks_.size());
  mllog_.event("number_of_nodes", ranks_.nodes());
  mllog_.event("accelerators_per_node", ranks_.devices_on_node());
  mllog_.event("train_samples", task_.training_samples());
  mllog_.event("eval_samples", task_.validation_samples());
  mllog_.event("opt_name", setting("optimizer"));
  task_.log_start(mllog_, global_batch(), samples_per_step());
  mllog_.end("init_stop");
  mllog_.start("run_start");
}

std::optional<Outcome> Trainer::one_epoch() {
  const auto start = Clock::now();
  const int64_t steps_before = step_;
  mllog_.start("epoch_start", position(epoch_));
  train_epoch();
  communication_.end_epoch(!lagged_.empty());
  // A validation may also find that the network has diverged: until then the checkpoint before this one stays.
  const int with_older = o_.keep_checkpoints + 1;
  if (stop_requested_) {
    save(step_in_epoch_ >= steps_per_epoch() ? with_older : o_.keep_checkpoints);
    expect_logs();
    return Outcome::interrupted;
  }
  mllog_.end("epoch_stop", position(epoch_));
  const double seconds = seconds_since(start);
  const bool evaluates = source_ && task_.validation_samples() > 0;
  const bool last = epoch_ + 1 >= o_.epochs || step_limit_reached();
  const bool due = last || meets(epoch_ + 1, o_.checkpoint_epochs) || meets(step_, o_.checkpoint_steps);
  if (step_ > steps_before) newest_.clear();
  // Where the validation fails, a resume begins with it.
  bool saved = step_ == steps_before;
  if (evaluates && due && !saved) save(with_older), expect_logs(), saved = true;
  try {
    validate(seconds, step_ - steps_before);
  } catch (const Interrupted&) {  // on all ranks
    if (!saved) save(with_older);
    expect_logs();
    return Outcome::interrupted;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::diverged) {
      if (ranks_.root()) set_newest_aside("its validation is not finite");
      ranks_.world().barrier();                 // nobody ends the run before that is done
    } else if (!saved && ranks_.size() == 1) {  // a sample that cannot be read; others could not join in saving
      save(with_older);
    }
    throw;
  }
  const bool complete = step_in_epoch_ >= steps_per_epoch();
  if (complete) ++epoch_, step_in_epoch_ = 0;
  unsaved_ = true;
  if (due) save(o_.keep_checkpoints);
  if (ranks_.root()) tables_.write_history(history_, task_.metric());
  if (due) expect_logs();
  if (complete)
    if (const auto stopped = stop_rule(history_.back())) return stopped;
  // A limit of steps ends a run that may have reached its target; the epoch is counted when it is whole.
  if (!complete && step_limit_reached() && reaches_target(history_.back().validation, epoch_))
    return Outcome::target_reached;
  // A signal that came behind the validation ends the run with what is saved, unless there is nothing left to do.
  double requests = wants_stop() ? 1 : 0;
  if (ranks_.size() > 1) ranks_.world().all_reduce_sum(std::span(&requests, 1));
  const bool goes_on = epoch_ < o_.epochs && !step_limit_reached();
  return goes_on && requests > 0 ? std::optional(Outcome::interrupted) : std::nullopt;
}

Outcome Trainer::run() {
  ranks_.agree({{"data", o_.data_digest},
                {"statistics", o_.identity.value("statistics", "")},
                {"parameters", program_.parameters()},
                {"version", version_text()}});
  if (!has_hdf5()) say(stderr, "warning: this build has no HDF5: no checkpoints are written\n");
  if (o_.continues) resume();
  first_step_ = step_;
  communication_.begin();
  // Behind another run's checkpoint, steps that this folder has rows of are not this run's.
  const bool goes_on = o_.resume && !newest_.empty();
  tables_.open(ranks_.root() ? o_.output_dir : "", goes_on ? std::optional(step_) : std::nullopt);
  if (ranks_.root() && o_.resume && (!goes_on || tables_.lacks(history_)))
    tables_.write_history(history_, task_.metric());
  mllog_.open(ranks_.root() ? MlLog::path_of_attempt(o_.output_dir, o_.resume) : "/dev/null");
  if (o_.trace) {
    if (program_.micro()) program_.micro()->start_trace();
    program_.step().start_trace(), ranks_.start_trace();
  }

  log_start();
  if (const std::string lost = lost_log(); !lost.empty()) fail_runtime(lost);
  try {
    const Outcome outcome = run_epochs();
    expect_logs();
    return outcome;
  } catch (...) {  // a log has one beginning and one end
    mllog_.end("run_stop", {{"status", "aborted"}});
    throw;
  }
}

Outcome Trainer::run_epochs() {
  std::optional<Outcome> stopped;
  for (const EpochRecord& record : history_)
    if (!stopped) stopped = stop_rule(record);
  // An epoch whose steps are done lacks its validation, which no limit of steps leaves out.
  const auto unfinished = [this] { return !step_limit_reached() || step_in_epoch_ >= steps_per_epoch(); };
  while (epoch_ < o_.epochs && !stopped && unfinished()) stopped = one_epoch();
  Outcome outcome = stopped.value_or(Outcome::finished);
  if (unsaved_) save(o_.keep_checkpoints), expect_logs();  // stopped behind an epoch that is not saved otherwise
  // A resumed run with nothing left to do still reports what its weights are worth.
  if (!validated_ && source_ && task_.validation_samples() > 0 && outcome != Outcome::interrupted) {
    const auto start = Clock::now();
    try {
      const Quality quality = task_.validate(program_, ranks_.others(), stop_point());
      if (outcome == Outcome::finished && reaches_target(quality, epoch_)) outcome = Outcome::target_reached;
      note("validation", start);
      if (task_.renews_statistics()) save(o_.keep_checkpoints);  // by which the weights were judged
    } catch (const Interrupted&) {
      outcome = Outcome::interrupted;  // nothing is lost: the weights are saved
    }
  }
  settle();
  program_.step().leave_peers();
  const bool success = !task_.target() ? outcome != Outcome::interrupted : outcome == Outcome::target_reached;
  mllog_.end("run_stop", {{"status", success ? "success" : "aborted"}});
  return outcome;
}

}  // namespace convoy::apps
