#include "apps/common/recalibration.h"

#include <algorithm>
#include <string>
#include <vector>

#include "apps/common/say.h"

namespace convoy::apps {
namespace {

constexpr std::string_view mean_suffix = ".running_mean", variance_suffix = ".running_var";

/// Running mean and variance of one layer.
struct Statistic {
  Tensor mean, variance;
  int64_t channels() const { return mean.shape().c(); }
};

std::vector<Statistic> find_statistics(Program& program) {
  std::vector<Statistic> found;
  for (const std::string& name : program.statistics())
    if (name.ends_with(mean_suffix)) {
      const std::string layer = name.substr(0, name.size() - mean_suffix.size());
      found.push_back({program.store().get(name), program.store().get(layer + std::string(variance_suffix))});
    }
  return found;
}

}  // namespace

void renew_statistics(Program& program, const std::shared_ptr<const SampleSource>& images, int64_t count,
                      const LoaderOptions& order, Communicator* ranks, const StopPoint& stop) {
  const LoaderOptions drawn = order.one_by_one(count, true);
  Loader loader(images, drawn, 0, 0);
  Executor& pass = *program.statistics_pass();
  pass.refresh();
  const std::vector<Statistic> statistics = find_statistics(program);
  size_t channels = 0;
  for (const Statistic& s : statistics) channels += static_cast<size_t>(s.channels());
  program.to_host(program.statistics());
  std::vector<std::vector<std::byte>> training;  // as they are now
  for (const Statistic& s : statistics)
    for (const Tensor& t : {s.mean, s.variance}) training.emplace_back(t.bytes(), t.bytes() + t.desc().bytes());
  const auto restore = [&] {
    size_t kept = 0;
    for (const Statistic& s : statistics)
      for (const Tensor& t : {s.mean, s.variance}) std::ranges::copy(training[kept++], t.bytes());
    program.to_device(program.statistics());
  };
  std::vector<double> sums(3 * channels);  // of means, of mean squares, and how many
  std::vector<std::byte> labels(static_cast<size_t>(images->target_bytes()));
  const auto take_moments = [&] {
    for (int64_t i = drawn.rank; i < count; i += drawn.ranks) {
      if (ranks) ranks->progress();  // whoever waits for this rank sees that it is at work
      stop(i / drawn.ranks, count / drawn.ranks);
      loader.next(pass.tensor("x").bytes(), labels.data());
      // An image whose moments are not finite leaves a channel's statistics alone: the mark shows it.
      for (const Statistic& s : statistics)
        for (int64_t c = 0; c < s.channels(); ++c) s.variance.set(0, 0, 0, 0, c, -1);
      program.to_device(program.statistics());
      pass.run();
      program.to_host(program.statistics());
      size_t at = 0;
      for (const Statistic& s : statistics)
        for (int64_t c = 0; c < s.channels(); ++c, ++at) {
          const double mean = s.mean.at(0, 0, 0, 0, c), variance = s.variance.at(0, 0, 0, 0, c);
          if (variance < 0) continue;
          sums[at] += mean;
          sums[channels + at] += variance + mean * mean;
          sums[2 * channels + at] += 1;
        }
    }
    if (ranks) ranks->all_reduce_sum(std::span(sums));
  };
  try {
    take_moments();
  } catch (...) {  // a checkpoint may be written behind an interruption or an image that cannot be read
    restore();
    throw;
  }
  const std::span<const double> counts = std::span(sums).subspan(2 * channels);
  if (std::find(counts.begin(), counts.end(), 0.0) != counts.end()) {
    restore();
    const std::string what =
        "batch-norm recalibration: a channel's moments are finite on none of " + std::to_string(count) + " images";
    // Whole images may overflow f16 where steps, which are scaled down and skipped, go on.
    if (program.options().compute != DType::f16) throw Error(ErrorKind::diverged, what);
    if (order.rank == 0) say(stderr, "warning: {}: training's statistics stay\n", what);
    return;
  }
  size_t at = 0;
  for (const Statistic& s : statistics)
    for (int64_t c = 0; c < s.channels(); ++c, ++at) {
      const double mean = sums[at] / counts[at];
      s.mean.set(0, 0, 0, 0, c, mean);
      s.variance.set(0, 0, 0, 0, c, std::max(0.0, sums[channels + at] / counts[at] - mean * mean));
    }
  program.to_device(program.statistics());
}

}  // namespace convoy::apps
