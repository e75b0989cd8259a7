// A program: the training step and the evaluation tape of one model over one store and one arena.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/executor.h"
#include "layers/training.h"
#include "models/climate.h"
#include "models/cosmoflow.h"

namespace convoy {

/// What every network's program is told. Those that record it look at the first three.
struct ProgramOptions {
  int64_t batch = 1;
  int64_t evaluation_batch = 1;
  DType input_type = DType::i16;
  DType compute = DType::f32;  ///< f64 records everything in f64 and runs the references: for checks of gradients
  bool fuse = true;
  bool sparse_gradients = true;  ///< weight gradients from pooled gradients (sums in another order)
  bool gradient_sums = true;     ///< data gradients on top of what they are added to (sums in another order)
  TrainingOptions training;
  PlanOptions plan;
};

/// To record a network on.
Tape new_tape(const ProgramOptions& options);
/// Under this name a forward pass keeps the loss that it is trained by.
inline constexpr const char* data_loss_name = "data_loss";
/// Which end a training tape gets: parameters are updated, or gradients added to states (add_accumulation).
enum class Ending : uint8_t { update, accumulate };
/// Makes a training tape of a recorded forward pass that keeps `data_loss_name`: precision, fusing, gradients and what
/// becomes of them (add_training), fusing behind them, as the options say. Values that it keeps stay kept; where
/// no penalty is added and neither passes nor ranks are averaged, the loss is called "loss" from there on. With compute
/// f16 a constant loss scale becomes a dynamic one, which begins as 32768 where the options do not say, unless it
/// `scaling_stays`. The kept loss is the output of a loss or pixel_loss node itself. Throws Error(usage) where none is
/// kept, or a sum or multiple of some, for options out of range, and for tapes that were not recorded in the type of
/// new_tape.
Tape finish_training(Tape forward, const ProgramOptions& options, Ending ending = Ending::update);
/// The same for a forward pass that evaluates: precision and fusing.
Tape finish_evaluation(Tape forward, const ProgramOptions& options);

struct CosmoflowOptions : ProgramOptions {
  CosmoflowConfig model;
  Normalisation normalisation = Normalisation::log1p;
  Loss loss = Loss::mse;
};

struct ClimateOptions : ProgramOptions {
  ClimateConfig model;
  /// Size of the images that are evaluated; both 0 = as in training, which may see crops.
  int64_t evaluation_height = 0, evaluation_width = 0;
  PixelLossAttrs loss;
  bool statistics_pass = false;  ///< also plan the pass of statistics_tape()
  ClimateOptions() { input_type = DType::f32; }
};

/// Forward, gradients and update for `batch` samples. Inputs "x" and "target" (N,1,1,1,targets), or labels u8
/// (N,1,H,W,1); kept "loss", "prediction" (climate: "logits" and "target"), "finite". The L2 penalty applies to the
/// weights that TrainingOptions names; where it names none, to those of CosmoFlow's hidden dense layers, and climate
/// networks refuse it. With Ending::accumulate the same up to the gradients, which are added to states: the passes
/// ahead of an update with TrainingOptions::accumulation above 1.
Tape training_tape(const CosmoflowOptions& options, Ending ending = Ending::update);
Tape training_tape(const ClimateOptions& options, Ending ending = Ending::update);
/// The weights that the L2 penalty of these applies to.
std::vector<std::string> penalised_parameters(const CosmoflowOptions& options);
/// Forward only, for `evaluation_batch` samples. Input "x"; kept "prediction" (climate: the class per pixel, u8, the
/// "logits", and with input "target" the "loss").
Tape evaluation_tape(const CosmoflowOptions& options);
Tape evaluation_tape(const ClimateOptions& options);
/// Forward over `evaluation_batch` images of the evaluation's size, each layer normalised by their moments, which
/// replace the running means and variances (the unbiased ones). Input "x"; nothing is kept: what lies behind the last
/// batch norm does not run.
Tape statistics_tape(const ClimateOptions& options);

struct NetworkCounts {
  int64_t parameters = 0;
  int64_t unread_parameters = 0;  ///< of layers that the published program makes, too, and whose output nobody reads
  int64_t forward_flops = 0;      ///< convolutions and dense layers, dense count
  int64_t counted_flops = 0;   ///< the same as TensorFlow's graph counter sees it (padding of strided, dilated layers)
  int64_t training_flops = 0;  ///< the same with all backward passes that a step runs
};
/// For one sample.
NetworkCounts count_network(const CosmoflowConfig& model);
NetworkCounts count_network(const ClimateConfig& model);

/// All that a program runs.
struct ProgramTapes {
  Tape step, evaluate;
  std::optional<Tape> micro;       ///< with gradient accumulation: Ending::accumulate
  std::optional<Tape> statistics;  ///< with ClimateOptions::statistics_pass
};
ProgramTapes program_tapes(const CosmoflowOptions& options);
ProgramTapes program_tapes(const ClimateOptions& options);

/// Plans of the tapes; nothing is allocated (the trainer's --dry-run stops here).
struct ProgramPlans {
  Tape step_tape, evaluate_tape;
  Plan step, evaluate;
  std::optional<Plan> micro, statistics;
  /// Not where plan_evaluation made them: the step is empty.
  bool trains() const { return !step_tape.nodes().empty(); }
  std::vector<const Plan*> all() const {
    std::vector<const Plan*> list{&step, &evaluate};
    for (const std::optional<Plan>* plan : {&micro, &statistics})
      if (*plan) list.push_back(&**plan);
    return list;
  }
  int64_t arena_bytes() const {
    return std::max({step.arena_bytes, evaluate.arena_bytes, micro ? micro->arena_bytes : 0,
                     statistics ? statistics->arena_bytes : 0});
  }
  /// What holds the network's parameters: the step's tape, or the evaluation's where nothing trains.
  const Tape& network() const { return trains() ? step_tape : evaluate_tape; }
  /// States that this rank has for itself.
  int64_t own_state_bytes() const;
  int64_t own_bytes() const { return own_state_bytes() + arena_bytes(); }
  /// Of memory that all ranks of the team see: what runs need, then states.
  int64_t shared_bytes() const { return shared_states_begin() + step.shared_state_bytes; }
  int64_t shared_states_begin() const { return std::max(step.shared_bytes, micro ? micro->shared_bytes : 0); }
};
/// Of any network's tapes. Throws Error(usage) as make_plan does, for overrides, by name or pattern, that speak of no
/// node of a program that trains, and where only one of step and micro speaks of accumulation.
ProgramPlans plan_program(ProgramTapes tapes, const PlanOptions& options, const KernelList& kernels);
template <class Options>
ProgramPlans plan_program(const Options& options, const KernelList& kernels) {
  return plan_program(program_tapes(options), options.plan, kernels);
}
/// For a program that only predicts: no memory for gradients, nor states of an optimizer.
template <class Options>
ProgramPlans plan_evaluation(const Options& options, const KernelList& kernels) {
  return plan_program({new_tape(options), evaluation_tape(options), {}, {}}, options.plan, kernels);
}

/// A network in training. Ahead of each run of step() or micro() the host fills its inputs, whose memory it uses again,
/// and sets the clock. With gradient accumulation micro() runs `accumulation` - 1 times ahead of each step().
class Program {
 public:
  /// Draws initial parameters from `seed` and allocates; `options` are those that the tapes and plans were made with.
  /// `shared` is the team's memory. Its states are filled by the member at place 0: the others wait for it before they
  /// read them.
  Program(ProgramPlans plans, const ProgramOptions& options, uint64_t seed,
          const std::shared_ptr<Buffer>& shared = nullptr);
  /// On an accelerator, for plans made for its kind.
  Program(ProgramPlans plans, const ProgramOptions& options, uint64_t seed, std::shared_ptr<Device> device);
  bool on_device() const { return device_ != nullptr; }
  /// Copies all states of the store to the device, after they were loaded or set; without a device: nothing.
  void to_device();
  /// And back, before they are saved or read.
  void to_host();
  /// Those of these names alone.
  void to_device(std::span<const std::string> states);
  void to_host(std::span<const std::string> states);
  /// Not of plan_evaluation's.
  Executor& step() { return *step_; }
  Executor& evaluate() { return *evaluate_; }
  /// What the next pass is: the learning rate (0 at first: nothing is learnt), what dropout draws from, and, with
  /// gradient accumulation, which pass of its step (StepClock::micro_step: 0 begins a new sum).
  void set_clock(const StepClock& clock) { clock.write(store_.get(step_state_name).data<double>()); }
  /// The pass that only adds up gradients; null without accumulation.
  Executor* micro() { return micro_.get(); }
  /// The pass that takes the moments of its images as running statistics; null without ClimateOptions::statistics_pass.
  Executor* statistics_pass() { return statistics_pass_.get(); }
  StateStore& store() { return store_; }
  const ProgramOptions& options() const { return options_; }
  /// Names of the trainable states, in network order.
  const std::vector<std::string>& parameters() const { return parameters_; }
  /// States that evaluation reads but no gradient changes: running means and variances.
  const std::vector<std::string>& statistics() const { return statistics_; }

 private:
  void initialise(const ProgramPlans& plans, uint64_t seed);
  template <class Make>
  void make_executors(ProgramPlans& plans, Make&& make);
  void upload(const std::string& state);
  void download(const std::string& state);
  ProgramOptions options_;
  StateStore store_;
  std::shared_ptr<Device> device_;
  StateStore device_states_;
  std::vector<std::string> parameters_, statistics_;
  std::unique_ptr<Executor> step_, evaluate_, micro_, statistics_pass_;
};

}  // namespace convoy
