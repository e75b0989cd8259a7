#include "apps/common/cosmoflow_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/common/optimizer_setup.h"
#include "core/parallel.h"
#include "core/text.h"

namespace convoy::apps {
namespace {

using K = Option::Kind;

constexpr int64_t most_extent = 1024, most_channels = 1 << 16, most_targets = 1 << 20;

/// "128,128,128,4" (a YAML sample_shape) -> 128 and 4; `what` names it in errors.
std::pair<int64_t, int64_t> cube_shape(const std::string& what, const std::string& text) {
  const auto parts = split(text, ',');
  std::vector<int64_t> e;
  for (std::string_view p : parts) e.push_back(parse_number<int64_t>(trim(p), what));
  if (e.size() != 4 || e[0] != e[1] || e[1] != e[2]) fail_usage(what + ": expected D,D,D,channels, found " + text);
  if (e[0] < 1 || e[3] < 1 || e[0] > most_extent || e[3] > most_channels)
    fail_usage(fmt::format("{}: expected 1 to {} voxels and 1 to {} channels, found {}", what, most_extent,
                           most_channels, text));
  return {e[0], e[3]};
}

}  // namespace

std::vector<Option> model_options() {
  std::vector<Option> list{
      {"data-dir", "data.data_dir", "",
       "folder with train/ and validation/, with train/ alone, or with universes to split"},
      Option{"model", "", "mlperf",
             "mlperf, lbann (LBANN's: mean pools, 16 to 256 channels) or sc18 (the 2018 paper's seven convolutions)"}
          .one_of({{"mlperf"}, {"lbann"}, {"sc18"}}),
      Option{"size", "", "0",
             "extent of the cubes (0 = what the data holds; of whole universes in HDF5 cubes of at most 128)",
             K::integer}
          .within(0, most_extent),
      {"sample-shape", "data.sample_shape", "", "D,D,D,channels, as in the reference's YAML"},
      {"input-shape", "model.input_shape", "", "D,D,D,channels, must agree with sample-shape"},
      Option{"targets", "model.target_size", "0", "outputs (0 = what the data holds)", K::integer}.within(0,
                                                                                                          most_targets),
      {"target-shape", "data.target_shape", "", "the reference's name for targets"},
      Option{"kernel-size", "model.kernel_size", "3", "extent of the convolution kernels", K::integer}.within(1, 64),
      Option{"conv-size", "model.conv_size", "",
             "channels of the first convolution, doubled from block to block (default: 32, 16 in lbann, where they end "
             "at 256)",
             K::integer}
          .within(1, 512),
      Option{"conv-layers", "model.n_conv_layers", "0",
             "convolution blocks (0 = log2(size) - 2; of mlperf's, channels then end at 512, or at the fifth block's "
             "where that has more)",
             K::integer}
          .within(0, 64),
      Option{"fc1-size", "model.fc1_size", "", "units of the first dense layer (default: 128, 2048 in lbann)",
             K::integer}
          .within(1, 1 << 20),
      Option{"fc2-size", "model.fc2_size", "", "units of the second dense layer (default: 64, 256 in lbann)",
             K::integer}
          .within(1, 1 << 20),
      {"batch-norm", "", "false", "mlperf, lbann: normalise behind every convolution, which has no bias then",
       K::toggle, "default", "use-batchnorm"},
      Option{"hidden-activation", "model.hidden_activation", "LeakyReLU", "LeakyReLU (slope 0.3) or ReLU"}.one_of(
          {{"LeakyReLU"}, {"ReLU"}}),
      {"apply-log", "data.apply_log", "true", "log(1+x) of the counts; off divides by the sample's mean", K::toggle}};
  append(list, run_options());
  return list;
}

std::vector<Option> training_options() {
  std::vector<Option> list = model_options();
  const std::vector<Option> more{
      Option{"data", "data.name", "cosmo", "cosmo, or dummy (uniform random volumes in memory)"}.one_of(
          {{"cosmo"}, {"dummy"}}),
      {"stage-dir", "data.stage_dir", "",
       "folder on storage of the nodes that the samples of data-dir are copied to first; {node} is a node's number"},
      {"stage-share", "", "false",
       "every node keeps a share of the training files and trains on it alone, as the reference does", K::toggle},
      Option{"batch-size", "data.batch_size", "4", "samples per pass and rank", K::integer}.within(1, 1 << 20),
      Option{"batch-norm-momentum", "", "0.01", "share of a batch in the running statistics", K::number}.within(0, 1),
      Option{"batchnorm-group-size", "", "1", "so many neighbouring ranks share batch-norm statistics", K::integer}
          .within(1),
      {"n-epochs", "data.n_epochs", "128", "epochs of the whole run, those of a checkpoint included", K::integer},
      {"cache", "", "false",
       "keep decoded samples in memory: every rank, in the end, all samples, which are dealt out anew each epoch",
       K::toggle},
      {"sparse-gradients", "", "true", "off: weight gradients are summed over un-pooled gradients", K::toggle},
      {"shuffle-labels", "", "false", "control experiment: training labels permuted once between samples", K::toggle},
      Option{"augment", "", "none", "none, or cube (the 48 symmetries)"}.one_of({{"none"}, {"cube"}}),
      Option{"loss", "train.loss", "",
             "mse or l1, or as Keras has them: mean_squared_error, mean_absolute_error, mae (default: mse, l1 in sc18)"}
          .one_of({{"mse", "mean_squared_error"}, {"l1", "mae", "mean_absolute_error"}}),
      {"dropout", "model.dropout", "0.5", "rate on the hidden dense layers", K::number},
      Option{"l2", "model.l2", "0", "penalty l2*sum(w^2) on the hidden dense kernels (gradient 2*l2*w)", K::number}
          .within(0),
      Option{"lr", "lr_schedule.base_lr", "0.001", "base learning rate", K::number}.within(0),
      Option{"optimizer-lr", "optimizer.lr", "", "the reference's older name for lr", K::number}.within(0),
      Option{"lr-scaling", "lr_schedule.scaling", "none", "none, linear or sqrt in the batch size"}.one_of(
          {{"none"}, {"linear"}, {"sqrt"}}),
      {"base-batch-size", "lr_schedule.base_batch_size", "64", "batch size that lr is meant for", K::number},
      {"warmup-epochs", "lr_schedule.n_warmup_epochs", "0",
       "epochs in which the rate grows, one by one, from --lr to what --lr-scaling makes of it", K::integer},
      {"decay-schedule", "lr_schedule.decay_schedule", "", "epoch:multiplier pairs, acting after that epoch index",
       K::list},
      Option{"target-mae", "train.target_mae", "", "stop when the validation MAE is at most this", K::number}.within(0),
      {"baseline", "", "false", "also fit a regression on the count variance, for comparison", K::toggle},
      {"print-fom", "", "false", "print the figure of merit line of the reference", K::toggle}};
  append(list, more);
  append(list, optimizer_options({"SGD", "1e-7"}));
  append(list, loop_options("results/cosmoflow", "universes"));
  return list;
}

std::vector<OptionTable::Refusal> yaml_refusals() {
  return {{"data.shard", {"*"}, "every rank reads its samples from the one data folder"},
          {"data.shard_type", {"*"}, "every rank reads its samples from the one data folder"},
          {"data.compression", {"*"}, "compression is recognised from the files"},
          {"data.shuffle_valid", {"*"}, "the order of validation samples changes no mean"},
          {"data.shuffle_buffer_size", {"*"}, "samples are shuffled over the whole data set"},
          {"data.randomize_files", {"false"}, "n_train takes the first samples in the order of their names"},
          {"data.samples_per_file", {"1"}, "the official records hold one sample per file"},
          {"data.n_file_sets", {"1"}, "every rank reads its samples from the one data folder"},
          {"data.n_train_files", {"none"}, "samples are counted, not files: n_train"},
          {"data.n_valid_files", {"none"}, "samples are counted, not files: n_valid"},
          {"data.n_train", {"1 or more"}, "the reference takes 0 for none: all are taken without the key", "0"},
          {"data.n_valid", {"1 or more"}, "the reference takes 0 for none: all are taken without the key", "0"},
          {"data.n_targets", {"4"}, "the network predicts all that the files hold"},
          {"model.name", {"cosmoflow"}, "other networks are not part of this program"},
          {"model.pooling_type", {"MaxPool3D"}, "the network pools by maximum"},
          {"model.conv_sizes", {"none"}, "channels double from block to block: conv_size"},
          {"model.fc_sizes", {"none"}, "there are two hidden dense layers: fc1_size, fc2_size"},
          {"optimizer.nesterov", {"false"}, "momentum is plain"},
          {"optimizer.lr_scaling", {"none"}, "this is lr_schedule.scaling"},
          {"train.lr_schedule", {"none"}, "multipliers of the peak rate are lr_schedule.decay_schedule"},
          {"train.metrics", {"mae", "mean_absolute_error"}, "the validation metric is the mean absolute error"}};
}

void fill_cosmoflow_defaults(OptionTable& o) {
  const std::string& model = o.text("model");
  const CosmoflowConfig c = model == "lbann" ? CosmoflowConfig::lbann() : CosmoflowConfig{};
  for (const auto& [flag, value] : {std::pair<const char*, std::string>{"loss", model == "sc18" ? "l1" : "mse"},
                                    {"conv-size", std::to_string(c.conv_size)},
                                    {"fc1-size", std::to_string(c.fc1_size)},
                                    {"fc2-size", std::to_string(c.fc2_size)}}) {
    if (!o.has(flag) || !o.text(flag).empty()) continue;
    if (o.is_set(flag)) fail_usage(o.name(flag) + ": expected a value, found none");
    o.set(flag, value, "default");
  }
}

void correct_losses(nlohmann::json& meta) {
  nlohmann::json& identity = meta["identity"];
  if (parse_number<double>(identity.value("l2", "0"), "l2") > 0 && !identity.contains(penalty_in_validation)) {
    for (nlohmann::json& epoch : meta["history"]) epoch.at(3) = nullptr;
    identity[penalty_in_validation] = true;
  }
  if (identity.value("model", "") == "sc18" && !meta.value("given", nlohmann::json::object()).contains("loss"))
    identity["loss"] = "l1";
}

CosmoflowConfig model_config(const OptionTable& o) {
  CosmoflowConfig c = choose<CosmoflowConfig>(
      o, "model",
      {{"mlperf", CosmoflowConfig{}}, {"lbann", CosmoflowConfig::lbann()}, {"sc18", CosmoflowConfig::sc18()}});
  const bool sc18 = c.variant == CosmoflowVariant::sc18;
  const int64_t wanted = o.integer("size");
  bool by_size = wanted > 0;
  for (const char* flag : {"sample-shape", "input-shape"}) {
    if (o.text(flag).empty()) continue;
    const auto [size, channels] = cube_shape(o.name(flag), o.text(flag));
    c.size = size, c.channels = channels;
    if (by_size && size != wanted) by_size = o.prevails("size", flag);
  }
  if (!o.text("sample-shape").empty() && !o.text("input-shape").empty() &&
      o.text("sample-shape") != o.text("input-shape"))
    fail_usage("sample_shape " + o.text("sample-shape") + " and input_shape " + o.text("input-shape") + " differ");
  if (by_size) c.size = wanted;
  const int64_t targets = o.integer("targets");
  if (targets > 0) c.targets = targets;
  if (!o.text("target-shape").empty()) {
    const auto shape = parse_number<int64_t>(o.text("target-shape"), o.name("target-shape"));
    if (shape < 1 || shape > most_targets)
      fail_usage(fmt::format("{}: expected 1 to {}, found {}", o.name("target-shape"), most_targets, shape));
    if (targets == 0 || (shape != targets && o.prevails("target-shape", "targets"))) c.targets = shape;
  }
  c.kernel = o.integer("kernel-size");
  c.conv_size = o.integer("conv-size");
  c.layers = o.integer("conv-layers");
  // The reference doubles without a limit; 512 is that of the networks for larger cubes, whose blocks nobody counts.
  if (c.variant == CosmoflowVariant::mlperf) {
    constexpr int64_t reference_blocks = 5;
    const int64_t doublings = std::min<int64_t>(c.layers > 0 ? c.layers : reference_blocks, 32) - 1;
    c.most_channels = std::max(c.layers > 0 ? 0 : c.most_channels, c.conv_size << doublings);
  }
  c.fc1_size = o.integer("fc1-size");
  c.fc2_size = o.integer("fc2-size");
  for (const char* flag : {"kernel-size", "conv-size", "conv-layers", "fc1-size", "fc2-size", "hidden-activation",
                           "batch-norm", "apply-log"})
    if (sc18 && o.is_set(flag))
      fail_usage(std::string("--") + flag + " has no effect on the sc18 network, whose layers are fixed");
  if (!sc18) c.slope = choose<double>(o, "hidden-activation", {{"LeakyReLU", 0.3}, {"ReLU", 0.0}});
  c.batch_norm = o.toggle("batch-norm");
  return c;
}

void refuse_idle_flags(const OptionTable& o) {
  std::vector<IdleFlag> rules{
      {"base-batch-size", o.text("lr-scaling") != "none", "--lr-scaling none"},
      {"warmup-epochs",
       o.text("lr-scaling") != "none" || o.integer("warmup-epochs") == 0 || !o.list("decay-schedule").empty(),
       "--lr-scaling none"},
      {"sparse-gradients", o.text("model") == "mlperf" && !o.toggle("batch-norm"),
       "networks that pool by means or normalise"},
      {"batch-norm-momentum", o.toggle("batch-norm"), "networks without batch norm"},
      {"batchnorm-group-size", o.toggle("batch-norm"), "networks without batch norm"}};
  for (const char* flag :
       {"data-dir", "cache", "shuffle", "shuffle-labels", "augment", "n-valid", "valid-share", "target-mae", "baseline",
        "print-fom", "early-stopping", "prefetch", "n-parallel-reads", "apply-log"})
    rules.push_back({flag, o.text("data") != "dummy", "dummy data"});
  o.refuse_idle(rules);
}

LrSchedule schedule_config(const OptionTable& o) {
  LrSchedule s;
  const bool older =
      o.is_set("optimizer-lr") && o.number("lr") != o.number("optimizer-lr") && o.prevails("optimizer-lr", "lr");
  s.base_rate = o.number(older ? "optimizer-lr" : "lr");
  s.scaling = choose<LrScaling>(o, "lr-scaling",
                                {{"none", LrScaling::none}, {"linear", LrScaling::linear}, {"sqrt", LrScaling::sqrt}});
  s.base_batch = o.number("base-batch-size");
  if (!(s.base_batch > 0))
    fail_usage(o.name("base-batch-size") + " must be above 0, found " + o.text("base-batch-size"));
  s.warmup_epochs = o.integer("warmup-epochs");
  const std::string what = o.name("decay-schedule");
  for (const std::string& pair : o.list("decay-schedule")) {
    const auto parts = split(pair, ':');
    if (parts.size() != 2) fail_usage(what + ": expected epoch:multiplier pairs, found " + pair);
    const auto epoch = parse_number<int64_t>(trim(parts[0]), what);
    const auto multiplier = parse_number<double>(trim(parts[1]), what);
    if (epoch < 0 || !(multiplier >= 0) || std::isinf(multiplier))
      fail_usage(what + ": expected epochs and finite multipliers of 0 or more, found " + pair);
    for (const auto& [other, factor] : s.decay)
      if (other == epoch) fail_usage(fmt::format("{}: epoch {} is given twice", what, epoch));
    s.decay.emplace_back(epoch, multiplier);
  }
  return s;
}

std::vector<ClosedRule> closed_rules(const OptionTable& o, const CosmoflowOptions& p) {
  const CosmoflowConfig& m = p.model;
  const bool mlperf = m.variant == CosmoflowVariant::mlperf;
  bool fading = true;
  for (const auto& [epoch, factor] : schedule_config(o).decay) fading = fading && factor > 0 && factor < 1;
  return {{"model", mlperf, "mlperf"},
          {"optimizer", p.training.optimizer == OptimizerKind::sgd && p.training.sgd.larc == 0, "SGD"},
          {"momentum", p.training.sgd.momentum == 0.9, "0.9"},
          {"gradient-lag", p.training.lag == 0, "0"},
          {"sample-shape", m.size == 128 && m.channels == 4, "128,128,128,4",
           fmt::format("{0},{0},{0},{1}", m.size, m.channels)},
          {"targets", m.targets == 4, "4", std::to_string(m.targets)},
          {"kernel-size", m.kernel == 3, "3"},
          {"conv-size", m.conv_size == 32, "32"},
          {"conv-layers", m.layers == 0 || m.layers == 5, "5"},
          {"batch-norm", !m.batch_norm, "false"},
          {"fc1-size", m.fc1_size == 128, "128"},
          {"fc2-size", m.fc2_size == 64, "64"},
          {"hidden-activation", o.text("hidden-activation") == "LeakyReLU", "LeakyReLU"},
          {"apply-log", o.toggle("apply-log"), "true"},
          {"loss", p.loss == Loss::mse, "mse"},
          {"augment", o.text("augment") == "none", "none"},
          {"shuffle-labels", !o.toggle("shuffle-labels"), "false"},
          {"init", o.text("init").empty(), "none (weights begin at random)"},
          {"target-mae", o.text("target-mae").empty() || o.number("target-mae") == 0.124, "0.124"},
          {"decay-schedule", fading, "multipliers between 0 and 1"}};
}

ReadOptions read_options(const OptionTable& o) {
  const CosmoflowConfig c = model_config(o);
  ReadOptions read;
  if (c.variant != CosmoflowVariant::sc18) read.channels = c.channels;  // that picks one of the four in the file
  read.crop = c.size;
  return read;
}

namespace {

/// What the network sees of samples like that at `path`; throws Error(data) where the options ask for others.
SampleShape seen_shape(const OptionTable& o, const std::string& path, SampleShape found) {
  const CosmoflowConfig c = model_config(o);
  if (c.variant == CosmoflowVariant::sc18) found.channels = 1, found.targets = std::min(found.targets, c.targets);
  const bool fixed_size = o.integer("size") > 0 || !o.text("sample-shape").empty() || !o.text("input-shape").empty() ||
                          c.variant == CosmoflowVariant::sc18;
  if (fixed_size && found.size != c.size)
    fail_data(fmt::format("{}: expected cubes of {}, found {}", path, c.size, found.size));
  if ((o.integer("targets") > 0 || !o.text("target-shape").empty() || c.variant == CosmoflowVariant::sc18) &&
      found.targets != c.targets)
    fail_data(fmt::format("{}: expected {} targets, found {}", path, c.targets, found.targets));
  if (c.variant != CosmoflowVariant::sc18 && found.channels != c.channels)
    fail_data(fmt::format("{}: expected {} channels, found {}", path, c.channels, found.channels));
  return found;
}

}  // namespace

SampleShape data_shape(const OptionTable& o, const std::vector<SampleRef>& samples, const ReadOptions& read) {
  return seen_shape(o, samples.at(0).path, read_sample(samples[0], read).shape);
}

SampleShape data_shape(const OptionTable& o, const std::vector<SampleRef>& samples, const ReadOptions& read,
                       Ranks& ranks) {
  std::string text;
  if (ranks.root()) {
    ranks.set_busy(true);
    const SampleShape own = read_sample(samples.at(0), read).shape;
    text = nlohmann::json{own.size, own.channels, own.targets, int(own.dtype)}.dump();
    ranks.set_busy(false);
  }
  const auto found = nlohmann::json::parse(ranks.broadcast_text(text));
  return seen_shape(o, samples.at(0).path, {found[0], found[1], found[2], DType(found[3].get<int>())});
}

namespace {

Normalisation normalisation_of(const OptionTable& o, const SampleShape& shape) {
  if (shape.dtype != DType::i16) return Normalisation::none;  // values come normalised
  const bool logs = o.toggle("apply-log") && model_config(o).variant != CosmoflowVariant::sc18;
  return logs ? Normalisation::log1p : Normalisation::mean;
}

}  // namespace

CosmoflowOptions program_options(const OptionTable& o, const SampleShape& shape) {
  CosmoflowOptions p;
  p.model = model_config(o);
  p.model.size = shape.size, p.model.channels = shape.channels, p.model.targets = shape.targets;
  p.input_type = shape.dtype;
  apply_run_options(o, p);
  const bool made_up = o.text("data-dir").empty() || (o.has("data") && o.text("data") == "dummy");
  if (shape.dtype != DType::i16 && o.is_set("apply-log") && !made_up)
    fail_usage(o.name("apply-log") + ": expected counts, found " + shape.str() +
               ": floating point is taken as already normalised");
  p.normalisation = normalisation_of(o, shape);
  if (p.normalisation == Normalisation::mean && p.plan.device == DeviceKind::cuda)
    fail_usage("--device cuda: counts are divided by their mean on the CPU alone (model sc18, or apply-log off)");
  return p;
}

CosmoflowReading reading_options(const OptionTable& o, const SampleShape& shape) {
  CosmoflowReading l;
  l.read = read_options(o);
  l.expected = shape;
  l.refuse_empty = normalisation_of(o, shape) == Normalisation::mean;
  if (model_config(o).variant == CosmoflowVariant::sc18) {
    l.take_channel = 0;                      // the paper's volumes are z = 0 alone
    l.target_scale = float(std::sqrt(3.0));  // labels flat in [-1,1] have deviation 1/sqrt(3): this z-scores them
  }
  l.take_targets = shape.targets;
  l.fewer_targets = l.take_channel == 0 || o.integer("targets") > 0 || !o.text("target-shape").empty();
  if (o.has("cache") && o.toggle("cache")) l.cache = std::make_shared<SampleCache>();
  return l;
}

double Predictions::mae() const {
  double sum = 0;
  for (size_t i = 0; i < predicted.size(); ++i) sum += std::abs(double(predicted[i]) - double(truth[i]));
  return sum / double(predicted.size());
}
double Predictions::mse() const {
  double sum = 0;
  for (size_t i = 0; i < predicted.size(); ++i) sum += std::pow(double(predicted[i]) - double(truth[i]), 2);
  return sum / double(predicted.size());
}
double Predictions::mae(int64_t target) const {
  double sum = 0;
  for (int64_t i = 0; i < count(); ++i)
    sum += std::abs(double(predicted[static_cast<size_t>(i * targets + target)]) -
                    double(truth[static_cast<size_t>(i * targets + target)]));
  return sum / double(count());
}
double Predictions::mae_error(int64_t target) const {
  const double mean = mae(target);
  double sum = 0;
  for (int64_t i = 0; i < count(); ++i)
    sum += std::pow(std::abs(double(predicted[static_cast<size_t>(i * targets + target)]) -
                             double(truth[static_cast<size_t>(i * targets + target)])) -
                        mean,
                    2);
  return count() > 1 ? std::sqrt(sum / double(count() - 1) / double(count())) : 0;
}

Predictions predict(Program& program, const std::vector<SampleRef>& samples, const CosmoflowReading& reading,
                    const LoaderOptions& options, Communicator* ranks, const StopPoint& stop) {
  const LoaderOptions in_order = options.one_by_one(std::ssize(samples), false);
  CosmoflowReading plain = reading;
  plain.augment = Augment::none;
  plain.permute_targets = false;
  Executor& e = program.evaluate();
  Predictions result;
  result.targets = plain.expected.targets;
  std::vector<float> truth(static_cast<size_t>(result.targets));
  Loader loader(std::make_shared<CosmoflowSource>(samples, plain), in_order, 0, 0);
  e.refresh();
  result.predicted.resize(samples.size() * truth.size());
  result.truth.resize(result.predicted.size());
  for (auto i = static_cast<size_t>(in_order.rank); i < samples.size(); i += static_cast<size_t>(in_order.ranks)) {
    if (ranks) ranks->progress();  // whoever waits for this rank sees that it is at work
    stop(static_cast<int64_t>(i) / in_order.ranks, std::ssize(samples) / in_order.ranks);
    loader.next(e.tensor("x").bytes(), reinterpret_cast<std::byte*>(truth.data()));
    e.run();
    const Tensor row = e.tensor("prediction");
    for (size_t t = 0; t < truth.size(); ++t) {
      const size_t at = i * truth.size() + t;
      result.predicted[at] = static_cast<float>(row.at(0, 0, 0, 0, static_cast<int64_t>(t))) / plain.target_scale;
      result.truth[at] = truth[t] / plain.target_scale;
    }
  }
  if (ranks) {  // what the others predicted stands as 0 here
    ranks->all_reduce_sum(std::span(result.predicted));
    ranks->all_reduce_sum(std::span(result.truth));
  }
  return result;
}

std::vector<std::string> target_names(int64_t targets) {
  const std::vector<std::string> known{"Omega_m", "sigma_8", "n_s", "H_0"};
  std::vector<std::string> names;
  for (int64_t i = 0; i < targets; ++i)
    names.push_back(i < 4 ? known[static_cast<size_t>(i)] : "target_" + std::to_string(i));
  return names;
}

}  // namespace convoy::apps
