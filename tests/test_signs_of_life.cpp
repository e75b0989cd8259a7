// Who validates for long tells those that wait: loops over samples call progress() for each.
#include "apps/common/climate_setup.h"
#include "apps/common/cosmoflow_setup.h"
#include "apps/common/recalibration.h"
#include "dist/local.h"
#include "io/file.h"
#include "io/tfrecord.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/small_climate.h"
#include "tests/temporary.h"

using namespace convoy;
using namespace convoy::apps;
using namespace convoy::testing;

namespace {

/// A single rank that counts its signs of life.
class Counting final : public Communicator {
 public:
  int signs = 0;
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void start(int64_t id, const AllReduce& what) override { self_->start(id, what); }
  void wait(int64_t id) override { self_->wait(id); }
  void progress() override { ++signs; }
  void wait_until(const std::function<bool()>& holds, const std::string& name) override {
    self_->wait_until(holds, name);
  }
  void broadcast(std::span<std::byte> data, int root) override { self_->broadcast(data, root); }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole) override {
    self_->all_gather(part, whole);
  }
  void barrier() override { self_->barrier(); }
  CommunicationTimes times() const override { return self_->times(); }

 private:
  std::unique_ptr<Collectives> self_ = make_self_communicator();
};

constexpr int samples = 3;

}  // namespace

TEST_CASE("predicting volumes gives a sign of life for each", "[ranks]") {
  const TemporaryFolder folder;
  CosmoflowOptions o;
  o.model.size = 16, o.model.fc1_size = 16, o.model.fc2_size = 8;
  const std::vector<std::byte> voxels(16 * 16 * 16 * 4 * sizeof(int16_t));
  for (int i = 0; i < samples; ++i)
    write_file(folder / ("univ_" + std::to_string(i) + ".tfrecord"),
               encode_tfrecord(voxels, std::vector<float>(4, 0.5f)));
  CosmoflowReading reading;
  reading.expected = {16, 4, 4, DType::i16};
  Program program(plan_program(o, kernel_list()), o, 1);
  Counting ranks;
  CHECK(predict(program, samples_below(folder.path(), reading.read), reading, {}, &ranks).count() == samples);
  CHECK(ranks.signs >= samples);
}

TEST_CASE("evaluating images and renewing statistics gives a sign of life for each", "[ranks]") {
  const TemporaryFolder folder;
  constexpr ImageShape shape{32, 48, 16};
  const std::vector<float> values(static_cast<size_t>(shape.height * shape.width * shape.channels), 0.5f);
  const std::vector<uint8_t> labels(static_cast<size_t>(shape.height * shape.width), 1);
  for (int i = 0; i < samples; ++i)
    write_climate_file(folder / ("data-2106-01-0" + std::to_string(i + 1) + "-00-0.h5"), shape, values, labels, {});
  ClimateReading reading;
  reading.stats = image_stats(values, shape.channels);
  widen_constant_channels(reading.stats);
  const auto source = std::make_shared<ClimateSource>(images_below(folder.path()), reading);
  ClimateOptions o = convoy::testing::small_climate();
  o.statistics_pass = true;
  Program program(plan_program(o, kernel_list()), o, 1);
  Counting evaluating, renewing;
  evaluate_climate(program, source, {}, &evaluating);
  CHECK(evaluating.signs >= samples);
  renew_statistics(program, source, samples, {}, &renewing);
  CHECK(renewing.signs >= samples);
}
