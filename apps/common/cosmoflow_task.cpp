#include "apps/common/cosmoflow_task.h"

#include "core/philox.h"

namespace convoy::apps {

std::shared_ptr<const SampleSource> CosmoflowTask::training() const {
  return s_.dummy_samples > 0 ? nullptr : std::make_shared<CosmoflowSource>(train_, s_.reading);
}

Quality CosmoflowTask::validate(Program& program, Communicator* ranks, const StopPoint& stop) {
  result_ = predict(program, validation_, s_.reading, s_.loader, ranks, stop);
  const double scale = s_.reading.target_scale;  // predictions come back in the labels' units
  const double data_loss = s_.loss == Loss::mse ? scale * scale * result_.mse() : scale * result_.mae();
  return {data_loss + penalty(program), result_.mae()};
}

/// Keras' losses of validation hold the penalty as those of training do; early stopping and the reference's figure of
/// merit look at it.
double CosmoflowTask::penalty(Program& program) const {
  if (s_.l2 == 0) return 0;
  program.to_host(s_.penalised);
  double squares = 0;
  for (const std::string& name : s_.penalised)
    for (const float w : program.store().get(name).span<float>()) squares += double(w) * double(w);
  return s_.l2 * squares;
}

void CosmoflowTask::fill_dummy(const Tensor& x, const Tensor& y, uint64_t seed) const {
  const PhiloxStream random(seed, hash_name("dummy"));
  for_random_words(x, random, [&](int64_t i, uint32_t word) {
    if (x.dtype() == DType::f32)
      x.data<float>()[i] = uniform01(word);
    else
      x.data<int16_t>()[i] = static_cast<int16_t>(word % 3);
  });
  for (int64_t i = 0; i < y.shape().elements(); ++i) y.data<float>()[i] = random.uniform(static_cast<uint64_t>(i));
}

void CosmoflowTask::log_start(MlLog& log, int64_t, int64_t samples_per_step) const {
  const LrSchedule& schedule = s_.schedule;
  const double peak = schedule.peak(double(s_.batch));
  log.event("submission_benchmark", "cosmoflow");
  log.event("global_batch_size", samples_per_step);
  log.event("opt_base_learning_rate", peak);
  log.event("opt_learning_rate_warmup_epochs", schedule.warmup_epochs);
  log.event("opt_learning_rate_warmup_factor", peak / schedule.base_rate);
  nlohmann::json boundaries = nlohmann::json::array(), factors = nlohmann::json::array();
  for (const auto& [boundary, factor] : schedule.decay) boundaries.push_back(boundary), factors.push_back(factor);
  log.event("opt_learning_rate_decay_boundary_epochs", boundaries);
  log.event("opt_learning_rate_decay_factor", factors);
  log.event("dropout", s_.dropout);
  log.event("opt_weight_decay", s_.weight_decay);
}

void CosmoflowTask::log_quality(MlLog& log, const Quality& quality, const MlLog::Json& metadata) const {
  log.event("eval_error", quality.metric, metadata);
}

}  // namespace convoy::apps
