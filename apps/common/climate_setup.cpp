#include "apps/common/climate_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "apps/common/optimizer_setup.h"
#include "apps/common/png.h"
#include "apps/common/say.h"
#include "core/text.h"
#include "io/file.h"

namespace convoy::apps {
namespace {

namespace fs = std::filesystem;
using K = Option::Kind;

ClimateModel chosen_model(const OptionTable& o) {
  return choose<ClimateModel>(
      o, "model",
      {{"deepcam", ClimateModel::deepcam}, {"deeplab", ClimateModel::deeplab}, {"tiramisu", ClimateModel::tiramisu}});
}

}  // namespace

void spread_schedule(OptionTable& o) {
  const std::string text = o.text("lr-schedule"), origin = o.origin("lr-schedule");
  if (text.find('=') == std::string::npos) return;
  const std::vector<std::pair<std::string, std::string>> flags{{"type", "lr-schedule"},
                                                               {"milestones", "lr-milestones"},
                                                               {"decay_rate", "lr-decay-rate"},
                                                               {"t_max", "lr-t-max"},
                                                               {"eta_min", "lr-eta-min"}};
  o.set("lr-schedule", "constant", "default");  // like the others, set by its part if there is one
  for (std::string_view part : split(text, ',')) {
    const auto halves = split(part, '=');
    const std::string key(trim(halves[0]));
    const auto found = std::find_if(flags.begin(), flags.end(), [&](const auto& f) { return f.first == key; });
    if (halves.size() != 2 || found == flags.end())
      fail_usage("--lr-schedule: expected type=, milestones=, decay_rate=, t_max= or eta_min=, found " +
                 std::string(part));
    if (o.is_set(found->second)) {
      if (origin == "checkpoint") continue;  // of an older version; what is given now goes ahead
      fail_usage("--lr-schedule: " + key + " is given twice");
    }
    std::string value;
    for (std::string_view word : split(halves[1], ' '))
      if (!word.empty()) value += (value.empty() ? "" : ",") + std::string(word);
    o.set(found->second, value, origin);
  }
}

std::vector<int64_t> chosen_channels(const OptionTable& o) {
  std::vector<int64_t> channels;
  for (const std::string& text : o.list("channels")) {
    channels.push_back(parse_number<int64_t>(text, "--channels"));
    if (const int64_t all = std::size(climate_channels); channels.back() < 0 || channels.back() >= all)
      fail_usage("--channels: expected numbers of 0 to " + std::to_string(all - 1) + ", found " + text);
  }
  return channels;
}

std::pair<int64_t, int64_t> height_and_width(const OptionTable& o, const std::string& flag) {
  const std::string& text = o.text(flag);
  const auto parts = split(text, 'x');
  if (parts.size() != 2) fail_usage("--" + flag + ": expected HEIGHTxWIDTH, found " + text);
  const std::pair<int64_t, int64_t> size{parse_number<int64_t>(parts[0], "--" + flag),
                                         parse_number<int64_t>(parts[1], "--" + flag)};
  constexpr int64_t most = 1 << 20;
  if (std::min(size.first, size.second) < 1 || std::max(size.first, size.second) > most)
    fail_usage(fmt::format("--{}: expected extents of 1 to {}, found {}", flag, most, text));
  return size;
}

std::vector<Option> climate_model_options() {
  std::vector<Option> list{
      {"data-dir", "", "", "folder with train/ and validation/, with train/ alone, or with images to split by day",
       K::text, "default", "data-dir-prefix"},
      {"stats", "", "", "statistics file (default: stats.h5 in or above data-dir)"},
      Option{"label-set", "", "0", "labels_0 or labels_1 of the files", K::integer}.within(0, 1),
      Option{"downsample", "", "1", "make one pixel of every n x n", K::integer}.within(1, 4096),
      {"downsampling-mode", "", "pick",
       "pick: the first pixel of the n x n; mean: fields averaged behind their normalisation, the class at the centre"},
      {"channels", "", "", "channels of the files that the network sees, 0 to 15 (default: all)", K::numbers},
      {"model", "", "deepcam", "deepcam, deeplab or tiramisu"},
      {"batch-norm", "", "", "deeplab, tiramisu: on or off (default: off, as in the record runs)"},
      {"batch-norm-evaluation", "", "",
       "normalise by running or by batch statistics (default: batch in deeplab, as its reference does; else running)"},
      {"deconv-crop", "", "",
       "odd row of transposed convolutions dropped as tensorflow or pytorch does (default: pytorch in deepcam, else "
       "tensorflow)"},
      {"output-stride", "", "16", "deepcam: 16 or 8", K::integer},
      Option{"width-divisor", "", "1", "deepcam: divides all inner channel counts (a narrow net for small machines)",
             K::integer}
          .within(1, 1 << 16),
      {"low-level-relu", "", "true", "deepcam: low-level branch behind the ReLU, as the reference computes", K::toggle},
      {"decoder", "", "deconv1x", "deeplab: deconv1x (full resolution, with the image), deconv or bilinear"},
      {"decoder-relu", "", "false",
       "deeplab: ReLU behind transposed and full-resolution convolutions (the reference has none)", K::toggle},
      {"resize-corners", "", "asymmetric", "deeplab: asymmetric (TensorFlow 1), half-pixel or aligned"},
      Option{"first-filters", "", "64", "tiramisu: maps of the first convolution", K::integer}.within(1, 1 << 16),
      {"blocks", "", "2,2,2,4,5", "tiramisu: layers of the dense blocks, the bottom one last", K::numbers},
      Option{"growth", "", "32", "tiramisu: maps per layer", K::integer}.within(1, 1 << 16),
      Option{"filter", "", "5", "tiramisu: extent of the filters", K::integer}.within(1, 63)};
  append(list, run_options());
  return list;
}

std::vector<Option> climate_training_options() {
  std::vector<Option> list = climate_model_options();
  const std::vector<Option> more{
      {"data", "", "cam", "cam, or dummy (random images in memory)"},
      {"stage-dir", "", "",
       "folder on storage of the nodes that the samples of data-dir are copied to first; {node} is a node's number"},
      {"stage-share", "", "false",
       "every node keeps a share of the training files and trains on it alone, as the reference does", K::toggle},
      {"image-size", "", "768x1152", "with dummy data: size of the images"},
      Option{"local-batch-size", "", "1", "samples per pass and rank", K::integer}.within(1, 1 << 20),
      {"max-epochs", "", "30", "epochs to train", K::integer},
      {"crop", "", "", "HEIGHTxWIDTH: train on crops of the (downsampled) images"},
      Option{"crops-per-image", "", "1", "crops of every image and epoch", K::integer}.within(1, 1 << 20),
      Option{"crop-balance", "", "0.5", "share of the crops that centre on a storm", K::number}.within(0, 1),
      {"loss-type", "", "weighted_mean", "weighted_mean, weighted (sum) or focal"},
      {"focal-gamma", "", "2", "focal: power of what a pixel's right class lacks to 1", K::number},
      {"class-weights", "", "",
       "mlperf, gordon-bell, none or three numbers (default: mlperf in deepcam, whatever the loss, else gordon-bell, "
       "none with the focal loss)"},
      {"gradient-sums", "", "true", "off: gradients are added to each other by operations of their own", K::toggle},
      {"recompute", "", "false",
       "make outputs of cheap ops (batch norm, activation, sum, scale, resize, concat) again in the backward pass: "
       "less memory, more time",
       K::toggle},
      {"dropout", "", "",
       "tiramisu: rate behind every activation, and on the logits (default: 0.2, as its reference has it)", K::number},
      Option{"batch-norm-momentum", "", "",
             "share of a batch in the running statistics (default: as the network's reference, 0.0003 in deeplab, 0.01 "
             "in tiramisu, else 0.1)",
             K::number}
          .within(0, 1),
      {"batch-norm-recalibration", "", "0",
       "ahead of every validation, take running statistics from so many whole training images (0 = keep training's)",
       K::integer},
      Option{"start-lr", "", "0.001", "base learning rate", K::number}.within(0),
      {"lr-scaling", "", "none", "none, linear or sqrt: start-lr grows with the samples of a step on all ranks"},
      {"base-batch-size", "", "1", "samples of a step that start-lr is meant for", K::number},
      Option{"batchnorm-group-size", "", "1", "so many neighbouring ranks share batch-norm statistics", K::integer}
          .within(1),
      {"lr-schedule", "", "constant",
       "constant, multistep, cosine_annealing or polynomial; or type=multistep,milestones=8192 16384,decay_rate=0.1"},
      {"lr-milestones", "", "", "multistep: steps behind the warm-up", K::numbers},
      Option{"lr-decay-rate", "", "0.1", "multistep: factor on the rate at each milestone", K::number}.within(0),
      {"lr-t-max", "", "0",
       "cosine, polynomial: steps to the end, behind which cosine rises again (0 = all of the run's)", K::integer},
      Option{"lr-eta-min", "", "0", "cosine, polynomial: rate at the end", K::number}.within(0),
      {"lr-power", "", "0.9", "polynomial: of the share of steps that are left", K::number},
      {"lr-warmup-steps", "", "0", "steps over which the rate rises first", K::integer},
      Option{"lr-warmup-factor", "", "1", "the warm-up ends at start-lr times this", K::number}.within(0),
      Option{"target-iou", "", "", "stop when the measure is at least this", K::number}.within(0, 1),
      {"measure", "", "mlperf", "mlperf (per sample, mean), pooled (mean), cyclone or river (pooled)"},
      {"pictures", "", "4", "validation images drawn at every validation", K::integer},
      {"baseline", "", "false", "also score background alone and a logistic regression per pixel", K::toggle}};
  append(list, more);
  append(list, optimizer_options({"Adam", "", ""}));
  append(list, loop_options("results/climseg", "days"));
  return list;
}

void fill_climate_defaults(OptionTable& o) {
  struct Default {
    const char *flag, *deepcam, *deeplab, *tiramisu;
  };
  const ClimateModel model = chosen_model(o);
  // The focal loss of 2018 knew no classes.
  const char* class_weights = o.has("loss-type") && o.text("loss-type") == "focal" ? "none" : "gordon-bell";
  for (const Default& d : {Default{"batch-norm", "on", "off", "off"},
                           {"batch-norm-evaluation", "running", "batch", "running"},
                           {"batch-norm-momentum", "0.1", "0.0003", "0.01"},
                           {"deconv-crop", "pytorch", "tensorflow", "tensorflow"},
                           {"dropout", "0", "0", "0.2"},
                           {"class-weights", "mlperf", class_weights, class_weights},
                           // PyTorch's benchmark fixes 1e-6; the codes of 2018 leave TensorFlow's 1e-8.
                           {"adam-eps", "1e-6", "1e-8", "1e-8"},
                           // They declare a decay that they never add to the loss.
                           {"weight-decay", "1e-6", "0", "0"}})
    if (o.has(d.flag) && o.text(d.flag).empty())
      o.set(d.flag,
            model == ClimateModel::deepcam   ? d.deepcam
            : model == ClimateModel::deeplab ? d.deeplab
                                             : d.tiramisu,
            "default");
  // One spelling for checkpoints and logs.
  o.set("batch-norm", o.toggle("batch-norm") ? "on" : "off", std::string(o.origin("batch-norm")));
  if (o.has("lr-schedule")) spread_schedule(o);
}

ClimateConfig climate_config(const OptionTable& o) {
  ClimateConfig c;
  c.model = chosen_model(o);
  const auto only = [&](ClimateModel model, std::initializer_list<const char*> flags) {
    for (const char* flag : flags)
      if (c.model != model && o.is_set(flag))
        fail_usage(std::string("--") + flag + " has no effect on " + o.text("model"));
  };
  only(ClimateModel::deepcam, {"output-stride", "width-divisor", "low-level-relu"});
  only(ClimateModel::deeplab, {"decoder", "decoder-relu", "resize-corners"});
  only(ClimateModel::tiramisu, {"blocks", "growth", "filter", "first-filters"});
  c.batch_norm = o.toggle("batch-norm");
  if (c.model == ClimateModel::deepcam && !c.batch_norm) fail_usage("--batch-norm: deepcam always normalises");
  if (!c.batch_norm && o.is_set("batch-norm-evaluation"))
    fail_usage("--batch-norm-evaluation has no effect without batch norm");
  c.batch_statistics = choose<bool>(o, "batch-norm-evaluation", {{"running", false}, {"batch", true}});
  if (c.model == ClimateModel::deeplab && o.text("decoder") == "bilinear" && o.is_set("deconv-crop"))
    fail_usage("--deconv-crop has no effect on --decoder bilinear, which has no transposed convolutions");
  c.cropping =
      choose<Cropping>(o, "deconv-crop", {{"tensorflow", Cropping::tensorflow}, {"pytorch", Cropping::pytorch}});
  c.output_stride = o.integer("output-stride");
  c.width_divisor = o.integer("width-divisor");
  c.low_level_relu = o.toggle("low-level-relu");
  c.decoder = choose<Decoder>(
      o, "decoder", {{"deconv1x", Decoder::deconv_full}, {"deconv", Decoder::deconv}, {"bilinear", Decoder::bilinear}});
  c.decoder_relu = o.toggle("decoder-relu");
  c.corners = choose<Corners>(
      o, "resize-corners",
      {{"asymmetric", Corners::asymmetric}, {"half-pixel", Corners::half_pixel}, {"aligned", Corners::aligned}});
  c.blocks.clear();
  for (const std::string& part : o.list("blocks")) c.blocks.push_back(parse_number<int64_t>(trim(part), "--blocks"));
  constexpr int64_t most_layers = 256;
  const auto [least, most] = std::minmax_element(c.blocks.begin(), c.blocks.end());
  if (c.blocks.size() < 2 || *least < 1 || *most > most_layers)
    fail_usage(
        fmt::format("--blocks: expected two or more numbers of 1 to {}, found {}", most_layers, o.text("blocks")));
  c.first_filters = o.integer("first-filters");
  c.growth = o.integer("growth"), c.filter = o.integer("filter");
  if (c.filter % 2 == 0) fail_usage("--filter: expected an odd number, found " + o.text("filter"));
  return c;
}

PixelLossAttrs pixel_loss_config(const OptionTable& o) {
  PixelLossAttrs a;
  const std::string& type = o.text("loss-type");
  if (type != "weighted_mean" && type != "weighted" && type != "focal")
    fail_usage("--loss-type: expected weighted_mean, weighted or focal, found " + type);
  a.loss = type == "focal" ? PixelLoss::focal : PixelLoss::cross_entropy;
  a.reduction = type == "weighted" ? Reduction::sum : Reduction::mean;
  a.gamma = o.number("focal-gamma");
  const std::string& weights = o.text("class-weights");
  if (weights == "mlperf") {
    // frequency^(-1/8) of the official training set's classes
    a.weights = {std::pow(0.986267818, -0.125), std::pow(0.00045787089, -0.125), std::pow(0.01327431072, -0.125)};
  } else if (weights == "gordon-bell") {
    a.weights = {0.0218, 0.8120, 0.1662};
  } else if (weights != "none") {
    const std::vector<double> list = o.numbers("class-weights");
    if (list.size() != 3)
      fail_usage("--class-weights: expected mlperf, gordon-bell, none or three numbers, found " + weights);
    a.weights = {list[0], list[1], list[2]};
    if (!(std::min({list[0], list[1], list[2]}) >= 0 && list[0] + list[1] + list[2] > 0) ||
        !std::isfinite(list[0] + list[1] + list[2]))
      fail_usage("--class-weights: expected numbers of at least 0, one above, found " + weights);
  }
  return a;
}

StepSchedule step_schedule(const OptionTable& o, int64_t total_steps, int64_t samples_per_step) {
  StepSchedule s;
  using Kind = StepSchedule::Kind;
  s.kind = choose<Kind>(o, "lr-schedule",
                        {{"constant", Kind::constant},
                         {"multistep", Kind::multistep},
                         {"cosine_annealing", Kind::cosine},
                         {"polynomial", Kind::polynomial}});
  // The same rule as CosmoFlow's: the rate grows with what a step sees.
  LrSchedule scaled;
  scaled.base_rate = o.number("start-lr");
  scaled.scaling = choose<LrScaling>(
      o, "lr-scaling", {{"none", LrScaling::none}, {"linear", LrScaling::linear}, {"sqrt", LrScaling::sqrt}});
  scaled.base_batch = o.number("base-batch-size");
  if (!(scaled.base_batch > 0)) fail_usage("--base-batch-size must be above 0, found " + o.text("base-batch-size"));
  s.base_rate = scaled.peak(double(samples_per_step));
  s.warmup_steps = o.integer("lr-warmup-steps");
  s.warmup_factor = o.number("lr-warmup-factor");
  for (const std::string& step : o.list("lr-milestones"))
    s.milestones.push_back(parse_number<int64_t>(step, "--lr-milestones"));
  for (size_t i = 0; i < s.milestones.size(); ++i)
    if (s.milestones[i] < 1 || (i > 0 && s.milestones[i] <= s.milestones[i - 1]))
      fail_usage("--lr-milestones: expected steps above 0 that grow, found " + o.text("lr-milestones"));
  if (s.kind == Kind::multistep && s.milestones.empty())
    fail_usage("--lr-milestones: expected one step or more for --lr-schedule multistep, found none");
  s.decay_rate = o.number("lr-decay-rate");
  s.length = std::max<int64_t>(1, o.integer("lr-t-max") > 0 ? o.integer("lr-t-max") : total_steps - s.warmup_steps);
  s.eta_min = o.number("lr-eta-min");
  s.power = o.number("lr-power");
  if (!(s.power > 0)) fail_usage("--lr-power: expected a number above 0, found " + o.text("lr-power"));
  return s;
}

void refuse_idle_flags(const OptionTable& o, bool dummy) {
  const std::string& schedule = o.text("lr-schedule");
  const bool crops = !o.text("crop").empty(), deeplab = o.text("model") == "deeplab";
  const bool decays = schedule == "cosine_annealing" || schedule == "polynomial";
  o.refuse_idle(
      {{"focal-gamma", o.text("loss-type") == "focal", "--loss-type other than focal"},
       {"lr-warmup-factor", o.integer("lr-warmup-steps") > 0, "a run without --lr-warmup-steps"},
       {"lr-milestones", schedule == "multistep", "--lr-schedule other than multistep"},
       {"lr-decay-rate", schedule == "multistep", "--lr-schedule other than multistep"},
       {"lr-t-max", decays, "--lr-schedule other than cosine_annealing and polynomial"},
       {"lr-eta-min", decays, "--lr-schedule other than cosine_annealing and polynomial"},
       {"lr-power", schedule == "polynomial", "--lr-schedule other than polynomial"},
       {"base-batch-size", o.text("lr-scaling") != "none", "--lr-scaling none"},
       {"crop-balance", crops, "whole images"},
       {"crops-per-image", crops, "whole images"},
       {"image-size", dummy && !crops, "data from files, or crops"},
       {"batch-norm-momentum", o.toggle("batch-norm"), "networks without batch norm"},
       {"batch-norm-recalibration", o.toggle("batch-norm"), "networks without batch norm"},
       {"batch-norm-recalibration", o.text("batch-norm-evaluation") == "running", "--batch-norm-evaluation batch"},
       {"batch-norm-recalibration", !dummy, "dummy data"},
       {"batchnorm-group-size", o.toggle("batch-norm"), "networks without batch norm"},
       {"dropout", o.text("model") == "tiramisu", "--model other than tiramisu"},
       {"decoder-relu", !deeplab || o.text("decoder") != "bilinear", "--decoder " + o.text("decoder")},
       {"resize-corners", !deeplab || o.text("decoder") == "bilinear" || o.is_standard("resize-corners"),
        "--decoder " + o.text("decoder") + ", which resizes single pixels alone"}});
  if (o.text("data") != "dummy") return;  // an inspection without data keeps the settings of the run it looks into
  std::vector<IdleFlag> files;
  for (const char* flag : {"data-dir", "shuffle", "stats", "label-set", "crops-per-image", "crop-balance", "n-valid",
                           "valid-share", "target-iou", "measure", "downsampling-mode", "pictures", "baseline",
                           "early-stopping", "prefetch", "n-parallel-reads"})
    files.push_back({flag, false, "dummy data"});
  files.push_back({"downsample", !crops, "crops of dummy data"});
  o.refuse_idle(files);
}

void refuse_idle_validation(const OptionTable& o, bool validates) {
  std::vector<IdleFlag> rules;
  for (const char* flag : {"target-iou", "measure", "pictures", "baseline", "early-stopping"})
    rules.push_back({flag, validates, "a run without validation images"});
  o.refuse_idle(rules);
}

std::string statistics_digest(const ClimateStats& s) {
  std::string text;
  for (size_t c = 0; c < s.minimum.size(); ++c) text += fmt::format("{:.9g} {:.9g} ", s.minimum[c], s.maximum[c]);
  return fmt::format("{:016x}", hash_name(text));
}

ClimateStats climate_stats(const OptionTable& o, const std::vector<ClimateRef>& images) {
  const bool normalised = std::all_of(images.begin(), images.end(), is_normalised);
  o.refuse_idle({{"stats", !normalised, "shards, which are normalised already"}});
  if (normalised) return {};
  const std::string& given = o.text("stats");
  const std::string path = given.empty() ? find_stats(o.text("data-dir"), images) : given;
  if (!fs::exists(path)) fail_data(path + ": no such file; name one with --stats, or make one with convoy_data stats");
  say("statistics: {}\n", path);
  return read_stats(path);
}

ClimateReading climate_reading(const OptionTable& o, const ClimateStats& stats, bool training) {
  ClimateReading r;
  r.stats = stats;
  r.step = o.integer("downsample");
  r.downsampling =
      choose<Downsampling>(o, "downsampling-mode", {{"pick", Downsampling::pick}, {"mean", Downsampling::mean}});
  o.refuse_idle({{"downsampling-mode", r.step > 1, "--downsample 1"}});
  r.channels = chosen_channels(o);
  r.label_set = static_cast<int>(o.integer("label-set"));
  if (!training) return r;
  if (!o.text("crop").empty()) std::tie(r.height, r.width) = height_and_width(o, "crop");
  r.crops = o.integer("crops-per-image");
  r.balance = r.height > 0 ? o.number("crop-balance") : 0;
  r.seed = static_cast<uint64_t>(o.integer("seed"));
  return r;
}

ClimateOptions climate_program(const OptionTable& o, const ClimateSource& train, const ClimateSource* evaluation) {
  ClimateOptions p;
  p.model = climate_config(o);
  p.model.channels = train.channels();
  p.model.height = train.reading().height, p.model.width = train.reading().width;
  if (evaluation && evaluation->channels() != train.channels())
    fail_data(fmt::format("{}: expected {} channels as the training images have, found {}", o.text("data-dir"),
                          train.channels(), evaluation->channels()));
  if (evaluation) p.evaluation_height = evaluation->reading().height, p.evaluation_width = evaluation->reading().width;
  // Sizes from files, not from --crop, are the files' mistake.
  const int64_t unit = size_unit(p.model);
  for (const ClimateSource* source : {o.has("crop") && !o.text("crop").empty() ? nullptr : &train, evaluation})
    if (source && (source->reading().height % unit || source->reading().width % unit))
      fail_data(fmt::format("{}: images of {}x{}{}: expected height and width divisible by {}",
                            source->images()[0].path, source->reading().height, source->reading().width,
                            source->reading().step > 1 ? " behind --downsample" : "", unit));
  apply_run_options(o, p);
  return p;
}

void warn_of_single_values(const OptionTable& o, const Tape& step) {
  if (!o.toggle("batch-norm") || o.text("batch-norm-evaluation") != "running" ||
      o.integer("batch-norm-recalibration") > 0)
    return;
  for (const Node& node : step.nodes())
    if (node.op.kind == OpKind::batch_norm_update && node.op.as<RunningAttrs>().count == 1)
      return say(
          stderr,
          "warning: {}: one value per channel and pass, whose variance is 0, which evaluations divide by: larger "
          "crops, --local-batch-size, --batchnorm-group-size or --batch-norm-recalibration help\n",
          node.name);
}

ClimateEvaluation evaluate_climate(Program& program, const std::shared_ptr<const ClimateSource>& source,
                                   const LoaderOptions& loader_options, Communicator* ranks,
                                   const std::function<void(int64_t, std::span<const uint8_t>)>& each,
                                   const StopPoint& stop) {
  const LoaderOptions in_order = loader_options.one_by_one(source->size(), false);
  Executor& e = program.evaluate();
  Loader loader(source, in_order, 0, 0);
  e.refresh();
  ClimateEvaluation result;
  std::vector<uint8_t> truth(static_cast<size_t>(source->target_bytes()));
  for (int64_t i = in_order.rank; i < source->size(); i += in_order.ranks) {
    if (ranks) ranks->progress();  // whoever waits for this rank sees that it is at work
    stop(i / in_order.ranks, source->size() / in_order.ranks);
    loader.next(e.tensor("x").bytes(), reinterpret_cast<std::byte*>(truth.data()));
    std::copy(truth.begin(), truth.end(), e.tensor("target").data<uint8_t>());
    e.run();
    const auto predicted = e.tensor("prediction").span<uint8_t>();
    // Images without a labelled pixel have neither loss nor score.
    const int64_t before = result.score.samples;
    if (source->images().at(static_cast<size_t>(i)).labelled()) result.score.add(truth, predicted);
    if (result.score.samples > before) result.loss += double(e.tensor("loss").data<float>()[0]);
    if (each) each(i, predicted);
  }
  if (ranks) {
    ranks->all_reduce_sum(std::span(&result.loss, 1));
    result.score.add_ranks(*ranks);
  }
  result.loss /= double(result.score.samples);
  return result;
}

std::string iou_text(const SegmentationScore& s) {
  return fmt::format(
      "IoU background, cyclones, rivers, mean: pooled {:.4f} {:.4f} {:.4f} {:.4f}, per sample {:.4f} {:.4f} {:.4f} "
      "{:.4f}",
      s.pooled.iou(0), s.pooled.iou(1), s.pooled.iou(2), s.pooled.mean_iou(), s.per_sample(0), s.per_sample(1),
      s.per_sample(2), s.mlperf());
}

void write_comparison(const std::string& path, const ClimateRef& image, std::span<const uint8_t> predicted,
                      const ClimateReading& reading) {
  const int64_t height = image.shape.height, width = image.shape.width;
  auto [values, classes] = image.labelled() ? read_labelled(image, reading.label_set, reading.classes, whole(image))
                                            : LabelledImage{read_image(image, whole(image)), {}};
  std::vector<float> vapour;
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(image.shape.channels)) vapour.push_back(values[i]);
  vapour = downsample_fields(std::move(vapour), height, width, reading);
  const int64_t rows = height / reading.step, columns = width / reading.step;
  const Picture left = draw_field(vapour, {predicted.begin(), predicted.end()}, rows, columns);
  if (!image.labelled()) return write_png(path, left);
  const auto truth = downsample_classes(std::move(classes), height, width, reading);
  write_png(path, side_by_side(left, draw_field(vapour, truth, rows, columns)));
}

}  // namespace convoy::apps
