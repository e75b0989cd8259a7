// Networks that nobody would draw: whatever passes make of them, they train as they were recorded.
#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/kernel_list.h"
#include "layers/layers.h"
#include "models/program.h"
#include "tests/catch.hpp"
#include "tests/kernel_tiers.h"

using namespace convoy;

namespace {

/// Numbers one after another.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed, hash_name("networks")) {}
  int64_t from(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_.below(next_++, static_cast<uint64_t>(most - least + 1)));
  }
  bool once_in(int64_t many) { return from(1, many) == 1; }

 private:
  PhiloxStream random_;
  uint64_t next_ = 0;
};

/// A layer of some kind on `x`, perhaps with another value of `made` beside it; no_value where the kind does not fit.
ValueId add_layer(Tape& t, Draw& draw, const std::string& name, ValueId x, const std::vector<ValueId>& made) {
  const Shape s = t.desc(x).shape;
  const int64_t depth = s.d() > 1 ? draw.from(1, 2) : 1;
  switch (draw.from(0, 12)) {
    case 0:
    case 1: {
      const int64_t k = draw.from(1, 3), stride = draw.once_in(4) ? 2 : 1, dilation = draw.once_in(4) ? 2 : 1;
      const int64_t groups = draw.once_in(5) ? s.c() : s.c() % 2 == 0 && draw.once_in(4) ? 2 : 1;
      return conv(t, name, x,
                  {.channels = groups == s.c() ? s.c() : 4 * draw.from(1, 3),
                   .kernel = {depth, k, k},
                   .stride = {1, stride, stride},
                   .dilation = {1, dilation, dilation},
                   .groups = groups,
                   .bias = draw.once_in(2) ? Bias::zero : Bias::none});
    }
    case 2: {
      if (s.h() > 14 || s.w() > 14) return no_value;
      ConvOptions o{.channels = 4 * draw.from(1, 2), .kernel = {1, 3, 3}, .stride = {1, 2, 2}};
      if (draw.once_in(2)) {
        o.padding = Padding::explicit_;
        o.pad_low = o.pad_high = o.output_padding = {0, 1, 1};
      }
      return deconv(t, name, x, o);
    }
    case 3:
      return relu(t, name, x);
    case 4:
      return leaky_relu(t, name, x, 0.25);
    case 5: {
      const ValueId y = batch_norm(t, name, x, {});
      return draw.once_in(2) ? relu(t, name + ".relu", y) : y;
    }
    case 6:
      return dropout(t, name, x, 0.3);
    case 7:
      for (const ValueId v : made)
        if (t.desc(v).shape == s && draw.once_in(2)) return add(t, name, x, v);
      return no_value;
    case 8: {
      std::vector<ValueId> parts{x};
      for (const ValueId v : made) {
        const Shape& other = t.desc(v).shape;
        if (other.d() == s.d() && other.h() == s.h() && other.w() == s.w() && draw.once_in(3)) parts.push_back(v);
        if (parts.size() == 3) break;
      }
      std::swap(parts.front(), parts.back());
      return concat(t, name, parts);
    }
    case 9: {
      const int64_t begin = draw.from(0, s.c() - 1);
      return slice(t, name, x, begin, draw.from(1, s.c() - begin));
    }
    case 10: {
      const ValueId y = scale(t, name, x, draw.once_in(2) ? 0.5 : -0.5);
      return draw.once_in(2) ? relu(t, name + ".relu", y) : y;
    }
    case 11: {
      if (s.h() < 4 || s.w() < 4) return no_value;
      const int64_t extent = draw.from(2, 3);  // of windows that overlap or not
      const PoolAttrs p{.kernel = {1, extent, extent}, .stride = {1, 2, 2}};
      return draw.once_in(3) ? avg_pool(t, name, x, p) : max_pool(t, name, leaky_relu(t, name + ".active", x, 0.3), p);
    }
    default:
      return channel_affine(t, name, x);
  }
}

Tape record(uint64_t seed, const ProgramOptions& o) {
  Draw draw(seed);
  Tape t = new_tape(o);
  const bool volume = draw.once_in(4);
  const Shape in{o.batch, volume ? draw.from(2, 5) : 1, draw.from(4, 13), draw.from(4, 13), draw.from(1, 9)};
  const ValueId x = t.input("x", TensorDesc(in, t.float_type()));
  std::vector<ValueId> made{conv(t, "first", x, {.channels = 4 * draw.from(1, 3), .kernel = {volume ? 3 : 1, 3, 3}})};
  for (int64_t i = 0, layers = draw.from(8, 24); i < layers; ++i) {
    const ValueId from = draw.once_in(2) ? made.back() : made[static_cast<size_t>(draw.from(0, std::ssize(made) - 1))];
    const ValueId y = add_layer(t, draw, "layer" + std::to_string(i), from, made);
    if (y != no_value) made.push_back(y);
  }
  // All that nothing has read, and others, at one size.
  std::vector<ValueId> ends;
  for (const ValueId v : made) {
    const bool read = std::any_of(t.nodes().begin(), t.nodes().end(), [&](const Node& node) {
      return std::find(node.in.begin(), node.in.end(), v) != node.in.end();
    });
    const Shape& s = t.desc(v).shape;
    if (s.d() == in.d() && (!read || draw.once_in(3)))
      ends.push_back(s.h() == in.h() && s.w() == in.w()
                         ? v
                         : resize(t, "end" + std::to_string(v), v, in.h(), in.w(), Corners::asymmetric));
  }
  const ValueId logits = conv(t, "logits", concat(t, "ends", ends), {.channels = 3, .kernel = {1, 1, 1}});
  t.keep(logits, "logits");
  t.keep(pixel_loss(t, "loss", PixelLossAttrs{}, logits, t.input("target", label_desc(t.desc(logits).shape))),
         data_loss_name);
  return t;
}

using Values = std::map<std::string, std::vector<double>>;

/// Losses of some steps on noise, and all states behind them.
Values trained(uint64_t seed, const ProgramOptions& o) {
  ProgramTapes tapes{finish_training(record(seed, o), o), finish_evaluation(record(seed, o), o), {}, {}};
  if (o.training.accumulation > 1) tapes.micro = finish_training(record(seed, o), o, Ending::accumulate);
  Program program(plan_program(std::move(tapes), o.plan, kernel_list()), o, 7);
  Values values;
  const int64_t passes = o.training.accumulation;
  for (int64_t pass = 0; pass < 3 * passes; ++pass) {
    const bool last = (pass + 1) % passes == 0;
    Executor& e = last ? program.step() : *program.micro();
    const PhiloxStream random(seed, static_cast<uint64_t>(pass));
    const Tensor x = e.tensor("x"), y = e.tensor("target");
    uint64_t i = 0;
    for_each_index(x.shape(), [&](auto... at) { x.set(at..., random.normal(i++)); });
    for_each_index(y.shape(), [&](auto... at) { y.set(at..., double(random.below(i++, 3))); });
    program.set_clock({.learning_rate = 0.01,
                       .step = pass / passes,
                       .seed = 99,
                       .first_sample = 10 * pass,
                       .micro_step = pass % passes});
    e.run();
    if (last) values["losses"].push_back(e.tensor("loss").at(0, 0, 0, 0, 0));
  }
  for (const auto& [name, tensor] : program.store().entries())
    for_each_index(tensor.shape(), [&](auto... at) { values[name].push_back(tensor.at(at...)); });
  return values;
}

/// Root of the mean square of a list, or of the difference of two.
double size(const std::vector<double>& a, const std::vector<double>* b = nullptr) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i] - (b ? (*b)[i] : 0), 2);
  return std::sqrt(sum / double(a.size()));
}

}  // namespace

TEST_CASE("passes leave random networks the numbers they have without", "[program]") {
  const auto [type, bound] = GENERATE(std::pair{DType::f64, 1e-9}, std::pair{DType::f32, 5e-3});
  const uint64_t networks = testing::sanitized ? 3 : 60;
  for (uint64_t seed = 1; seed <= networks; ++seed) {
    Draw draw(seed + 1000);
    ProgramOptions plain;
    plain.compute = type, plain.batch = draw.from(1, 3);
    plain.training.accumulation = draw.once_in(4) ? 2 : 1, plain.training.lag = draw.once_in(4) ? 1 : 0;
    ProgramOptions passes = plain;
    plain.fuse = false, plain.plan = plain_options(plain.plan);
    passes.plan.threads = 2;
    passes.plan.recompute = draw.once_in(2), passes.plan.fused_kernels = !draw.once_in(3);
    passes.sparse_gradients = !draw.once_in(3), passes.gradient_sums = !draw.once_in(3);
    const Values expected = trained(seed, plain), found = trained(seed, passes);
    for (const auto& [name, values] : found) {
      INFO(name_of(type) << " network " << seed << ", " << name);
      REQUIRE(expected.contains(name));
      const std::vector<double>& same = expected.at(name);
      REQUIRE(same.size() == values.size());
      CHECK(size(values, &same) <= bound * (1e-2 + size(same)));
    }
  }
}
