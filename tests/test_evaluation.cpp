// What validation makes of images whose pixels have no class.
#include <algorithm>

#include "apps/common/climate_setup.h"
#include "apps/common/climate_task.h"
#include "core/philox.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/small_climate.h"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;
using namespace convoy::testing;

namespace {

constexpr ImageShape evaluated{32, 48, 16};

/// The images of files, each with pixels of class `classes[i]` alone, as they are.
std::shared_ptr<const ClimateSource> labelled_images(const TemporaryFolder& folder,
                                                     const std::vector<uint8_t>& classes) {
  std::vector<ClimateRef> refs;
  for (size_t i = 0; i < classes.size(); ++i) {
    const PhiloxStream random(i, 1);
    std::vector<float> values(static_cast<size_t>(evaluated.height * evaluated.width * evaluated.channels));
    for (size_t k = 0; k < values.size(); ++k) values[k] = random.uniform(k);
    const std::vector<uint8_t> labels(static_cast<size_t>(evaluated.height * evaluated.width), classes[i]);
    const std::string path = folder / ("image-" + std::to_string(i) + ".h5");
    write_climate_file(path, evaluated, values, labels, {});
    refs.push_back(images_in(path).at(0));
  }
  ClimateReading reading;
  for (std::vector<double>* list : {&reading.stats.mean, &reading.stats.square_mean, &reading.stats.minimum})
    list->assign(16, 0);
  reading.stats.maximum.assign(16, 1);
  return std::make_shared<ClimateSource>(refs, reading);
}

}  // namespace

TEST_CASE("images without a class count in no validation", "[climate]") {
  const ClimateOptions o = small_climate();
  Program program(plan_program(o, kernel_list()), o, 3);
  const TemporaryFolder one, three, none;
  const ClimateEvaluation alone = evaluate_climate(program, labelled_images(one, {0}), {}),
                          among = evaluate_climate(program, labelled_images(three, {0, unlabelled, unlabelled}), {});
  CHECK(alone.loss > 0);
  CHECK(among.loss == alone.loss);
  CHECK(among.score.samples == 1);
  CHECK(among.score.mlperf() == alone.score.mlperf());

  // Of nothing but such images no class is or was predicted, which as an IoU of 1 would reach every target.
  ClimateTask::Settings settings;
  settings.validation = labelled_images(none, {unlabelled, unlabelled});
  settings.measure = Measure::pooled;
  settings.target = 0.5;
  CHECK_THROWS_WITH(ClimateTask(settings).validate(program, nullptr, {}),
                    Catch::Contains("image-0.h5: expected a class below 255 in this or another of 2 validation images, "
                                    "found none"));
}
