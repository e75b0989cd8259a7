#define CATCH_CONFIG_EXTERNAL_INTERFACES  // for SkipWithoutDevice
#include "tests/device_check.h"

#include "core/round_up.h"
#include "kernels/device/device.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"
#include "tests/kernel_problems.h"
#include "tests/kernel_tiers.h"

namespace convoy::testing {
namespace {

bool skipped = false;

struct SkipWithoutDevice : Catch::TestEventListenerBase {
  using Catch::TestEventListenerBase::TestEventListenerBase;
  void testRunEnded(const Catch::TestRunStats& stats) override {
    if (skipped && stats.totals.assertions.failed == 0 && stats.totals.testCases.failed == 0) std::exit(77);
  }
};
CATCH_REGISTER_LISTENER(SkipWithoutDevice)

std::map<std::string, int> checked;

bool may_refuse(std::string_view name, const Problem& p) {
  bool found = false;
  for (const auto& kernel : kernel_list()) {
    if (kernel->name() != name) continue;
    found = true;
    const std::string reason = kernel->supports(p).reason;
    const auto begins = [&](const char* text) { return reason.starts_with(text); };
    if (reason != "other op" && !begins("compute capability below") && !begins("not of compute capability") &&
        !begins("not compiled for") && !begins("multiples of 32 input channels"))
      return false;
  }
  return found;
}

TensorDesc slice(const TensorDesc& d, int64_t pitch) {
  return pitch > 0 ? strided(d, pitch) : d;
}
TensorDesc weights_of(const ConvCase& c, DType type) {
  return TensorDesc({c.k, c.kernel[0], c.kernel[1], c.kernel[2], c.x.c() / c.a.groups}, type);
}
TensorDesc gradient_of(const ConvCase& c, DType type) {
  const TensorDesc y = problem({OpKind::conv_forward, c.a}, {TensorDesc(c.x, type), weights_of(c, type)}).out[0];
  return slice(y, round_up(c.y_pitch, 8));
}

}  // namespace

std::shared_ptr<Device> device() {
  static const std::shared_ptr<Device> open = cuda_device_count() > 0 ? open_cuda_device(0) : nullptr;
  if (!open) {
    WARN("skipped: no CUDA device");
    skipped = true;
  }
  return open;
}

const std::map<std::string, int>& checked_problems() {
  return checked;
}

void check_on_device(Device& device, const std::vector<Problem>& problems, bool cudnn) {
  for (const Problem& host : problems) {
    const Problem p = on_cuda(host);
    Truth truth(host);
    for (const auto& kernel : kernel_list()) {
      if (!on_device(*kernel) || (kernel->name() == "cudnn") != cudnn || !kernel->supports(p).ok) continue;
      const Execute run = [&](const Kernel& k, const Problem& q, Run& r) {
        execute_on_device(device, k, on_cuda(q), r);
      };
      const Run first = check_exact_and_bounded(*kernel, host, truth, run);
      Run second = truth.fresh(Fill::normal, 11);
      run(*kernel, host, second);
      for (size_t i = 0; i < p.out.size(); ++i) {
        INFO(kernel->name() << " " << p.text());
        REQUIRE(same_bits(first.out[i], second.out[i]));
      }
      ++checked[std::string(kernel->name()) + " " + std::string(name_of(p.op.kind))];
    }
  }
}

void check_taken(std::string_view name, const Problem& problem) {
  INFO(name << " " << problem.text());
  const bool taken = find_kernel(name, on_cuda(problem)) || may_refuse(name, on_cuda(problem));
  CHECK(taken);
}

std::vector<Problem> forward_problems(const ConvCase& c, DType type) {
  const TensorDesc x = slice(TensorDesc(c.x, type), c.x_pitch), w = weights_of(c, type),
                   bias(Shape::vector(c.k), accumulation_type(type));
  std::vector<Problem> problems{problem({OpKind::conv_forward, c.a}, {x, w}),
                                problem({OpKind::conv_forward, c.a}, {x, w, bias})};
  for (Problem& p : problems) p.out[0] = slice(p.out[0], c.y_pitch);
  return problems;
}

std::vector<Problem> data_problems(const ConvCase& c, DType type) {
  ConvAttrs data = c.a;
  data.result_size = spatial(c.x);
  const TensorDesc dy = gradient_of(c, type), w = weights_of(c, type),
                   bias(Shape::vector(c.x.c()), accumulation_type(type));
  std::vector<Problem> problems{problem({OpKind::conv_backward_data, data}, {dy, w}),
                                problem({OpKind::conv_backward_data, data}, {dy, w, bias})};
  for (Problem& p : problems) p.out[0] = slice(p.out[0], c.x_pitch);
  return problems;
}

std::vector<Problem> sum_problems(const ConvCase& c, DType type) {
  std::vector<Problem> problems;
  const Problem alone = data_problems(c, type)[0];
  for (int64_t apart : {int64_t{0}, c.x.c() + 8})
    problems.push_back(problem({OpKind::conv_backward_data_add, alone.op.attrs},
                               {alone.in[0], alone.in[1], slice(TensorDesc(c.x, type), apart)}));
  for (Problem& p : problems) p.out = alone.out;
  return problems;
}

Problem weights_problem(const ConvCase& c, DType type) {
  ConvAttrs weights = c.a;
  weights.result_size = c.kernel;
  return problem({OpKind::conv_backward_weights, weights},
                 {slice(TensorDesc(c.x, type), c.x_pitch), gradient_of(c, type)});
}

}  // namespace convoy::testing
