#include "tests/kernel_problems.h"

#include <map>

#include "tests/kernel_check.h"

namespace convoy::testing {

std::vector<Problem> model_problems(DType compute, const CosmoflowConfig& model, int64_t batch) {
  CosmoflowOptions o;
  o.model = model;
  o.batch = batch;
  o.compute = compute;
  o.training.l2 = 0.01;
  std::map<std::string, Problem> unique;
  for (OptimizerKind optimizer : {OptimizerKind::sgd, OptimizerKind::adam}) {
    o.training.optimizer = optimizer;
    const Tape tape = training_tape(o);
    for (const Node& node : tape.nodes()) {
      const Problem p = problem(node.op, tape.descs(node.in));
      unique.emplace(p.text(), p);
    }
  }
  std::vector<Problem> list;
  for (auto& [text, p] : unique) list.push_back(p);
  return list;
}

TensorDesc strided(const TensorDesc& dense, int64_t channels) {
  TensorDesc d = dense;
  const Shape& s = dense.shape;
  d.stride = TensorDesc::dense_strides({s.n(), s.d(), s.h(), s.w(), channels});
  return d;
}

std::vector<Problem> conv_problems(DType type) {
  struct Case {
    Shape x;
    int64_t k;
    Int3 kernel;
    ConvAttrs a;
  };
  const std::vector<Case> cases{
      {{2, 5, 7, 6, 4}, 32, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}},
      {{1, 4, 4, 4, 16}, 16, {3, 3, 3}, {.stride = {2, 2, 2}, .pad_low = {0, 1, 0}, .pad_high = {1, 1, 2}}},
      {{1, 6, 6, 6, 3}, 5, {2, 2, 2}, {.pad_high = {1, 1, 1}}},
      {{1, 1, 9, 9, 16}, 48, {1, 3, 3}, {.dilation = {1, 12, 12}, .pad_low = {0, 12, 12}, .pad_high = {0, 12, 12}}},
      {{1, 1, 9, 8, 16}, 32, {1, 7, 7}, {.stride = {1, 2, 2}, .pad_low = {0, 3, 3}, .pad_high = {0, 3, 3}}},
      {{2, 1, 6, 5, 12}, 18, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .groups = 3}},
      {{1, 1, 6, 6, 32}, 32, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .groups = 32}},
      {{1, 1, 9, 11, 20},
       20,
       {1, 3, 3},
       {.stride = {1, 2, 2}, .dilation = {1, 1, 2}, .pad_low = {0, 1, 2}, .pad_high = {0, 1, 2}, .groups = 20}},
      {{2, 2, 6, 21, 80}, 80, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .groups = 80}},
      {{1, 1, 4, 13, 520}, 520, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .groups = 520}},
      {{1, 1, 5, 33, 40},
       40,
       {1, 3, 3},
       {.dilation = {1, 2, 3}, .pad_low = {0, 2, 3}, .pad_high = {0, 2, 3}, .groups = 40}},
      {{1, 1, 12, 13, 37}, 37, {1, 5, 5}, {.pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}, .groups = 37}},
      // An image whose only depth meets padding.
      {{1, 1, 8, 8, 3}, 16, {1, 3, 3}, {.stride = {2, 1, 1}, .pad_low = {1, 1, 1}, .pad_high = {0, 1, 1}}},
      {{1, 1, 1, 1, 7}, 9, {1, 1, 1}, {}},
      {{1, 3, 3, 3, 37}, 21, {1, 1, 1}, {}},
      {{1, 13, 14, 15, 16}, 48, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}},
      {{2, 12, 11, 13, 48}, 16, {3, 3, 3}, {.pad_low = {0, 2, 1}, .pad_high = {2, 0, 1}}},
      {{1, 1, 61, 67, 16}, 32, {1, 3, 3}, {.pad_low = {0, 1, 0}, .pad_high = {0, 2, 1}}},
      {{1, 1, 94, 46, 16}, 32, {1, 3, 3}, {.dilation = {1, 2, 1}, .pad_low = {0, 2, 0}, .pad_high = {0, 1, 2}}},
      {{1, 1, 17, 23, 64}, 80, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}}},
      {{1, 1, 34, 24, 64}, 64, {1, 3, 3}, {.dilation = {1, 2, 2}, .pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}}},
      {{1, 1, 48, 47, 16}, 32, {1, 5, 5}, {.pad_low = {0, 2, 1}, .pad_high = {0, 2, 3}}},
      {{1, 19, 24, 23, 16}, 16, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}},
      {{1, 1, 40, 41, 32}, 16, {1, 5, 5}, {.pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}}},
      {{1, 1, 37, 40, 16}, 48, {1, 5, 5}, {.dilation = {1, 3, 2}, .pad_low = {0, 6, 4}, .pad_high = {0, 5, 4}}},
      {{1, 13, 12, 14, 16}, 16, {3, 3, 3}, {.dilation = {2, 1, 3}, .pad_low = {2, 1, 3}, .pad_high = {2, 1, 3}}},
      {{1, 1, 50, 70, 16}, 16, {1, 3, 3}, {.dilation = {1, 12, 5}, .pad_low = {0, 12, 5}, .pad_high = {0, 12, 5}}},
      {{1, 26, 25, 23, 16}, 16, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}},
      {{2, 1, 41, 37, 3}, 20, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_low = {0, 1, 1}, .pad_high = {0, 1, 0}}},
      {{1, 1, 69, 23, 5}, 24, {1, 5, 5}, {.stride = {1, 1, 3}, .pad_low = {0, 2, 1}, .pad_high = {0, 2, 3}}},
      {{1, 2, 49, 50, 16}, 16, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_low = {1, 1, 1}, .pad_high = {1, 0, 1}}},
      {{2, 1, 51, 48, 32}, 48, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_low = {0, 1, 1}, .pad_high = {0, 1, 0}}},
      {{1, 1, 52, 49, 16}, 16, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_low = {0, 0, 2}, .pad_high = {0, 1, 3}}},
      {{1, 1, 7, 9, 12}, 304, {1, 3, 3}, {.stride = {1, 3, 2}, .pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}}},
      // several chunks; oneDNN 2.6.3 reads past the end of the input's gradient
      {{1, 1, 7, 9, 12}, 528, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}}},
      {{1, 1, 64, 64, 8}, 16, {1, 1, 1}, {.stride = {1, 2, 2}}},  // oneDNN 2.6.3 overruns its scratch memory
      // strided 1x1: one output row, groups and three dimensions, padding behind the last column
      {{1, 1, 1, 96, 64}, 40, {1, 1, 1}, {.stride = {1, 1, 2}}},
      {{1, 1, 2, 70, 40}, 24, {1, 1, 1}, {.stride = {1, 2, 2}}},
      {{2, 3, 5, 9, 12}, 18, {1, 1, 1}, {.stride = {2, 2, 2}, .groups = 3}},
      {{1, 1, 7, 9, 37}, 16, {1, 1, 1}, {.stride = {1, 2, 2}, .pad_high = {0, 1, 2}}},
      // oneDNN 2.6.3's bf16 weight gradient multiplies scratch memory that it never wrote
      {{1, 1, 48, 72, 16},
       16,
       {1, 3, 3},
       {.dilation = {1, 2, 2}, .pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}, .groups = 16}},
      {{1, 1, 48, 72, 16},
       32,
       {1, 3, 3},
       {.dilation = {1, 2, 2}, .pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}, .groups = 16}},
      {{1, 5, 5, 5, 8}, 8, {3, 3, 3}, {.dilation = {2, 2, 2}, .pad_low = {2, 2, 2}, .pad_high = {2, 2, 2}}},
      // taps in the padding alone, where oneDNN 2.6.3 reads beyond images; its Winograd mistakes uneven padding
      {{1, 5, 6, 3, 20}, 15, {7, 7, 7}, {.stride = {2, 2, 2}, .pad_low = {3, 3, 3}, .pad_high = {3, 3, 3}}},
      {{1, 1, 12, 13, 16}, 32, {1, 3, 3}, {.pad_low = {0, 1, 1}}},
      // tiles that meet no side of the image, whose rows are read in place; an odd number of channels is not
      {{1, 1, 4, 300, 4}, 16, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}}},
      {{1, 1, 5, 300, 4}, 16, {1, 3, 3}, {.dilation = {1, 2, 2}, .pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}}},
      {{1, 1, 5, 600, 4}, 16, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_low = {0, 1, 1}, .pad_high = {0, 1, 0}}},
      {{1, 1, 5, 40, 16}, 16, {1, 3, 3}, {}},
      {{1, 1, 3, 300, 5}, 16, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}}},
      // four channels, vectors of neighbouring tiles: at both sides of the image, at one or none, of two rows of tiles,
      // in place, with five taps, and in the padding alone
      {{1, 6, 10, 64, 4}, 16, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}},
      {{1, 6, 10, 192, 4}, 16, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}},
      {{1, 6, 10, 72, 4}, 16, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}},
      {{1, 6, 10, 130, 4}, 16, {3, 3, 3}, {}},
      {{1, 1, 40, 64, 4}, 16, {1, 5, 5}, {.pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}}},
      {{1, 1, 6, 8, 4}, 16, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 200}}},
      // depthwise with nine rows of taps
      {{2, 3, 5, 11, 119}, 119, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}, .groups = 119}},
      {{1, 4, 6, 10, 48}, 48, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}, .groups = 48}},
  };
  std::vector<Problem> list;
  // Slices of wider tensors, as concatenations have them; several chunks and blocks of channels.
  const ConvAttrs same{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .result_size = {1, 3, 3}};
  const TensorDesc wide({1, 1, 30, 29, 80}, type), narrow({1, 1, 30, 29, 144}, type);
  list.push_back(problem({OpKind::conv_backward_weights, same}, {strided(wide, 96), strided(narrow, 160)}));
  list.push_back(problem({OpKind::conv_backward_weights, {ConvAttrs{.stride = {1, 2, 2}, .result_size = {1, 1, 1}}}},
                         {strided(wide, 96), strided(TensorDesc({1, 1, 15, 15, 144}, type), 160)}));
  list.push_back(problem({OpKind::conv_forward, same}, {strided(wide, 96), TensorDesc({16, 1, 3, 3, 80}, type)}));
  list.back().out[0] = strided(list.back().out[0], 48);
  const TensorDesc slice = strided(TensorDesc({1, 1, 34, 35, 16}, type), 48);
  const TensorDesc four = strided(TensorDesc({1, 1, 34, 35, 4}, type), 12);
  const ConvAttrs data{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .result_size = {1, 34, 35}};
  for (const TensorDesc& x : {slice, four}) {
    ConvAttrs leaky = same;
    leaky.slope = 0.25;
    for (const Op& op : {Op{OpKind::conv_forward, same}, Op{OpKind::conv_activation_forward, leaky}}) {
      list.push_back(problem(op, {x, TensorDesc({16, 1, 3, 3, x.shape.c()}, type)}));
      list.back().out[0] = slice;
    }
  }
  list.push_back(problem({OpKind::conv_backward_data, data}, {slice, TensorDesc({16, 1, 3, 3, 16}, type)}));
  list.back().out[0] = slice;
  // The same with large tiles, in three dimensions, with five taps, with a stride of two and depthwise.
  for (const Case& c :
       {Case{{1, 1, 48, 47, 16}, 16, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}}},
        Case{{1, 10, 12, 11, 16}, 16, {3, 3, 3}, {.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}}},
        Case{{1, 1, 36, 35, 16}, 16, {1, 5, 5}, {.pad_low = {0, 2, 2}, .pad_high = {0, 2, 2}}},
        Case{{1, 1, 50, 52, 16}, 16, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}}},
        Case{{1, 1, 9, 13, 48}, 48, {1, 3, 3}, {.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .groups = 48}}}) {
    const TensorDesc x(c.x, type), w({c.k, c.kernel[0], c.kernel[1], c.kernel[2], c.x.c() / c.a.groups}, type);
    ConvAttrs back = c.a, gradient = c.a;
    back.result_size = {c.x.d(), c.x.h(), c.x.w()}, gradient.result_size = c.kernel;
    list.push_back(problem({OpKind::conv_forward, c.a}, {strided(x, 64), w}));
    const TensorDesc y = list.back().out[0] = strided(list.back().out[0], 80);
    list.push_back(problem({OpKind::conv_backward_data, back}, {y, w}));
    list.back().out[0] = strided(list.back().out[0], 64);
    list.push_back(problem({OpKind::conv_backward_weights, gradient}, {strided(x, 64), y}));
  }
  const ConvAttrs pointwise{.result_size = {1, 1, 1}};
  // More runs of tiles than parts, and outputs written past the caches (8 MiB); large, so in one type only.
  if (type == DType::f32) {
    const TensorDesc large({1, 1, 200, 200, 16}, type), image({1, 1, 512, 256, 16}, type);
    list.push_back(problem({OpKind::conv_backward_weights, same}, {large, large}));
    list.push_back(problem({OpKind::conv_activation_forward, ConvAttrs{.slope = 0.25}},
                           {TensorDesc({1, 1, 512, 256, 3}, type), TensorDesc({16, 1, 1, 1, 3}, type)}));
    ConvAttrs depthwise = same;
    depthwise.groups = 16;
    list.push_back(problem({OpKind::conv_forward, depthwise}, {image, TensorDesc({16, 1, 3, 3, 1}, type)}));
    // Without activation; dilated; positions a page apart.
    list.push_back(problem({OpKind::conv_forward, ConvAttrs{}},
                           {TensorDesc({1, 1, 512, 256, 3}, type), TensorDesc({16, 1, 1, 1, 3}, type)}));
    depthwise.dilation = {1, 2, 2}, depthwise.pad_low = depthwise.pad_high = {0, 2, 2};
    list.push_back(problem({OpKind::conv_forward, depthwise}, {image, TensorDesc({16, 1, 3, 3, 1}, type)}));
    // Data gradients, and below the same on top of something.
    for (ConvAttrs gradient : {same, ConvAttrs{}}) {
      gradient.result_size = {1, 512, 256};
      const int64_t taps = gradient.pad_low[1] == 1 ? 3 : 1;
      list.push_back(
          problem({OpKind::conv_backward_data, gradient}, {image, TensorDesc({16, 1, taps, taps, 16}, type)}));
    }
    ConvAttrs gradient = same;
    gradient.groups = 16, gradient.result_size = {1, 512, 256};
    list.push_back(problem({OpKind::conv_backward_data, gradient}, {image, TensorDesc({16, 1, 3, 3, 1}, type)}));
    depthwise.groups = 1024;
    list.push_back(problem({OpKind::conv_forward, depthwise},
                           {TensorDesc({1, 1, 40, 52, 1024}, type), TensorDesc({1024, 1, 3, 3, 1}, type)}));
    // Bands of positions, chunks and blocks of channels of the 1x1 weight gradient.
    list.push_back(problem({OpKind::conv_backward_weights, pointwise},
                           {TensorDesc({1, 1, 96, 98, 60}, type), TensorDesc({1, 1, 96, 98, 70}, type)}));
  }
  if (type == DType::bf16) {
    // Bands of pairs of positions, the last pair cut in half; whole lines of channels past the caches.
    list.push_back(problem({OpKind::conv_backward_weights, pointwise},
                           {TensorDesc({1, 1, 97, 97, 60}, type), TensorDesc({1, 1, 97, 97, 70}, type)}));
    ConvAttrs depthwise = same;
    depthwise.groups = 32;
    list.push_back(problem({OpKind::conv_forward, depthwise},
                           {TensorDesc({1, 1, 512, 256, 32}, type), TensorDesc({32, 1, 3, 3, 1}, type)}));
    const TensorDesc image({1, 1, 512, 100, 4}, type), weight({96, 1, 1, 1, 4}, type);
    list.push_back(problem({OpKind::conv_forward, pointwise}, {image, weight}));
    list.push_back(problem({OpKind::conv_activation_forward, ConvAttrs{.slope = 0.25}}, {image, weight}));
    const ConvAttrs between{.stride = {1, 2, 2}, .pad_high = {0, 1, 1}, .result_size = {1, 512, 128}};
    list.push_back(problem({OpKind::conv_backward_data, between},
                           {TensorDesc({1, 1, 256, 64, 4}, type), TensorDesc({4, 1, 3, 3, 64}, type)}));
    list.back().out[0] = strided(list.back().out[0], 96);
  }
  // A strided depthwise one whose channels are runs of vectors or lines, single ones and a rest.
  ConvAttrs steps = same;
  steps.groups = 179, steps.stride = {1, 2, 2};
  list.push_back(problem({OpKind::conv_forward, steps},
                         {TensorDesc({2, 1, 9, 11, 179}, type), TensorDesc({179, 1, 3, 3, 1}, type)}));
  if (type != DType::f16) {  // past the caches, with a bias
    steps.groups = 256 / size_of(type);
    const TensorDesc image({1, 1, 512, 256, steps.groups}, type), bias(Shape::vector(steps.groups), DType::f32);
    list.push_back(problem({OpKind::conv_forward, steps}, {image, TensorDesc({steps.groups, 1, 3, 3, 1}, type), bias}));
  }
  // Depthwise weight gradients whose inputs serve three taps: rows of 0 to 2 positions over, dilated, from slices, two
  // images; pairs of lines of channels, a line, a vector and a rest; rows that meet padding alone and count for the
  // bias only.
  for (int64_t width : {9, 10, 11})
    for (int64_t apart : {1, 2}) {
      ConvAttrs chain{.dilation = {1, 1, apart}, .pad_low = {0, 3, apart}, .pad_high = {0, 1, apart}, .groups = 119};
      chain.result_size = {1, 3, 3};
      const TensorDesc x({2, 1, 5, width, 119}, type), dy({2, 1, 7, width, 119}, type);
      const bool slices = width == 10;
      list.push_back(problem({OpKind::conv_backward_weights, chain},
                             {slices ? strided(x, 128) : x, slices ? strided(dy, 121) : dy}));
    }
  // The same with rows of several bands of positions, the last ones in the padding alone.
  for (int64_t apart : {1, 2}) {
    ConvAttrs chain{.dilation = {1, apart, apart}, .pad_low = {0, apart, apart}, .pad_high = {0, apart, 80 + apart}};
    chain.groups = 800, chain.result_size = {1, 3, 3};
    list.push_back(problem({OpKind::conv_backward_weights, chain},
                           {TensorDesc({1, 1, 6, 100, 800}, type), TensorDesc({1, 1, 6, 180, 800}, type)}));
  }
  // 1x1 that is no product of positions: columns, or rows, beyond the input; taps that meet padding alone.
  for (const auto& [width, right] : {std::pair<int64_t, int64_t>{40, 3}, {32, 16}})
    list.push_back(problem({OpKind::conv_forward, ConvAttrs{.pad_high = {0, 0, right}}},
                           {TensorDesc({1, 1, 1, width, 64}, type), TensorDesc({32, 1, 1, 1, 64}, type)}));
  list.push_back(problem(
      {OpKind::conv_backward_data, ConvAttrs{.pad_low = {0, 1, 0}, .pad_high = {0, 1, 0}, .result_size = {1, 1, 32}}},
      {TensorDesc({1, 1, 3, 32, 64}, type), TensorDesc({64, 1, 1, 1, 48}, type)}));
  list.push_back(
      problem({OpKind::conv_forward, ConvAttrs{.dilation = {1, 1, 2}, .pad_low = {0, 0, 1}, .pad_high = {0, 0, 1}}},
              {TensorDesc({1, 1, 4, 1, 16}, type), TensorDesc({32, 1, 1, 2, 16}, type)}));
  // Few rows: what one thread takes in a band, two share; sums must not change.
  list.push_back(problem({OpKind::conv_forward, same},
                         {TensorDesc({1, 1, 8, 16, 256}, type), TensorDesc({32, 1, 3, 3, 256}, type)}));
  // A slice whose neighbours hold anything: 16 of 48 channels.
  list.push_back(problem({OpKind::conv_forward, ConvAttrs{}},
                         {strided(TensorDesc({1, 1, 32, 32, 16}, type), 48), TensorDesc({32, 1, 1, 1, 16}, type)}));
  // Several chunks read in place, and whole rows that end with the tensor.
  list.push_back(problem({OpKind::conv_forward, ConvAttrs{}},
                         {TensorDesc({1, 1, 4, 24, 900}, type), TensorDesc({40, 1, 1, 1, 900}, type)}));
  // Two tasks of it, dense and in slices.
  const TensorDesc few({2, 1, 9, 11, 61}, type), many({2, 1, 9, 11, 600}, type);
  list.push_back(problem({OpKind::conv_backward_weights, pointwise}, {few, many}));
  list.push_back(problem({OpKind::conv_backward_weights, pointwise}, {strided(few, 64), strided(many, 603)}));
  // Rows that are turned in blocks of 32 positions and 16 channels, from slices, also every other column.
  for (int64_t stride : {1, 2}) {
    ConvAttrs turned = same;
    turned.stride = {1, stride, stride};
    turned.pad_high = {0, stride == 1, stride == 1};
    const TensorDesc x({1, 1, 5 * stride, 71 * stride, 37}, type), dy({1, 1, 5, 71, 70}, type);
    list.push_back(problem({OpKind::conv_backward_weights, turned}, {strided(x, 48), strided(dy, 81)}));
  }
  {
    // 1x1 as products: several tiles and a panel that ends early, a last block of one vector and part of one, slices of
    // input and output over two images; few positions, whose blocks two threads share; a stride.
    const TensorDesc images({2, 1, 13, 7, 37}, type), results({2, 1, 13, 7, 59}, type);
    const TensorDesc w({59, 1, 1, 1, 37}, type);
    Problem forward = problem({OpKind::conv_forward, ConvAttrs{}}, {strided(images, 48), w});
    forward.out[0] = strided(results, 64);
    Problem back =
        problem({OpKind::conv_backward_data, ConvAttrs{.result_size = {1, 13, 7}}}, {strided(results, 64), w});
    back.out[0] = strided(images, 48);
    list.push_back(forward), list.push_back(back);
    const TensorDesc few({1, 1, 1, 11, 40}, type);
    list.push_back(problem({OpKind::conv_forward, ConvAttrs{}}, {few, TensorDesc({80, 1, 1, 1, 40}, type)}));
    list.push_back(
        problem({OpKind::conv_activation_forward, ConvAttrs{.stride = {1, 2, 3}, .slope = 0.25}}, {images, w}));
  }
  // 1x1 over few pixels, as behind a global average pool: one of them, several, as many as a product takes.
  for (const Shape& x : {Shape{1, 1, 1, 1, 1200}, Shape{3, 1, 1, 1, 205}, Shape{2, 1, 2, 2, 37}}) {
    const TensorDesc in(x, type), w({59, 1, 1, 1, x.c()}, type);
    const TensorDesc out({x.n(), 1, x.h(), x.w(), 59}, type);
    list.push_back(
        problem({OpKind::conv_forward, ConvAttrs{}}, {in, w, TensorDesc(Shape::vector(59), accumulation_type(type))}));
    list.push_back(problem({OpKind::conv_backward_data, ConvAttrs{.result_size = spatial(x)}}, {out, w}));
    list.push_back(problem({OpKind::conv_backward_weights, pointwise}, {in, out}));
  }
  // 1x1 into few channels: one vector, several and their tails; bands of positions and what is left; slices.
  for (int64_t outputs = 1; outputs <= 4; ++outputs) {
    const int64_t channels = std::array{16, 61, 402, 200}[static_cast<size_t>(outputs - 1)];
    const TensorDesc x = strided(TensorDesc({2, 1, 3, 43, channels}, type), channels + 3),
                     y = strided(TensorDesc({2, 1, 3, 43, outputs}, type), 7);
    list.push_back(
        problem({OpKind::conv_forward, ConvAttrs{}}, {x, TensorDesc({outputs, 1, 1, 1, channels}, type),
                                                      TensorDesc(Shape::vector(outputs), accumulation_type(type))}));
    list.back().out[0] = y;
    list.push_back(problem({OpKind::conv_backward_weights, pointwise}, {x, y}));
  }
  if (type == DType::f32) {
    // Enough channels for several chunks or short tiles, and for weights too many to be read for every tile.
    for (const auto& [h, in, out] : {std::array{7, 777, 801}, std::array{2, 1040, 1010}}) {
      const TensorDesc x({1, 1, h, 23, in}, type), w({out, 1, 1, 1, in}, type);
      list.push_back(problem({OpKind::conv_forward, ConvAttrs{}}, {x, w}));
      list.push_back(
          problem({OpKind::conv_backward_data, ConvAttrs{.result_size = {1, h, 23}}}, {list.back().out[0], w}));
    }
    // Winograd weight gradients whose last group of output channels is narrower than a task; whose tasks are square.
    const ConvAttrs same{.pad_low = {0, 1, 1}, .pad_high = {0, 1, 1}, .result_size = {1, 3, 3}};
    for (const auto& [in, out] : {std::pair{16, 272}, std::pair{144, 160}})
      list.push_back(problem({OpKind::conv_backward_weights, same},
                             {TensorDesc({1, 1, 18, 23, in}, type), TensorDesc({1, 1, 18, 23, out}, type)}));
  }
  // 1x1 on slices with even and odd strides, several chunks, groups: read in place where whole words allow it.
  for (int64_t step : {402, 401})
    for (int64_t groups : {1, 2}) {
      const ConvAttrs forward{.groups = groups}, back{.groups = groups, .result_size = {1, 3, 10}};
      const TensorDesc y = strided(TensorDesc({1, 1, 3, 10, 400}, type), step);
      list.push_back(problem({OpKind::conv_forward, forward}, {y, TensorDesc({96, 1, 1, 1, 400 / groups}, type)}));
      list.push_back(problem({OpKind::conv_backward_data, back}, {y, TensorDesc({400, 1, 1, 1, 96 / groups}, type)}));
    }
  for (const Case& c : cases) {
    const TensorDesc x(c.x, type), w({c.k, c.kernel[0], c.kernel[1], c.kernel[2], c.x.c() / c.a.groups}, type);
    const DType wide = accumulation_type(type);
    list.push_back(problem({OpKind::conv_forward, c.a}, {x, w, TensorDesc(Shape::vector(c.k), wide)}));
    if (const auto index = &c - cases.data(); index % 3 == 0) {
      ConvAttrs activated = c.a;
      activated.slope = index % 2 ? 0 : 0.25;
      std::vector<TensorDesc> in = list.back().in;
      if (index == 15) in.pop_back();  // without a bias
      if (c.a.groups == 1) list.push_back(problem({OpKind::conv_activation_forward, activated}, in));
    }
    list.push_back(problem({OpKind::conv_forward, c.a}, {x, w}));
    const TensorDesc y = list.back().out[0];
    ConvAttrs data = c.a, weights = c.a;
    data.result_size = {c.x.d(), c.x.h(), c.x.w()};
    weights.result_size = c.kernel;
    list.push_back(problem({OpKind::conv_backward_data, data}, {y, w}));
    list.push_back(problem({OpKind::conv_backward_data, data}, {y, w, TensorDesc(Shape::vector(c.x.c()), wide)}));
    list.push_back(problem({OpKind::conv_backward_weights, weights}, {x, y}));
  }
  // Every data gradient also on top of something, dense or a slice.
  const std::vector<Problem> all = list;
  for (const Problem& p : all) {
    if (p.op.kind != OpKind::conv_backward_data || p.in.size() != 2) continue;
    const TensorDesc sum(p.out[0].shape, type);
    const bool slices = list.size() % 2 == 1;
    list.push_back(problem({OpKind::conv_backward_data_add, p.op.attrs},
                           {p.in[0], p.in[1], slices ? strided(sum, sum.shape.c() + 19) : sum}));
    list.back().out = p.out;
  }
  return list;
}

std::vector<Problem> divided_problems(DType type) {
  struct Layer {
    Shape x;
    int64_t outputs, kernel, groups, dilation = 1;
  };
  std::vector<Problem> list;
  for (const Layer& layer : {Layer{{1, 1, 24, 20, 80}, 160, 3, 1}, Layer{{1, 1, 24, 20, 200}, 200, 3, 200},
                             Layer{{1, 1, 6, 150, 512}, 512, 3, 512}, Layer{{2, 1, 20, 20, 200}, 200, 1, 1},
                             Layer{{1, 1, 16, 20, 48}, 160, 3, 1, 6}}) {
    const int64_t pad = layer.kernel / 2 * layer.dilation;
    const ConvAttrs same{.dilation = {1, layer.dilation, layer.dilation},
                         .pad_low = {0, pad, pad},
                         .pad_high = {0, pad, pad},
                         .groups = layer.groups};
    const TensorDesc x(layer.x, type),
        w({layer.outputs, 1, layer.kernel, layer.kernel, layer.x.c() / layer.groups}, type);
    ConvAttrs data = same, weights = same;
    data.result_size = spatial(layer.x), weights.result_size = {1, layer.kernel, layer.kernel};
    const Problem forward = problem({OpKind::conv_forward, same}, {x, w});
    const TensorDesc& y = forward.out[0];
    list.push_back(forward);
    list.push_back(problem({OpKind::conv_backward_data, data}, {y, w}));
    const int64_t between = layer.groups > 1 ? 64 : 0;
    list.push_back(problem({OpKind::conv_backward_weights, weights},
                           {strided(x, x.shape.c() + between), strided(y, y.shape.c() + between)}));
  }
  const TensorDesc pixels({1, 1, 24, 20, 200}, type);
  list.push_back(problem({OpKind::channel_sum, NoAttrs{}}, {pixels}));
  list.push_back(problem({OpKind::avg_pool, PoolAttrs{.kernel = {1, 24, 20}, .stride = {1, 24, 20}}}, {pixels}));
  return list;
}

std::vector<Problem> update_problems(int64_t elements) {
  const TensorDesc vector(Shape::vector(elements), DType::f32), step(Shape::vector(8), DType::f64),
      scale(Shape::vector(4), DType::f64), flag(Shape::vector(1), DType::f32), norm(Shape::vector(1), DType::f64);
  std::vector<Problem> list{
      problem({OpKind::lamb_update, LambAttrs{}}, {vector, step, scale, flag, norm, vector, vector, vector})};
  for (const double larc : {0.0, 0.002}) {
    list.push_back(problem({OpKind::sgd_update, SgdAttrs{.larc = larc}}, {vector, step, scale, flag, vector, vector}));
    list.push_back(
        problem({OpKind::adam_update, AdamAttrs{.larc = larc}}, {vector, step, scale, flag, vector, vector, vector}));
  }
  return list;
}

std::vector<Problem> pools_to_a_plane(DType type) {
  PoolAttrs a;
  const Problem largest = problem({OpKind::max_pool, a}, {TensorDesc({1, 2, 6, 4, 32}, type)});
  const Problem mean = problem({OpKind::avg_pool, a}, largest.in);
  a.result_size = {2, 6, 4};
  return {largest, mean, problem({OpKind::max_pool_backward, a}, {largest.out[0], largest.out[1]}),
          problem({OpKind::avg_pool_backward, a}, {largest.out[0]})};
}

std::vector<Problem> other_problems(DType type) {
  std::vector<Problem> list;
  const TensorDesc x({2, 5, 6, 7, 19}, type), even({1, 4, 6, 8, 32}, type), image({1, 1, 9, 8, 24}, type);
  const std::vector<PoolAttrs> pools{
      {},
      {.kernel = {3, 3, 3}, .stride = {2, 2, 2}, .pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}},
      {.kernel = {3, 3, 3}, .stride = {1, 2, 1}}};
  for (PoolAttrs a : pools)
    for (const TensorDesc& in : {x, even}) {
      list.push_back(problem({OpKind::max_pool, a}, {in}));
      const std::vector<TensorDesc> pooled = list.back().out;
      const ActivationAttrs leaky{.slope = 0.3};
      list.push_back(problem({OpKind::activation_max_pool, ActivationPoolAttrs{leaky, a}}, {in}));
      list.push_back(problem({OpKind::avg_pool, a}, {in}));
      a.count_padding = 1;
      list.push_back(problem({OpKind::avg_pool, a}, {in}));
      a.result_size = {in.shape.d(), in.shape.h(), in.shape.w()};
      list.push_back(problem({OpKind::avg_pool_backward, a}, {pooled[0]}));
      a.count_padding = 0;
      list.push_back(problem({OpKind::avg_pool_backward, a}, {pooled[0]}));
      list.push_back(problem({OpKind::max_pool_backward, a}, {pooled[0], pooled[1]}));
      list.push_back(problem({OpKind::activation_max_pool_backward, ActivationPoolAttrs{leaky, a}},
                             {pooled[0], pooled[0], pooled[1]}));
    }
  for (const auto& [channels, extent] :
       {std::pair<int64_t, Int3>{4, {6, 10, 42}}, {16, {4, 2, 6}}, {32, {6, 10, 36}}}) {
    const TensorDesc input({2, extent[0], extent[1], extent[2], channels}, type),
        cells({2, extent[0] / 2, extent[1] / 2, extent[2] / 2, 18}, type);
    const ConvAttrs same{.pad_low = {1, 1, 1}, .pad_high = {1, 1, 1}, .result_size = {3, 3, 3}};
    const ActivationPoolAttrs pool{{.slope = 0.25}, {.result_size = extent}};
    list.push_back(problem({OpKind::conv_pool_backward_weights, ConvPoolAttrs{same, pool}},
                           {input, cells, cells, TensorDesc(cells.shape, DType::u8)}));
    const ActivationPoolAttrs relu{{.slope = 0}, {.result_size = extent}};
    list.push_back(problem({OpKind::conv_pool_backward_weights, ConvPoolAttrs{same, relu}},
                           {input, cells, cells, TensorDesc(cells.shape, DType::u8)}));
  }
  for (const Int3& extent : {Int3{12, 14, 16}, Int3{24, 22, 26}}) {
    const TensorDesc cells({2, extent[0] / 2, extent[1] / 2, extent[2] / 2, 16}, type),
        weights({16, 3, 3, 3, 32}, type);
    for (int64_t pad : {1, 0}) {
      const Int3 result{extent[0] + 2 - 2 * pad, extent[1] + 2 - 2 * pad, extent[2] + 2 - 2 * pad};
      const ConvAttrs conv{.pad_low = {pad, pad, pad}, .pad_high = {pad, pad, pad}, .result_size = result};
      const ActivationPoolAttrs pool{{.slope = pad ? 0.25 : 0}, {.result_size = extent}};
      list.push_back(problem({OpKind::conv_pool_backward_data, ConvPoolAttrs{conv, pool}},
                             {cells, cells, TensorDesc(cells.shape, DType::u8), weights}));
    }
  }
  const PoolAttrs flat{.kernel = {1, 2, 2}, .stride = {1, 2, 2}};
  // Gradients behind pools of images and of odd extents, whose last rows and columns no window covers.
  for (const auto& [window, extent] : {std::pair<Int3, Int3>{{1, 2, 2}, {1, 13, 35}}, {{2, 2, 2}, {5, 7, 33}}}) {
    const int64_t kd = window[0] == 2 ? 3 : 1;
    const TensorDesc cells({1, extent[0] / window[0], extent[1] / 2, extent[2] / 2, 21}, type),
        arg(cells.shape, DType::u8), x({1, extent[0], extent[1], extent[2], 20}, type),
        weights({21, kd, 3, 3, 20}, type);
    const ConvAttrs weights_of{.pad_low = {kd / 2, 1, 1}, .pad_high = {kd / 2, 1, 1}, .result_size = {kd, 3, 3}};
    const ConvAttrs data_of{.pad_low = {kd / 2, 1, 1}, .pad_high = {kd / 2, 1, 1}, .result_size = extent};
    const ActivationPoolAttrs pool{{.slope = 0.25}, {.kernel = window, .stride = window, .result_size = extent}};
    list.push_back(
        problem({OpKind::conv_pool_backward_weights, ConvPoolAttrs{weights_of, pool}}, {x, cells, cells, arg}));
    list.push_back(
        problem({OpKind::conv_pool_backward_data, ConvPoolAttrs{data_of, pool}}, {cells, cells, arg, weights}));
  }
  struct Pooled {
    Shape x;
    int64_t k;
    PoolAttrs pool;
  };
  for (const Pooled& c : {Pooled{{2, 6, 7, 10, 4}, 32, {}}, Pooled{{1, 13, 14, 15, 16}, 48, {}},
                          Pooled{{1, 5, 6, 70, 3}, 18, flat}, Pooled{{1, 1, 61, 66, 16}, 16, flat},
                          Pooled{{1, 25, 24, 26, 16}, 16, {}}, Pooled{{1, 1, 6, 300, 4}, 16, flat}}) {
    const int64_t kd = c.x.d() > 1 ? 3 : 1;
    const ConvAttrs same{.pad_low = {kd / 2, 1, 1}, .pad_high = {kd / 2, 1, 1}};
    const TensorDesc weights({c.k, kd, 3, 3, c.x.c()}, type), bias(Shape::vector(c.k), accumulation_type(type));
    const double slope = c.k == 48 || c.k == 18 ? 0 : 0.25;
    list.push_back(problem({OpKind::conv_pool_forward, ConvPoolAttrs{same, {{.slope = slope}, c.pool}}},
                           {TensorDesc(c.x, type), weights, bias}));
  }
  list.push_back(problem({OpKind::max_pool, flat}, {image}));
  list.push_back(problem({OpKind::avg_pool, flat}, {image}));
  const std::vector<Problem> plane = pools_to_a_plane(type);
  list.insert(list.end(), plane.begin(), plane.end());
  // one window over each image, and what spreads its value over one
  for (const TensorDesc& in : {x, TensorDesc({2, 1, 9, 8, 40}, type)})
    list.push_back(problem({OpKind::avg_pool, PoolAttrs{.kernel = {in.shape.d(), in.shape.h(), in.shape.w()}}}, {in}));
  for (const TensorDesc& in : {TensorDesc({2, 1, 9, 8, 40}, type), strided(TensorDesc({2, 1, 9, 8, 19}, type), 24)})
    list.push_back(problem({OpKind::resize_backward, ResizeAttrs{Corners::half_pixel, {1, 1, 1}}}, {in}));
  const ActivationAttrs tanh{.function = Activation::tanh, .scale = 1.2};
  list.push_back(problem({OpKind::activation, tanh}, {x}));
  list.push_back(problem({OpKind::activation_backward, tanh}, {x, x}));
  list.push_back(problem({OpKind::activation, ActivationAttrs{.slope = 0.01}}, {strided(x, 40)}));
  const ActivationAttrs halved{.slope = 0.25, .scale = 0.5};
  list.push_back(problem({OpKind::activation, halved}, {x}));
  list.push_back(problem({OpKind::activation_backward, halved}, {x, x}));
  list.push_back(problem({OpKind::add, NoAttrs{}}, {strided(x, 32), x}));
  list.push_back(
      problem({OpKind::activation_backward, ActivationAttrs{.slope = 0.01}}, {strided(x, 32), strided(x, 40)}));
  list.back().out[0] = strided(x, 24);
  const TensorDesc step(Shape::vector(8), DType::f64);
  for (const TensorDesc& in : {x, strided(x, 40), strided(even, 48)}) {
    list.push_back(problem({OpKind::dropout, DropoutAttrs{0.4, 99}}, {in, step}));
    list.back().out[0] = strided(list.back().out[0], 64);
  }
  list.push_back(problem({OpKind::dropout, DropoutAttrs{0.4, 99}}, {x, step}));
  for (DType to : {DType::f32, DType::bf16, DType::f16}) list.push_back(problem({OpKind::cast, CastAttrs{to}}, {x}));
  list.push_back(problem({OpKind::log1p, CastAttrs{type}}, {TensorDesc(x.shape, DType::i16)}));
  list.push_back(problem({OpKind::divide_by_mean, CastAttrs{type}}, {TensorDesc(x.shape, DType::i16)}));
  for (const TensorDesc& in : {x, strided(x, 40), strided(even, 64)})
    list.push_back(problem({OpKind::channel_sum, NoAttrs{}}, {in}));
  list.push_back(problem({OpKind::all_finite, NoAttrs{}}, {x, even}));
  list.push_back(problem({OpKind::concat, NoAttrs{}}, {even, TensorDesc({1, 4, 6, 8, 5}, type)}));
  list.push_back(problem({OpKind::slice, SliceAttrs{3, 9}}, {x}));
  list.push_back(problem({OpKind::pad_channels, SliceAttrs{3, 40}}, {x}));
  list.push_back(problem({OpKind::pad_channels, SliceAttrs{3, 40}}, {strided(x, 24)}));
  list.back().out[0] = strided(list.back().out[0], 48);
  for (const auto& [samples, outputs] : {std::pair<int64_t, int64_t>{1, 13}, {1, 4}, {7, 21}, {33, 5}, {64, 9}}) {
    const TensorDesc input({samples, 3, 5, 7, 11}, type), weights({outputs, 1, 1, 1, 3 * 5 * 7 * 11}, type),
        gradient({samples, 1, 1, 1, outputs}, type), bias(Shape::vector(outputs), accumulation_type(type));
    list.push_back(problem({OpKind::dense_forward, NoAttrs{}}, {input, weights, bias}));
    list.push_back(problem({OpKind::dense_backward_data, ConvAttrs{.result_size = {3, 5, 7}}}, {gradient, weights}));
    list.push_back(problem({OpKind::dense_backward_weights, NoAttrs{}}, {input, gradient}));
  }
  list.push_back(problem({OpKind::dense_forward, NoAttrs{}}, {x, TensorDesc({11, 1, 1, 1, 5 * 6 * 7 * 19}, type),
                                                              TensorDesc(Shape::vector(11), accumulation_type(type))}));
  if (type == DType::f32) {
    const TensorDesc w({70, 1, 3, 3, 37}, type), step(Shape::vector(8), DType::f64),
        scale(Shape::vector(4), DType::f64), flag(Shape::vector(1), DType::f32), norm(Shape::vector(1), DType::f64);
    for (const double larc : {0.0, 0.002}) {
      list.push_back(problem({OpKind::sgd_update, SgdAttrs{.larc = larc}}, {w, step, scale, flag, w, w}));
      list.push_back(problem({OpKind::adam_update, AdamAttrs{.weight_decay = 0.01, .l2 = 0.03, .larc = larc}},
                             {w, step, scale, flag, w, w, w}));
    }
    list.push_back(problem({OpKind::lamb_update, LambAttrs{}}, {w, step, scale, flag, norm, w, w, w}));
    list.push_back(problem({OpKind::gradient_norm, NoAttrs{}}, {w, x, even, scale}));
    list.push_back(problem({OpKind::accumulate, NoAttrs{}}, {w, step, w}));
  }
  const DType wide = accumulation_type(type);
  const TensorDesc channels(Shape::vector(19), wide), pair(Shape::vector(38), DType::f64);
  list.push_back(problem({OpKind::scale, ScaleAttrs{0.5}}, {x}));
  for (const TensorDesc& in : {x, strided(x, 40)}) {
    list.push_back(problem({OpKind::channel_dot, NoAttrs{}}, {in, x}));
    list.push_back(problem({OpKind::channel_scale, NoAttrs{}}, {in, channels}));
    list.push_back(problem({OpKind::channel_scale, NoAttrs{}}, {in, channels, channels}));
    list.push_back(problem({OpKind::channel_moments, NoAttrs{}}, {in}));
    for (int64_t relu : {0, 1}) {
      const BatchNormAttrs a{.relu = relu};
      list.push_back(problem({OpKind::batch_norm, a}, {in, channels, channels, pair}));
      list.push_back(problem({OpKind::batch_norm, a}, {in, channels, channels, channels, channels}));
      list.push_back(problem({OpKind::batch_norm_sums, a}, {in, x, channels, channels, pair}));
      list.push_back(problem({OpKind::batch_norm_backward_data, a}, {in, x, channels, channels, pair, pair}));
    }
    for (Corners corners : {Corners::half_pixel, Corners::aligned, Corners::asymmetric})
      for (const Int3& size : {Int3{5, 12, 9}, Int3{5, 1, 1}, Int3{5, 3, 14}}) {
        list.push_back(problem({OpKind::resize, ResizeAttrs{corners, size}}, {in}));
        list.push_back(problem({OpKind::resize_backward, ResizeAttrs{corners, size}}, {in}));
      }
    list.push_back(problem({OpKind::arg_max, NoAttrs{}}, {in}));
    list.push_back(list.back());
    list.back().out[0] = strided(list.back().out[0], 3);
  }
  // Sums of so few channels that registers may hold them: more pixels than chunks, uneven.
  for (const int64_t few : {16, 32, 48, 64}) {
    const TensorDesc narrow({1, 2, 13, 17, few}, type), vectors(Shape::vector(few), wide),
        two(Shape::vector(2 * few), DType::f64);
    list.push_back(problem({OpKind::channel_sum, NoAttrs{}}, {strided(narrow, few + 64)}));
    list.push_back(problem({OpKind::channel_moments, NoAttrs{}}, {narrow}));
    list.push_back(problem({OpKind::batch_norm_sums, BatchNormAttrs{.relu = 1}},
                           {strided(narrow, 96), narrow, vectors, vectors, two}));
  }
  // Sums of several runs of pixels, which end where a run does, and one pixel behind.
  for (const int64_t pixels : {1 << 16, (1 << 17) + 1}) {
    const TensorDesc runs({1, 1, 1, pixels, 5}, type);
    list.push_back(problem({OpKind::channel_sum, NoAttrs{}}, {runs}));
    list.push_back(problem({OpKind::channel_moments, NoAttrs{}}, {runs}));
  }
  // A cache line of channels, written past the caches.
  const int64_t line = 64 / size_of(type);
  const TensorDesc large({1, 1, 512, 256, line}, type), scales(Shape::vector(line), wide),
      means(Shape::vector(2 * line), DType::f64);
  list.push_back(problem({OpKind::add, NoAttrs{}}, {large, strided(large, 2 * line)}));
  list.back().out[0] = strided(large, 3 * line);
  list.push_back(problem({OpKind::activation, ActivationAttrs{.slope = 0.01}}, {large}));
  list.push_back(problem({OpKind::cast, CastAttrs{type}}, {TensorDesc(large.shape, DType::f32)}));
  const BatchNormAttrs relu{.relu = 1};
  list.push_back(problem({OpKind::batch_norm, relu}, {large, scales, scales, means}));
  list.push_back(problem({OpKind::batch_norm_backward_data, relu}, {large, large, scales, scales, means, means}));
  list.push_back(problem({OpKind::batch_norm_backward_parameters, ScaleAttrs{77}}, {pair, channels}));
  list.push_back(problem({OpKind::batch_norm_update, RunningAttrs{0.1, 77}}, {pair, channels, channels}));
  if (type == DType::f32)
    for (int64_t classes : {3, 5}) {
      const TensorDesc logits({2, 1, 9, 11, classes}, type), labels({2, 1, 9, 11, 1}, DType::u8);
      PixelLossAttrs a;
      for (const PixelLoss loss : {PixelLoss::cross_entropy, PixelLoss::focal}) {
        a.loss = loss;
        list.push_back(problem({OpKind::pixel_loss, a}, {logits, labels}));
        a.weights = classes == 3 ? ClassWeights{0.5, 1.5, 2.5} : ClassWeights{0.5, 1.5, 2.5, 0, 0};
        a.reduction = Reduction::sum;
        list.push_back(
            problem({OpKind::pixel_loss_backward, a}, {logits, labels, TensorDesc(Shape::vector(4), DType::f64)}));
        a.weights = {};
      }
      for (const double gamma : {0.0, 0.5, 1.0, 3.0}) {
        a.loss = PixelLoss::focal, a.gamma = gamma;
        list.push_back(problem({OpKind::pixel_loss, a}, {logits, labels}));
        list.push_back(
            problem({OpKind::pixel_loss_backward, a}, {logits, labels, TensorDesc(Shape::vector(4), DType::f64)}));
      }
    }
  if (type == DType::f32)
    for (Loss loss : {Loss::mse, Loss::l1}) {
      list.push_back(problem({OpKind::loss, LossAttrs{loss}}, {x, x}));
      list.push_back(
          problem({OpKind::loss_backward, LossAttrs{loss}}, {x, x, TensorDesc(Shape::vector(4), DType::f64)}));
    }
  return list;
}

}  // namespace convoy::testing
