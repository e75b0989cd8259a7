#include "apps/common/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <sstream>

#include "apps/common/profile.h"
#include "apps/common/version.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/hdf5.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t signal_received = 0;

extern "C" void on_signal(int number) {
  if (signal_received) _exit(128 + number);
  signal_received = number;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
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

Trainer::Trainer(Program& program, std::vector<SampleRef> train, std::vector<SampleRef> validation,
                 LoaderOptions loader, TrainerOptions options)
    : program_(program),
      train_(std::move(train)),
      validation_(std::move(validation)),
      loader_options_(std::move(loader)),
      o_(std::move(options)),
      mllog_(o_.output_dir + "/mlperf.log") {
  if (steps_per_epoch() < 1)
    fail_usage(fmt::format("--batch-size {} exceeds the {} training samples", batch(), train_.size()));
}

bool Trainer::stop_requested() const {
  return signal_received != 0;
}

std::string Trainer::meta() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const EpochRecord& r : history_)
    if (r.epoch < epoch_)  // an epoch cut short by --max-steps is not part of what a resume continues
      rows.push_back({r.epoch, r.learning_rate, r.loss, r.validation_loss, r.validation_mae, r.seconds});
  return nlohmann::json{
      {"epoch", epoch_}, {"step_in_epoch", step_in_epoch_}, {"step", step_},       {"epoch_loss", epoch_loss_},
      {"history", rows}, {"identity", o_.identity},         {"config", o_.config}, {"version", version_text()}}
      .dump();
}

void Trainer::resume() {
  for (const CheckpointFile& file : list_checkpoints(o_.output_dir)) {
    try {
      const auto meta = nlohmann::json::parse(read_checkpoint_meta(file.path));
      for (const auto& [key, value] : o_.identity.items()) {
        const nlohmann::json saved = meta.at("identity").value(key, nlohmann::json());
        if (saved != value)
          fail_usage(fmt::format("--resume: {}: setting {}: expected {}, found {}", file.path, key, saved.dump(),
                                 value.dump()));
      }
      const auto number = [](const nlohmann::json& v) {
        return v.is_null() ? NAN : v.get<double>();
      };  // JSON has no NaN
      std::vector<EpochRecord> history;
      for (const auto& r : meta.at("history"))
        history.push_back(
            {r.at(0), number(r.at(1)), number(r.at(2)), number(r.at(3)), number(r.at(4)), number(r.at(5))});
      const int64_t epoch = meta.at("epoch"), step_in_epoch = meta.at("step_in_epoch"), step = meta.at("step");
      const double epoch_loss = number(meta.at("epoch_loss"));
      load_checkpoint(file.path, program_.store());
      // Nothing below can fail: either all of the checkpoint is taken or none.
      history_ = std::move(history), epoch_ = epoch, step_in_epoch_ = step_in_epoch, step_ = step,
      epoch_loss_ = epoch_loss;
      fmt::print("resuming from {} at epoch {}, step {}\n", file.path, epoch_, step_);
      return;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::data) throw;
      fmt::print(stderr, "warning: skipping a damaged checkpoint: {}\n", error.what());
    } catch (const nlohmann::json::exception& error) {
      fmt::print(stderr, "warning: skipping a damaged checkpoint: {}: {}\n", file.path, error.what());
    }
  }
  fmt::print("no checkpoint in {}: starting from the beginning\n", o_.output_dir);
}

void Trainer::save() {
  if (!has_hdf5()) return;  // such a build says so when it starts
  const auto start = Clock::now();
  save_checkpoint(o_.output_dir, step_, program_.store(), meta(), o_.keep_checkpoints);
  checkpoint_seconds_ += seconds_since(start);
}

/// Uniform random inputs in [0, 1), or counts of the same mean: what the reference's dummy data set does.
void Trainer::fill_dummy() {
  Executor& e = program_.step();
  const PhiloxStream random(o_.seed, hash_name("dummy"));
  const Tensor x = e.tensor("x"), y = e.tensor("target");
  const int64_t elements = x.shape().elements();
  for (int64_t i = 0; i < elements; i += 4) {
    const PhiloxBlock block = random.block(static_cast<uint64_t>(i));
    for (int64_t k = 0; k < std::min<int64_t>(4, elements - i); ++k) {
      if (x.dtype() == DType::f32)
        x.data<float>()[i + k] = uniform01(block[static_cast<size_t>(k)]);
      else
        x.data<int16_t>()[i + k] = static_cast<int16_t>(block[static_cast<size_t>(k)] % 3);
    }
  }
  for (int64_t i = 0; i < y.shape().elements(); ++i) y.data<float>()[i] = random.uniform(static_cast<uint64_t>(i));
}

void Trainer::check_finite(float loss) {
  Executor& e = program_.step();
  if (e.tensor("finite").data<float>()[0] != 0) return;
  const double* scale = program_.store().get(scale_state_name).data<double>();
  // f16 overflows now and then: the update was skipped and the scale halved. A scale that keeps falling is divergence.
  const bool scaled = program_.options().compute == DType::f16;
  if (scaled && std::isfinite(loss) && scale[int(ScaleField::scale)] >= 1) return;
  refill_inputs();  // the arena reused their memory
  const std::string node = e.find_non_finite();
  throw Error(ErrorKind::diverged,
              fmt::format("step {}: not finite (loss {}): first at {}; parameters keep the values of step {}", step_,
                          loss, node.empty() ? "the gradients" : node, step_));
}

void Trainer::refill_inputs() {
  if (o_.dummy_data) return fill_dummy();
  Loader loader(train_, loader_options_, epoch_, step_in_epoch_ * batch());
  const Tensor x = program_.step().tensor("x"), y = program_.step().tensor("target");
  for (int64_t n = 0; n < batch(); ++n)
    loader.next(x.bytes() + n * (x.desc().bytes() / batch()), y.data<float>() + n * y.shape().c());
}

std::optional<Outcome> Trainer::stop_rule(const EpochRecord& record) {
  if (o_.target_mae >= 0 && record.validation_mae <= o_.target_mae) return Outcome::target_reached;
  since_best_ = record.validation_loss < best_loss_ - 1e-5 ? 0 : since_best_ + 1;
  best_loss_ = std::min(best_loss_, record.validation_loss);
  if (o_.early_stopping > 0 && since_best_ >= o_.early_stopping) return Outcome::stopped_early;
  return std::nullopt;
}

void Trainer::one_step(Loader* loader, double rate) {
  const auto start = Clock::now();
  Executor& e = program_.step();
  const Tensor x = e.tensor("x"), y = e.tensor("target");
  double wait = 0;
  if (loader) {
    const double before = loader->wait_seconds();
    const int64_t sample_bytes = x.desc().bytes() / batch();
    for (int64_t n = 0; n < batch(); ++n)
      loader->next(x.bytes() + n * sample_bytes, y.data<float>() + n * y.shape().c());
    wait = loader->wait_seconds() - before;
  } else {
    fill_dummy();
  }
  const auto compute_start = Clock::now();
  double* state = program_.store().get(step_state_name).data<double>();
  state[int(StepField::learning_rate)] = rate;
  state[int(StepField::step)] = double(step_);
  state[int(StepField::seed_low)] = double(o_.seed & 0xffffffffu);
  state[int(StepField::seed_high)] = double(o_.seed >> 32);
  state[int(StepField::first_sample)] = double(step_ * batch());
  e.run();
  const float loss = e.tensor("loss").data<float>()[0];
  check_finite(loss);
  // Dummy inputs are rewritten because the arena reuses their memory; that is not part of the step.
  const double seconds = loader ? seconds_since(start) : seconds_since(compute_start);
  wait_seconds_ += wait, train_seconds_ += seconds, epoch_loss_ += loss;
  step_seconds_.push_back(seconds);
  metrics_ << nlohmann::json{{"step", step_},         {"epoch", epoch_},    {"loss", loss},
                             {"learning_rate", rate}, {"seconds", seconds}, {"data_wait_seconds", wait}}
                  .dump()
           << std::endl;
  ++step_, ++step_in_epoch_;
}

void Trainer::train_epoch() {
  const double rate = o_.schedule.rate(epoch_, double(batch()));
  std::unique_ptr<Loader> loader;
  if (!o_.dummy_data) loader = std::make_unique<Loader>(train_, loader_options_, epoch_, step_in_epoch_ * batch());
  const bool terminal = isatty(STDOUT_FILENO);
  if (step_in_epoch_ == 0) epoch_loss_ = 0;
  while (step_in_epoch_ < steps_per_epoch() && !step_limit_reached()) {
    one_step(loader.get(), rate);
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

void Trainer::validate(double epoch_seconds) {
  EpochRecord record{epoch_,
                     o_.schedule.rate(epoch_, double(batch())),
                     epoch_loss_ / double(std::max<int64_t>(1, step_in_epoch_)),
                     NAN,
                     NAN,
                     0};
  const auto start = Clock::now();
  const nlohmann::json number = {{"epoch_num", epoch_ + 1}};
  if (!o_.dummy_data && !validation_.empty()) {
    mllog_.start("eval_start", number);
    validation_result_ = predict(program_, validation_, loader_options_);
    record.validation_loss = validation_result_.mse();
    record.validation_mae = validation_result_.mae();
    mllog_.end("eval_stop", number);
    mllog_.event("eval_error", record.validation_mae, number);
  }
  validation_seconds_ += seconds_since(start);
  record.seconds = epoch_seconds + seconds_since(start);
  history_.push_back(record);
  write_history();
  fmt::print("epoch {:3d}  lr {:.3g}  loss {:.4f}  validation loss {:.4f}  MAE {:.4f}  {:.1f} s\n", epoch_ + 1,
             record.learning_rate, record.loss, record.validation_loss, record.validation_mae, record.seconds);
  std::fflush(stdout);
}

void Trainer::write_history() const {
  std::string text = "epoch,lr,loss,val_loss,val_mae,time\n";
  for (const EpochRecord& r : history_)
    text += fmt::format("{},{:.9g},{:.9g},{:.9g},{:.9g},{:.3f}\n", r.epoch, r.learning_rate, r.loss, r.validation_loss,
                        r.validation_mae, r.seconds);
  write_text(o_.output_dir + "/history.csv", text);
}

Outcome Trainer::run() {
  if (!o_.resume && !list_checkpoints(o_.output_dir).empty())
    fail_usage(o_.output_dir +
               " holds checkpoints of another run: continue it with --resume, or choose another --output-dir");
  if (!has_hdf5()) fmt::print(stderr, "warning: this build has no HDF5: no checkpoints are written\n");
  if (o_.resume) resume();
  first_step_ = step_;
  const std::string metrics_path = o_.output_dir + "/metrics.jsonl";
  if (o_.resume && fs::exists(metrics_path)) keep_lines_before(metrics_path, step_);
  metrics_.open(metrics_path, o_.resume ? std::ios::app : std::ios::trunc);
  if (!metrics_) fail_runtime(metrics_path + ": cannot open for writing");
  if (o_.trace) program_.step().start_trace();

  const nlohmann::json& c = o_.config;
  const auto setting = [&](const char* key) { return c.value(key, std::string()); };
  mllog_.event("cache_clear", true);
  mllog_.start("init_start");
  mllog_.event("submission_benchmark", "cosmoflow");
  mllog_.event("submission_org", setting("mlperf-org"));
  mllog_.event("submission_division", setting("mlperf-division"));
  mllog_.event("submission_status", setting("mlperf-status"));
  mllog_.event("submission_platform", setting("mlperf-platform"));
  mllog_.event("seed", o_.seed);
  mllog_.event("number_of_ranks", 1);
  mllog_.event("number_of_nodes", 1);
  mllog_.event("accelerators_per_node", 0);
  mllog_.event("global_batch_size", batch());
  mllog_.event("train_samples", train_.size());
  mllog_.event("eval_samples", validation_.size());
  mllog_.event("opt_name", setting("optimizer"));
  mllog_.event("opt_base_learning_rate", o_.schedule.peak(double(batch())));
  mllog_.event("opt_learning_rate_warmup_epochs", o_.schedule.warmup_epochs);
  mllog_.event("opt_learning_rate_warmup_factor", o_.schedule.peak(double(batch())) / o_.schedule.base_rate);
  nlohmann::json boundaries = nlohmann::json::array(), factors = nlohmann::json::array();
  for (const auto& [boundary, factor] : o_.schedule.decay) boundaries.push_back(boundary), factors.push_back(factor);
  mllog_.event("opt_learning_rate_decay_boundary_epochs", boundaries);
  mllog_.event("opt_learning_rate_decay_factor", factors);
  mllog_.event("dropout", program_.options().model.dropout);
  mllog_.event("opt_weight_decay", program_.options().training.l2);
  mllog_.end("init_stop");
  mllog_.start("run_start");

  std::optional<Outcome> stopped;
  for (const EpochRecord& record : history_)
    if (!stopped) stopped = stop_rule(record);
  while (epoch_ < o_.epochs && !stopped && !step_limit_reached()) {
    const auto start = Clock::now();
    mllog_.start("epoch_start", {{"epoch_num", epoch_ + 1}});
    train_epoch();
    if (interrupted_) {
      save();
      stopped = Outcome::interrupted;
      break;
    }
    mllog_.end("epoch_stop", {{"epoch_num", epoch_ + 1}});
    validate(seconds_since(start));
    const bool complete = step_in_epoch_ == steps_per_epoch();
    if (complete) ++epoch_, step_in_epoch_ = 0;
    save();
    if (complete) stopped = stop_rule(history_.back());
    if (!stopped && stop_requested()) stopped = Outcome::interrupted;
  }
  const Outcome outcome = stopped.value_or(Outcome::finished);
  // A resumed run with nothing left to do still reports what its weights are worth.
  if (validation_result_.count() == 0 && !validation_.empty() && !o_.dummy_data && outcome != Outcome::interrupted)
    validation_result_ = predict(program_, validation_, loader_options_);
  const bool success = o_.target_mae < 0 ? outcome != Outcome::interrupted : outcome == Outcome::target_reached;
  mllog_.end("run_stop", {{"status", success ? "success" : "aborted"}});
  if (o_.trace) write_text(o_.output_dir + "/trace.json", chrome_trace(program_.step()));
  return outcome;
}

nlohmann::json Trainer::summary() const {
  // The first step pays for page faults and first touches.
  const std::vector<double> steady(step_seconds_.begin() + (step_seconds_.size() > 1 ? 1 : 0), step_seconds_.end());
  const double middle = median(steady);
  return {
      {"steps", step_ - first_step_},
      {"median_step_seconds", middle},
      {"samples_per_second", middle > 0 ? double(batch()) / middle : 0},
      {"mean_samples_per_second", train_seconds_ > 0 ? double((step_ - first_step_) * batch()) / train_seconds_ : 0},
      {"data_wait_fraction", train_seconds_ > 0 ? wait_seconds_ / train_seconds_ : 0},
      {"skipped_updates", program_.store().get(scale_state_name).data<double>()[int(ScaleField::skipped)]},
      {"seconds",
       {{"training", train_seconds_},
        {"data_wait", wait_seconds_},
        {"validation", validation_seconds_},
        {"checkpoints", checkpoint_seconds_}}},
      {"step_phases", phase_seconds(program_.step())}};
}

}  // namespace convoy::apps
