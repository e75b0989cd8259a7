// Kernels of CUDA devices against the references, for tests of several files. Without a device they are skipped.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/device_run.h"

namespace convoy::testing {

/// The device of all tests, or null: then the program ends with 77, which CTest counts as skipped, if nothing fails.
std::shared_ptr<Device> device();

/// T0 and T1 of the kernels that take the problems on the device, all but cuDNN or that alone, and the same bits from a
/// second run.
void check_on_device(Device& device, const std::vector<Problem>& problems, bool cudnn = false);
/// How many, by kernel and op.
const std::map<std::string, int>& checked_problems();

/// That a kernel of this name takes the problem, or refuses it for the device's sake or as a first layer.
void check_taken(std::string_view name, const Problem& problem);

/// A convolution, of `x_pitch` and `y_pitch` elements from pixel to pixel (0: dense).
struct ConvCase {
  Shape x;
  int64_t k;
  Int3 kernel;
  ConvAttrs a;
  int64_t x_pitch = 0, y_pitch = 0;
};
/// Forward without and with a bias.
std::vector<Problem> forward_problems(const ConvCase& c, DType type);
/// Data gradients without and with a bias; weight gradients. Gradients of outputs have eights of channels between them.
std::vector<Problem> data_problems(const ConvCase& c, DType type);
/// Data gradients on top of something dense, and of a slice.
std::vector<Problem> sum_problems(const ConvCase& c, DType type);
Problem weights_problem(const ConvCase& c, DType type);

}  // namespace convoy::testing
