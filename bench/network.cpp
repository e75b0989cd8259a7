#include "bench/network.h"

#include <cmath>

#include "core/problem_limits.h"

namespace convoy::bench {
namespace {

/// "HEIGHTxWIDTH".
void set_image(const std::string& size, ClimateConfig& model) {
  const auto parts = split(size, 'x');
  if (parts.size() != 2) fail_usage("--size: expected HEIGHTxWIDTH for a climate model, found " + size);
  model.height = parse_number<int64_t>(parts[0], "--size");
  model.width = parse_number<int64_t>(parts[1], "--size");
  constexpr int64_t most = 1 << 16;
  for (int64_t extent : {model.height, model.width})
    if (extent < 1 || extent > most)
      fail_usage("--size: expected extents of 1 to " + std::to_string(most) + ", found " + size);
}

/// Refuses networks whose widest layers would be too large to count.
void check_positions(int64_t batch, double positions) {
  constexpr int64_t channels = 512;  // no layer at full resolution has more
  if (positions * double(batch) * double(channels) > double(most_elements))
    fail_usage("--size, --batch: expected at most " + std::to_string(most_elements / channels) +
               " positions in all samples, found " + std::to_string(std::llround(positions)) + " in each of " +
               std::to_string(batch));
}

/// Networks other than DeepCAM normalise where asked.
bool normalises(const Arguments& a) {
  const std::string& word = a.text("batch-norm");
  if (!word.empty() && word != "on" && word != "off") fail_usage("--batch-norm: expected on or off, found " + word);
  return word == "on";
}

/// As the trainers have it: DeepCAM always normalises.
bool normalises(const Arguments& a, ClimateModel model) {
  if (model != ClimateModel::deepcam) return normalises(a);
  if (a.given("batch-norm") && !normalises(a)) fail_usage("--batch-norm: deepcam always normalises");
  return true;
}

}  // namespace

std::vector<Arguments::Flag> with_network_flags(const std::vector<Arguments::Flag>& own) {
  std::vector<Arguments::Flag> flags{
      {"model", "cosmoflow", "cosmoflow, lbann, sc18, deepcam, deeplab or tiramisu: its training step"},
      {"size", "", "extent of the volume, default 128; HEIGHTxWIDTH of the images, default 768x1152"},
      {"batch", "1", "samples"},
      {"batch-norm", "", "lbann, deeplab, tiramisu: on or off (default: off, as they are trained)"}};
  flags.insert(flags.end(), own.begin(), own.end());
  return flags;
}

int64_t wanted_batch(const Arguments& a) {
  return a.integer_within("batch", 1, 1 << 20);
}

Network wanted_network(const Arguments& a) {
  const std::string &model = a.text("model"), &size = a.text("size");
  const int64_t batch = wanted_batch(a);
  if (model == "cosmoflow" || model == "lbann" || model == "sc18") {
    if (a.given("batch-norm") && model != "lbann") fail_usage("--batch-norm has no effect on " + model);
    CosmoflowOptions o;
    if (model == "lbann") o.model = CosmoflowConfig::lbann(), o.model.batch_norm = normalises(a);
    if (model == "sc18") o.model = CosmoflowConfig::sc18(), o.normalisation = Normalisation::mean;
    if (!size.empty()) o.model.size = a.integer_within("size", 8, 4096);
    check_positions(batch, std::pow(double(o.model.size), 3));
    o.batch = batch;
    return o;
  }
  ClimateOptions o;
  if (model == "deepcam")
    o.model.model = ClimateModel::deepcam;
  else if (model == "deeplab")
    o.model.model = ClimateModel::deeplab;
  else if (model == "tiramisu")
    o.model.model = ClimateModel::tiramisu;
  else
    fail_usage("--model: expected cosmoflow, lbann, sc18, deepcam, deeplab or tiramisu, found " + model);
  o.model.batch_norm = normalises(a, o.model.model);
  if (!size.empty()) set_image(size, o.model);
  check_positions(batch, double(o.model.height) * double(o.model.width));
  o.batch = batch;
  return o;
}

}  // namespace convoy::bench
