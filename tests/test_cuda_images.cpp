// CUDA kernels of convolutions in 16 bits, most of them of images for the copy engine of compute capability 9.0, at
// shapes that reach over every side of their tiles.
#include "tests/catch.hpp"
#include "tests/device_check.h"
#include "tests/kernel_problems.h"

using namespace convoy;
using namespace convoy::testing;

namespace {

constexpr Int3 one{0, 1, 1}, two{0, 2, 2}, six{0, 6, 6}, far{0, 36, 36}, half{1, 2, 2};

/// All kernels on the problems of the cases in both types, and that those named are among them.
template <class Problems>
void check_cases(std::initializer_list<const char*> names, const std::vector<ConvCase>& cases, Problems&& problems) {
  const auto open = device();
  if (!open) return;
  for (DType type : {DType::bf16, DType::f16})
    for (const ConvCase& c : cases)
      for (const Problem& p : problems(c, type)) {
        check_on_device(*open, {p});
        for (const char* name : names) check_taken(name, p);
      }
}

std::vector<Problem> weights_alone(const ConvCase& c, DType type) {
  return {weights_problem(c, type)};
}
std::vector<Problem> all_passes(const ConvCase& c, DType type, bool with_data = true) {
  std::vector<Problem> all = forward_problems(c, type);
  if (with_data)
    for (Problem& p : data_problems(c, type)) all.push_back(p);
  all.push_back(weights_problem(c, type));
  return all;
}

}  // namespace

TEST_CASE("weight gradients in the widest tiles of the tensor cores", "[cuda]") {
  check_cases({"cuda_mma", "cuda_wgmma"},
              {{{2, 1, 21, 19, 128}, 248, {1, 3, 3}, {.pad_low = one, .pad_high = one}},
               {{1, 1, 37, 41, 256}, 128, {1, 1, 1}, {}},
               {{3, 1, 5, 7, 256}, 120, {1, 1, 1}, {}},
               {{1, 1, 24, 33, 256}, 104, {1, 1, 1}, {}, 272, 272},
               {{1, 1, 45, 52, 16}, 128, {1, 5, 5}, {.stride = half, .pad_high = {0, 2, 1}}, 144, 144},
               {{2, 1, 9, 14, 64}, 128, {1, 3, 3}, {.dilation = {1, 6, 6}, .pad_low = six, .pad_high = six}},
               {{1, 7, 6, 9, 32}, 128, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}}},
              weights_alone);
}

TEST_CASE("weight gradients of neighbouring taps from one copy of the input", "[cuda]") {
  check_cases({"cuda_taps"},
              {{{2, 1, 9, 45, 128}, 120, {1, 3, 3}, {.pad_low = one, .pad_high = one}},
               {{1, 1, 7, 77, 104}, 56, {1, 3, 3}, {.pad_low = one, .pad_high = one}},
               {{1, 1, 11, 94, 64}, 32, {1, 5, 5}, {.pad_low = two, .pad_high = two}},
               {{2, 1, 6, 63, 192}, 24, {1, 5, 5}, {.pad_low = {0, 2, 3}, .pad_high = {0, 1, 2}}},
               {{2, 1, 6, 47, 128}, 64, {1, 2, 5}, {.pad_low = {0, 0, 4}}, 136, 136},
               {{1, 1, 20, 44, 64}, 128, {1, 3, 3}, {.dilation = {1, 6, 6}, .pad_low = six, .pad_high = six}},
               {{1, 1, 40, 90, 64}, 128, {1, 3, 3}, {.dilation = {1, 36, 36}, .pad_low = far, .pad_high = far}},
               {{3, 1, 5, 32, 256}, 120, {1, 1, 1}, {}},
               {{2, 1, 5, 46, 256}, 120, {1, 1, 1}, {.pad_high = {0, 1, 2}}},
               {{1, 1, 64, 96, 64}, 128, {1, 3, 3}, {.pad_low = one, .pad_high = one}, 160, 160}},
              weights_alone);
}

TEST_CASE("weight gradients of neighbouring taps from the even and the odd columns of the input", "[cuda]") {
  const ConvAttrs dilated{.stride = half, .dilation = {1, 6, 6}, .pad_low = six, .pad_high = six},
      oddly{.stride = half, .dilation = {1, 3, 3}, .pad_low = two, .pad_high = six};
  check_cases({"cuda_taps"},
              {{{2, 1, 18, 191, 128}, 120, {1, 3, 3}, {.stride = half, .pad_low = one, .pad_high = one}},
               {{1, 1, 15, 190, 104}, 128, {1, 3, 3}, {.stride = half, .pad_high = one}, 112, 136},
               {{1, 1, 11, 128, 64}, 32, {1, 5, 5}, {.stride = {1, 1, 2}, .pad_low = two, .pad_high = two}},
               {{1, 1, 40, 96, 64}, 128, {1, 3, 3}, dilated},
               {{1, 1, 40, 97, 64}, 128, {1, 3, 3}, oddly},
               {{2, 1, 20, 96, 256}, 128, {1, 1, 1}, {.stride = half}}},
              weights_alone);
}

TEST_CASE("convolutions of images to few channels", "[cuda]") {
  check_cases(
      {"cuda_rows"},
      {{{2, 1, 11, 131, 96}, 32, {1, 5, 5}, {.pad_low = two, .pad_high = two}, 160, 72},
       // So many tiles that a block takes several.
       {{3, 1, 203, 144, 24}, 32, {1, 3, 3}, {.pad_low = one, .pad_high = one}},
       {{1, 1, 7, 288, 456}, 26, {1, 3, 3}, {.pad_low = one, .pad_high = one}, 0, 34},
       {{1, 1, 8, 150, 200}, 32, {1, 3, 7}, {.dilation = {1, 1, 9}, .pad_low = {0, 0, 30}, .pad_high = {0, 2, 18}}},
       {{2, 1, 3, 144, 8}, 32, {1, 8, 2}, {.pad_low = {0, 4, 1}, .pad_high = {0, 4, 0}}}},
      [](const ConvCase& c, DType type) {
        std::vector<Problem> problems = forward_problems(c, type);
        Problem activated = problems[1];
        ConvAttrs attrs = c.a;
        attrs.slope = 0.25;
        activated.op = {OpKind::conv_activation_forward, attrs};
        problems.push_back(activated);
        return problems;
      });
}

TEST_CASE("convolutions of images whose windows are few numbers", "[cuda]") {
  check_cases({"cuda_few"},
              {{{2, 1, 38, 70, 3}, 256, {1, 3, 3}, {.stride = half, .pad_low = one, .pad_high = one}},
               {{1, 1, 31, 45, 3}, 64, {1, 3, 3}, {.stride = half, .pad_low = one, .pad_high = one}, 5, 72},
               {{1, 1, 22, 40, 2}, 128, {1, 3, 3}, {.stride = half, .pad_high = one}},
               {{1, 1, 9, 33, 3}, 192, {1, 3, 3}, {.pad_low = one, .pad_high = one}},
               {{1, 1, 17, 26, 1}, 64, {1, 5, 5}, {.stride = {1, 2, 1}, .pad_low = {0, 2, 1}, .pad_high = {0, 1, 3}}},
               {{1, 1, 12, 50, 2}, 64, {1, 5, 3}, {.stride = {1, 2, 1}, .pad_low = {0, 3, 0}, .pad_high = {0, 2, 2}}},
               // So many tiles that a block takes several.
               {{1, 1, 640, 704, 3}, 64, {1, 3, 3}, {.stride = half, .pad_low = one, .pad_high = one}}},
              [](const ConvCase& c, DType type) { return all_passes(c, type); });
}

TEST_CASE("depthwise convolutions of images that the copy engine brings", "[cuda]") {
  const auto depthwise = [](const Shape& x, ConvAttrs a, int64_t x_pitch = 0, int64_t y_pitch = 0) {
    a.groups = x.c();
    return ConvCase{x, x.c(), {1, 3, 3}, a, x_pitch, y_pitch};
  };
  check_cases({"cuda_depthwise_tma"},
              {depthwise({2, 1, 48, 72, 728}, {.pad_low = one, .pad_high = one}),
               depthwise({3, 1, 21, 37, 88}, {.pad_low = one, .pad_high = one}, 96, 104),
               depthwise({1, 1, 9, 5, 8}, {.pad_low = {0, 2, 0}, .pad_high = {0, 1, 3}}),
               depthwise({1, 1, 5, 61, 64}, {.pad_low = {0, 0, 2}, .pad_high = {0, 0, 2}}, 72, 66),
               depthwise({2, 1, 33, 50, 136}, {.stride = half, .pad_low = one, .pad_high = one}, 144, 152),
               depthwise({1, 1, 8, 96, 64}, {.stride = half, .pad_high = one}),
               // So many tiles that a block takes several, one after the other.
               depthwise({2, 1, 203, 301, 128}, {.pad_low = one, .pad_high = one}),
               depthwise({2, 1, 400, 604, 64}, {.stride = half, .pad_low = one, .pad_high = one})},
              [](const ConvCase& c, DType type) {
                const bool with_data = c.a.stride[1] == 1;
                std::vector<Problem> all = all_passes(c, type, with_data);
                for (Problem& p : sum_problems(c, type))
                  if (with_data) all.push_back(p);
                return all;
              });
}

TEST_CASE("cuDNN adds the gradients of large images to others", "[cuda][cudnn]") {
  const auto open = device();
  if (!open) return;
  int inside = 0;
  for (DType type : {DType::bf16, DType::f16})
    for (const ConvCase& c : {ConvCase{{1, 1, 320, 288, 256}, 8, {1, 3, 3}, {.pad_low = one, .pad_high = one}},
                              {{2, 1, 180, 193, 352}, 32, {1, 1, 1}, {}}})
      for (const Problem& p : sum_problems(c, type)) {
        check_on_device(*open, {p}, true);
        if (const Kernel* kernel = find_kernel("cudnn", on_cuda(p)))
          inside += kernel->prepare(on_cuda(p))->detail().find("adds") != std::string::npos;
      }
  if (inside == 0) WARN("additions were passes of their own everywhere");
}

TEST_CASE("depthwise convolutions of images that fill a device", "[cuda]") {
  const auto open = device();
  if (!open) return;
  // So many tiles that a block takes several.
  const ConvAttrs plain{.pad_low = one, .pad_high = one, .groups = 128};
  check_on_device(*open, {problem({OpKind::conv_forward, plain}, {TensorDesc({4, 1, 331, 150, 128}, DType::bf16),
                                                                  TensorDesc({128, 1, 3, 3, 1}, DType::bf16)})});
  for (DType type : {DType::bf16, DType::f16})
    for (ConvAttrs attrs : {ConvAttrs{.pad_low = one, .pad_high = one},
                            {.dilation = {1, 2, 2}, .pad_low = two, .pad_high = two},
                            {.stride = {1, 2, 2}, .pad_low = one, .pad_high = one}}) {
      attrs.groups = 128;
      const TensorDesc x({4, 1, 131, 150, 128}, type), w({128, 1, 3, 3, 1}, type);
      const Problem forward = problem({OpKind::conv_forward, attrs}, {x, w});
      ConvAttrs data = attrs, weights = attrs;
      data.result_size = {1, 131, 150}, weights.result_size = {1, 3, 3};
      check_on_device(*open, {forward, problem({OpKind::conv_backward_data, data}, {forward.out[0], w}),
                              problem({OpKind::conv_backward_weights, weights}, {x, forward.out[0]})});
    }
}
