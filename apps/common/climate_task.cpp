#include "apps/common/climate_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "apps/common/recalibration.h"
#include "apps/common/say.h"
#include "core/error.h"
#include "core/philox.h"

namespace convoy::apps {

Quality ClimateTask::validate(Program& program, Communicator* ranks, const StopPoint& stop) {
  if (s_.recalibration_images > 0)
    renew_statistics(program, s_.recalibration, s_.recalibration_images, s_.loader, ranks, stop);
  const auto draw = [&](int64_t i, std::span<const uint8_t> predicted) {
    const std::string path = fmt::format("{}/validation-{}.png", s_.output_dir, i);
    try {
      write_comparison(path, s_.validation->images()[static_cast<size_t>(i)], predicted, s_.validation->reading());
    } catch (const Error& error) {  // a picture is worth less than the steps that are not saved yet
      if (error.kind() != ErrorKind::runtime) throw;
      say(stderr, "warning: {}: the picture is left out\n", error.what());
    }
  };
  const int64_t pictures = std::min(s_.pictures, s_.validation->size());
  std::map<int64_t, std::vector<uint8_t>> own;  // of several ranks, each has evaluated other images
  const auto keep = [&](int64_t i, std::span<const uint8_t> predicted) {
    if (i >= pictures) return;
    if (ranks)
      own[i].assign(predicted.begin(), predicted.end());
    else
      draw(i, predicted);
  };
  result_ = evaluate_climate(program, s_.validation, s_.loader, ranks, keep, stop);
  if (ranks)  // rank 0 draws them all: the others may not see the run's folder
    for (int64_t i = 0; i < pictures; ++i) {
      std::vector<uint8_t>& classes = own[i];
      classes.resize(static_cast<size_t>(s_.validation->target_bytes()));
      ranks->broadcast(std::as_writable_bytes(std::span(classes)), static_cast<int>(i % s_.loader.ranks));
      if (s_.loader.rank == 0) draw(i, classes);
      own.erase(i);
    }
  const SegmentationScore& score = result_->score;
  if (score.samples == 0)
    fail_data(fmt::format("{}: expected a class below 255 in this or another of {} validation images, found none",
                          s_.validation->images()[0].path, s_.validation->size()));
  const double values[] = {score.mlperf(), score.pooled.mean_iou(), score.pooled.iou(1), score.pooled.iou(2)};
  say("  {}\n", iou_text(score));
  return {result_->loss, values[static_cast<int>(s_.measure)]};
}

void ClimateTask::fill_dummy(const Tensor& x, const Tensor& y, uint64_t seed) const {
  const PhiloxStream random(seed, hash_name("dummy"));
  for_random_words(x, random, [&](int64_t i, uint32_t word) { x.data<float>()[i] = uniform01(word); });
  for (int64_t i = 0; i < y.shape().elements(); ++i)
    y.data<uint8_t>()[i] = static_cast<uint8_t>(random.below(static_cast<uint64_t>(i), 64) / 30);
}

void ClimateTask::log_start(MlLog& log, int64_t samples_per_pass, int64_t) const {
  using Json = nlohmann::json;
  const bool lamb = s_.training.optimizer == OptimizerKind::lamb, sgd = s_.training.optimizer == OptimizerKind::sgd;
  const double beta1 = lamb ? s_.training.lamb.beta1 : s_.training.adam.beta1,
               beta2 = lamb ? s_.training.lamb.beta2 : s_.training.adam.beta2;
  log.event("submission_benchmark", "deepcam");
  log.event("global_batch_size", samples_per_pass);  // gradient_accumulation_frequency stands beside it
  log.event("batchnorm_group_size", s_.training.averaging.batch_norm_ranks);
  log.event("batchnorm_group_stride", 1);
  log.event("gradient_accumulation_frequency", s_.training.accumulation);
  log.event("opt_lr", s_.schedule.base_rate);
  if (!sgd) {
    log.event("opt_betas", Json::array({beta1, beta2}));
    log.event("opt_eps", lamb ? s_.training.lamb.epsilon : s_.training.adam.epsilon);
  }
  const double adam_decay = s_.training.adam.weight_decay + s_.training.adam.l2;
  log.event("opt_weight_decay", sgd ? 0 : lamb ? s_.training.lamb.weight_decay : adam_decay);
  if (lamb) {
    log.event("opt_bias_correction", true);
    log.event("opt_grad_averaging", true);
    log.event("opt_max_grad_norm", s_.training.lamb.max_grad_norm);
  }
  using Kind = StepSchedule::Kind;
  const char* kinds[] = {"constant", "multistep", "cosine_annealing", "polynomial"};
  log.event("scheduler_type", kinds[static_cast<int>(s_.schedule.kind)]);
  log.event("scheduler_lr_warmup_steps", s_.schedule.warmup_steps);
  log.event("scheduler_lr_warmup_factor", s_.schedule.warmup_factor);
  if (s_.schedule.kind == Kind::multistep) {
    log.event("scheduler_milestones", s_.schedule.milestones);
    log.event("scheduler_decay_rate", s_.schedule.decay_rate);
  } else if (s_.schedule.kind == Kind::cosine) {
    log.event("scheduler_t_max", s_.schedule.length);
    log.event("scheduler_eta_min", s_.schedule.eta_min);
  }
}

/// MLPerf's IoU of the samples of the last pass.
void ClimateTask::log_training(MlLog& log, Executor& step, Communicator* ranks, const MlLog::Json& metadata) const {
  const Tensor logits = step.tensor("logits"), target = step.tensor("target");
  const Shape& s = logits.shape();
  const int64_t pixels = s.h() * s.w();
  std::vector<uint8_t> predicted(static_cast<size_t>(pixels));
  SegmentationScore score;
  for (int64_t n = 0; n < s.n(); ++n) {
    for (int64_t h = 0; h < s.h(); ++h)
      for (int64_t w = 0; w < s.w(); ++w) {
        int64_t best = 0;
        for (int64_t k = 1; k < s.c(); ++k)
          if (logits.at(n, 0, h, w, k) > logits.at(n, 0, h, w, best)) best = k;
        predicted[static_cast<size_t>(h * s.w() + w)] = static_cast<uint8_t>(best);
      }
    score.add(target.span<uint8_t>().subspan(static_cast<size_t>(n * pixels), static_cast<size_t>(pixels)), predicted);
  }
  if (ranks) score.add_ranks(*ranks);
  log.event("train_accuracy", score.mlperf(), metadata);
}

void ClimateTask::log_quality(MlLog& log, const Quality& quality, const MlLog::Json& metadata) const {
  log.event("eval_accuracy", result_->score.mlperf(), metadata);
  log.event("eval_loss", quality.loss, metadata);
}

}  // namespace convoy::apps
