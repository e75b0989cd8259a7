// n ranks with b samples each train like one rank with n*b samples.
#include <catch2/catch.hpp>
#include <map>

#include "dist/shared_buffer.h"
#include "kernels/kernel_list.h"
#include "kernels/simd/cpu.h"
#include "models/program.h"
#include "tests/host_device.h"
#include "tests/rank_threads.h"
#include "tests/worse.h"

using namespace convoy;

namespace {

constexpr double rate = 0.05;

CosmoflowOptions small_cosmoflow(int64_t batch) {
  CosmoflowOptions o;
  o.model.size = 8, o.model.conv_size = 4, o.model.layers = 2, o.model.fc1_size = 16, o.model.fc2_size = 8;
  o.batch = batch;
  o.compute = DType::f64;
  o.plan.threads = 1;
  return o;
}

ClimateOptions small_deepcam(int64_t batch) {
  ClimateOptions o;
  o.model.height = 32, o.model.width = 32, o.model.width_divisor = 16;
  o.batch = batch;
  o.compute = DType::f64;
  o.plan.threads = 1;
  return o;
}

/// Samples of the whole step are numbered; a pass of a rank takes some neighbours.
void fill(const Tensor& t, int64_t batch, int64_t first, uint64_t stream) {
  const PhiloxStream random(4, stream);
  const int64_t each = t.shape().elements() / batch;
  for (int64_t i = 0; i < batch * each; ++i) {
    const auto at = static_cast<uint64_t>(first * each + i);
    if (t.dtype() == DType::i16) t.data<int16_t>()[i] = static_cast<int16_t>(random.below(at, 5));
    if (t.dtype() == DType::u8) t.data<uint8_t>()[i] = static_cast<uint8_t>(random.below(at, 3));
    if (t.dtype() == DType::f64) t.data<double>()[i] = random.uniform(at);
    if (t.dtype() == DType::f32) t.data<float>()[i] = random.uniform(at);
  }
}

struct Result {
  std::vector<double> weights, start, statistics;
  std::vector<double> losses;
};

/// Trains on one rank of `ranks`; `o.batch` samples per pass. With a team weights are held once; a device is this
/// rank's own.
template <class Options>
Result train(Options o, Collectives& world, Communicator* batch_norm, int steps, Communicator* team = nullptr,
             std::shared_ptr<Device> device = nullptr, bool seen = false) {
  o.training.averaging.ranks = world.size();
  o.training.averaging.bucket_bytes = 3000;  // several buckets
  if (o.compute == DType::f64) o.training.averaging.wire = DType::f64;
  if (team) o.plan.team = team->size(), o.plan.place = team->rank();
  ProgramPlans plans = plan_program(o, kernel_list());
  const auto shared = team ? share_buffer(*team, plans.shared_bytes()) : nullptr;
  if (team && !shared) throw std::runtime_error("threads of one process cannot share memory");
  Program program = device ? Program(std::move(plans), o, 3, device) : Program(std::move(plans), o, 3, shared);
  const std::vector<Communicator*> groups{&world, batch_norm ? batch_norm : &world};
  for (Executor* executor : {&program.step(), program.micro()})
    if (executor) executor->set_groups(groups), executor->set_team(team);
  if (seen && !program.step().meet_peers(
                  world, [](int64_t bytes) { return std::make_shared<Buffer>(bytes, Buffer::Fill::zero); }))
    throw std::runtime_error("nothing travels from device to device");
  if (team) team->barrier();  // initial parameters are there
  if (team) world.set_window(program.step().window());
  const auto values_of = [&](const std::vector<std::string>& names) {
    program.to_host();
    std::vector<double> all;
    for (const std::string& name : names) {
      const Tensor& t = program.store().get(name);
      for_each_index(t.shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
        all.push_back(t.at(n, d, h, w, c));
      });
    }
    return all;
  };
  Result result;
  result.start = values_of(program.parameters());
  double* state = program.store().get(step_state_name).template data<double>();
  state[int(StepField::learning_rate)] = rate;
  const int64_t passes = o.training.accumulation, each = o.batch * world.size();
  for (int step = 0; step < steps; ++step) {
    state[int(StepField::step)] = step;
    for (int64_t pass = 0; pass < passes; ++pass) {
      Executor& e = pass + 1 < passes ? *program.micro() : program.step();
      const int64_t first = (step * passes + pass) * each + world.rank() * o.batch;
      state[int(StepField::micro_step)] = double(pass);
      state[int(StepField::first_sample)] = double(first);
      fill(e.tensor("x"), o.batch, first, 1);
      fill(e.tensor("target"), o.batch, first, 2);
      if (world.size() > 1 && pass + 1 == passes)
        e.tensor(stop_request_name).template data<float>()[0] = step == 1 && world.rank() == 0;
      e.run();
    }
    Executor& e = program.step();
    result.losses.push_back(e.tensor("loss").at(0, 0, 0, 0, 0));
    // Catch's assertions are for one thread alone; ranks throw.
    if (world.size() > 1 && (e.tensor("stop_requests").template data<float>()[0] > 0) != (step == 1))
      throw std::runtime_error("a request to stop was not seen by all ranks in its step");
  }
  program.step().leave_peers();
  if (o.training.lag > 0)
    for (const PlannedNode& node : program.step().plan().nodes)
      if (node.op.kind == OpKind::all_reduce_later) world.wait(node.op.template as<AllReduceAttrs>().id);
  result.weights = values_of(program.parameters()), result.statistics = values_of(program.statistics());
  return result;
}

enum class Teams : uint8_t { none, one };
enum class On : uint8_t { cpu, device, seen_device };
enum class Norms : uint8_t { shared, own };

template <class Options>
Result train_on(int ranks, Options o, int steps, Teams teams = Teams::none, On on = On::cpu,
                Norms norms = Norms::shared) {
  auto world = make_thread_communicators(ranks), batch_norm = make_thread_communicators(ranks),
       team = make_thread_communicators(ranks);
  o.training.averaging.batch_norm_ranks = std::is_same_v<Options, ClimateOptions> && norms == Norms::shared ? ranks : 1;
  std::vector<Result> results(static_cast<size_t>(ranks));
  on_ranks(world, [&](int rank, Collectives& c) {
    const auto r = static_cast<size_t>(rank);
    results[r] = train(o, c, batch_norm[r].get(), steps, teams == Teams::one ? team[r].get() : nullptr,
                       on == On::cpu ? nullptr : std::make_shared<testing::HostDevice>(), on == On::seen_device);
  });
  for (const Result& r : results) CHECK((r.weights == results[0].weights));  // ranks never drift apart
  return results[0];
}

/// Largest difference of a weight over the largest change of a weight.
double distance(const Result& a, const Result& b) {
  double worst = 0, change = 0;
  for (size_t i = 0; i < a.weights.size(); ++i) {
    worst = testing::worse(worst, std::fabs(a.weights[i] - b.weights[i]));
    change = std::max(change, std::fabs(a.weights[i] - a.start[i]));
  }
  REQUIRE(change > 0);
  return worst / change;
}

}  // namespace

TEST_CASE("n ranks with b samples train like one with n*b samples", "[averaging]") {
  // A gradient element sums at most batch * 8^3 positions * 27 taps in another order, and three steps pass it on.
  for (int ranks : {2, 3, 4, 5}) {
    const int64_t each = 2;
    auto whole = make_self_communicator();
    const Result one = train(small_cosmoflow(each * ranks), *whole, nullptr, 3);
    const Result many = train_on(ranks, small_cosmoflow(each), 3);
    const double bound = 3 * double(each * ranks) * 512 * 27 * 0x1p-53;
    INFO(ranks << " ranks");
    CHECK(distance(one, many) < bound);
    for (size_t i = 0; i < one.losses.size(); ++i) CHECK(many.losses[i] == Approx(one.losses[i]).epsilon(bound));
  }
}

TEST_CASE("accumulated passes on ranks, f32 kernels, and gradients that travel narrow", "[averaging]") {
  auto whole = make_self_communicator();
  const Result one = train(small_cosmoflow(8), *whole, nullptr, 2);
  CosmoflowOptions o = small_cosmoflow(2);
  o.training.accumulation = 2;
  CHECK(distance(one, train_on(2, o, 2)) < 2.0 * 8 * 512 * 27 * 0x1p-53);
  o.compute = DType::f32;
  CHECK(distance(one, train_on(2, o, 2)) < 2.0 * 8 * 512 * 27 * 0x1p-24);
  // bf16: each gradient is rounded on its way out and back, to 2^-9 of its size, over two steps.
  o.training.averaging.wire = DType::bf16;
  CHECK(distance(one, train_on(2, o, 2)) < 2 * 2 * 0x1p-8);
}

TEST_CASE("values of devices travel through the host or from device to device, with the same bits", "[averaging]") {
  CosmoflowOptions o = small_cosmoflow(2);
  o.training.accumulation = 2;
  ClimateOptions shared_norms = small_deepcam(1);
  const auto check_bits = [](int ranks, const auto& options, On on = On::device, Norms norms = Norms::shared) {
    const Result there = train_on(ranks, options, 4, Teams::none, on, norms),
                 here = train_on(ranks, options, 4, Teams::none, On::cpu, norms);
    CHECK((there.start == here.start));
    CHECK((there.weights == here.weights));
    CHECK((there.weights != there.start));
    CHECK((there.losses == here.losses));
  };
  for (DType compute : {DType::f64, DType::f32, DType::bf16}) {
    o.compute = compute;
    check_bits(3, o);
    if (compute != DType::f64) check_bits(3, o, On::seen_device);
  }
  o.training.averaging.wire = DType::bf16;
  check_bits(2, o);
  check_bits(2, shared_norms);
  shared_norms.compute = DType::f32;
  check_bits(2, shared_norms, On::seen_device);
  // Nothing waits between the first bucket and the last.
  for (On on : {On::device, On::seen_device}) check_bits(2, shared_norms, on, Norms::own);
}

TEST_CASE("a team divides packing and updating and averages buckets in place, with the same bits", "[averaging]") {
  CosmoflowOptions o = small_cosmoflow(2);
  o.model.fc1_size = 256;  // large enough for updates by element
  o.training.accumulation = 2;
  const auto check_bits = [&] {
    const Result shared = train_on(3, o, 3, Teams::one), apart = train_on(3, o, 3);
    CHECK((shared.start == apart.start));
    CHECK((shared.weights == apart.weights));
    CHECK((shared.weights != shared.start));
    CHECK((shared.losses == apart.losses));
  };
  for (DType compute : {DType::f64, DType::f32, DType::bf16}) {
    o.compute = compute;
    check_bits();
  }
  for (OptimizerKind optimizer : {OptimizerKind::adam, OptimizerKind::lamb}) {
    o.training.optimizer = optimizer;
    check_bits();
  }
  o.training.optimizer = OptimizerKind::sgd, o.training.sgd.larc = 0.002;
  check_bits();
  o.training.sgd.larc = 0, o.compute = DType::f32;
  o.training.l2 = 0.01;  // its penalty reads parameters right before they are updated
  check_bits();
  o.training.l2 = 0;
  // Packs come first and are divided among all.
  const Plan alone = plan_program(o, kernel_list()).step;
  o.plan.team = 3;
  o.plan.place = 1;
  o.training.averaging.ranks = 3;
  const Plan plan = plan_program(o, kernel_list()).step;
  CHECK(alone.shared_bytes == 0);
  CHECK(alone.shared_states.empty());
  // Every update belongs to one member, or an aligned part of it to each.
  int by_element = 0;
  std::vector<int> updates(3);
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const PlannedNode& node = plan.nodes[i];
    if (!op_def(node.op.kind).division) continue;
    CHECK(i >= plan.first_update);
    if (node.part.count == 0) {
      ++updates.at(static_cast<size_t>(node.owner));
      continue;
    }
    ++by_element;
    const int64_t elements = plan.values[static_cast<size_t>(node.in[0])].desc.shape.elements();
    CHECK(node.owner == -1);
    CHECK(node.part.begin % 16 == 0);
    CHECK(node.part.begin == Approx(double(elements) / 3).margin(16));
    CHECK(node.part.count == Approx(double(elements) / 3).margin(16));
    CHECK(plan.problem_of(node).in[0].shape.elements() == node.part.count);
  }
  CHECK(by_element == 1);
  CHECK(*std::min_element(updates.begin(), updates.end()) > 0);
  CHECK(plan.shared_states.size() == 2 * plan_program(o, kernel_list()).step_tape.parameters().size());
  std::vector<int> packs(3);
  int64_t bytes = 0;
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const PlannedNode& node = plan.nodes[i];
    const bool pack = node.op.kind == OpKind::pack;
    CHECK((pack || (op_def(node.op.kind).division && node.part.count == 0)) == (node.owner >= 0));
    if (!pack) continue;
    CHECK(i < plan.team_nodes);
    ++packs.at(static_cast<size_t>(node.owner));
    const auto v = static_cast<size_t>(node.out[0]);
    CHECK(plan.offset[v] < 0);
    CHECK(plan.shared_offset[v] >= 0);
    bytes += plan.values[v].desc.bytes();
  }
  if (bytes == 0) return;  // the reference kernels of a build for other processors pack nothing
  if (cpu_features().avx2) CHECK(*std::min_element(packs.begin(), packs.end()) > 0);  // else oneDNN alone packs, twice
  CHECK(plan.window_begin >= bytes);
  for (const PlannedNode& node : plan.nodes)
    if (node.op.kind == OpKind::bucket)
      for (ValueId id : {node.in[0], node.out[0]}) {
        const int64_t at = plan.shared_offset[id];
        CHECK(at >= plan.window_begin);
        CHECK(at < plan.window_begin + plan.window_bytes);
      }
}

TEST_CASE("batch-norm statistics over a group of ranks are those of the whole batch", "[averaging]") {
  // BN amplifies rounding; f64 leaves room.
  auto whole = make_self_communicator();
  for (int ranks : {2, 3}) {
    const Result one = train(small_deepcam(2 * ranks), *whole, nullptr, 2), many = train_on(ranks, small_deepcam(2), 2);
    INFO(ranks << " ranks");
    CHECK(distance(one, many) < 1e-7);
    for (size_t i = 0; i < one.losses.size(); ++i) CHECK(many.losses[i] == Approx(one.losses[i]).epsilon(1e-7));
    // The variance of a small batch is made unbiased by the pixels of all ranks.
    REQUIRE(!one.statistics.empty());
    REQUIRE(many.statistics.size() == one.statistics.size());
    double worst = 0;
    for (size_t i = 0; i < one.statistics.size(); ++i)
      worst = std::max(worst, std::abs(many.statistics[i] - one.statistics[i]) / (1 + std::abs(one.statistics[i])));
    CHECK(worst < 1e-7);
  }
}

TEST_CASE("lagged gradients arrive one step later, on any number of ranks", "[averaging]") {
  auto whole = make_self_communicator();
  CosmoflowOptions o = small_cosmoflow(6);
  o.training.lag = 1;
  const Result one = train(o, *whole, nullptr, 3);
  o.batch = 2;
  const Result many = train_on(3, o, 3);
  CHECK(distance(one, many) < 3.0 * 6 * 512 * 27 * 0x1p-53);
  CosmoflowOptions prompt = small_cosmoflow(6);
  const Result first = train(prompt, *whole, nullptr, 1), lagged = [&] {
    o.batch = 6;
    return train(o, *whole, nullptr, 2);
  }();
  CHECK((lagged.weights == first.weights));
}

TEST_CASE("means that divide by another number than there are ranks are refused", "[averaging]") {
  CosmoflowOptions o = small_cosmoflow(1);
  o.compute = DType::f32, o.training.averaging.ranks = 2;
  Program program(plan_program(o, kernel_list()), o, 1);
  const auto alone = make_self_communicator();
  CHECK_THROWS_WITH(program.step().set_groups({alone.get()}), Catch::Contains("expected a group of 2 ranks, found 1"));
  CHECK_THROWS_WITH(program.step().set_groups({nullptr}), Catch::Contains("expected a group of 2 ranks, found none"));
}

TEST_CASE("messages are called as their nodes", "[averaging]") {
  ClimateOptions o = small_deepcam(1);
  o.training.averaging.ranks = 4, o.training.averaging.batch_norm_ranks = 2, o.training.averaging.bucket_bytes = 3000;
  std::map<int64_t, std::string> names;
  for (const PlannedNode& node : plan_program(o, kernel_list()).step.nodes) {
    if (node.op.kind != OpKind::all_reduce_start) continue;
    const auto& a = node.op.as<AllReduceAttrs>();
    INFO(node.name);
    CHECK(names.emplace(a.id, node.name).second);  // at most one of a number is under way
    const std::string name = all_reduce_name(a.id);
    CHECK((a.group == 0 ? name + ".start" == node.name : name.starts_with("batch-norm statistics ")));
  }
  CHECK(names.at(all_reduce_id(Averaged::bucket, 1)) == "bucket1.start");
  CHECK(names.at(all_reduce_id(Averaged::loss)) == "loss.start");
  CHECK(names.at(all_reduce_id(Averaged::stop)) == "stop.start");
  CHECK(names.contains(all_reduce_id(Averaged::statistics, 1)));
}

TEST_CASE("gradients are written into their buckets and read from them without copies", "[averaging]") {
  CosmoflowOptions o = small_cosmoflow(2);
  o.compute = DType::f32;
  o.training.averaging.ranks = 2;
  const Plan plan = plan_program(o, kernel_list()).step;
  int buckets = 0, in_place = 0, parts = 0, backward = 0;
  bool started = false;
  for (const PlannedNode& node : plan.nodes) {
    if (node.op.kind == OpKind::all_reduce_start && node.name.starts_with("bucket")) started = true, ++buckets;
    if (started && node.name.ends_with("backward_weights")) ++backward;
    const bool into = node.op.kind == OpKind::bucket;
    if (!into && node.op.kind != OpKind::unbucket) continue;
    const int64_t from = plan.offset[(into ? node.out : node.in)[0]];
    const int64_t length = plan.value((into ? node.out : node.in)[0]).desc.bytes();
    for (ValueId id : into ? node.in : node.out) {
      const int64_t at = plan.offset[id];
      ++parts, in_place += at >= from && at < from + length;
    }
  }
  CHECK(buckets == 1);
  CHECK(parts > 10);
  CHECK(in_place == parts);
  // What moves nothing counts no traffic; with a place of its own every value is read and written.
  const auto traffic = [&](const Plan& p) {
    std::map<OpKind, std::pair<int64_t, int64_t>> found;  // counted, and twice the gradients
    for (const PlannedNode& node : p.nodes) {
      if (!node.name.starts_with("bucket")) continue;  // the loss and requests to stop are kept: copies
      const bool into = node.op.kind == OpKind::bucket;
      auto& [counted, all] = found[node.op.kind];
      counted += node.bytes;
      for (ValueId id : into ? node.in : node.out) all += 2 * p.value(id).desc.bytes();
    }
    return found;
  };
  CHECK(traffic(plan).size() == 4);
  for (const auto& [kind, bytes] : traffic(plan)) CHECK(bytes.first == 0);
  o.plan.in_place = false;
  for (const auto& [kind, bytes] : traffic(plan_program(o, kernel_list()).step)) CHECK(bytes.first == bytes.second);
  o.plan.in_place = true;
  // A lagged bucket is copied into its state, and the parts of the one before out of theirs.
  o.training.lag = 1;
  for (const auto& [kind, bytes] : traffic(plan_program(o, kernel_list()).step)) {
    INFO(name_of(kind));
    if (kind == OpKind::all_reduce_later) CHECK(bytes.first == bytes.second);
    if (kind == OpKind::bucket) CHECK(bytes.first == 0);
  }
  o.training.lag = 0;
  o.training.averaging.bucket_bytes = 256;
  started = false, backward = 0, buckets = 0;
  for (const PlannedNode& node : plan_program(o, kernel_list()).step.nodes) {
    if (node.op.kind == OpKind::all_reduce_start && node.name.starts_with("bucket")) started = true, ++buckets;
    if (started && node.name.ends_with("backward_weights")) ++backward;
  }
  CHECK(buckets > 2);
  CHECK(backward > 2);  // the first message leaves while backward goes on
}
