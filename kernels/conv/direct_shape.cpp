#include "kernels/conv/direct_shape.h"

#include "core/conv_shapes.h"
#include "core/round_up.h"
#include "kernels/simd/amx.h"
#include "kernels/simd/cpu.h"

#include <algorithm>
#include <string>

namespace convoy {
namespace {

int64_t floor_mod(int64_t a, int64_t b) {
  return (a % b + b) % b;
}

}  // namespace

DirectShape::DirectShape(const Problem& p) {
  const bool weights = p.op.kind == OpKind::conv_backward_weights || p.op.kind == OpKind::conv_pool_backward_weights;
  forward = p.op.kind != OpKind::conv_backward_data && p.op.kind != OpKind::conv_pool_backward_data;
  const auto* pool = std::get_if<ConvPoolAttrs>(&p.op.attrs);
  attrs = pool ? pool->conv : p.op.as<ConvAttrs>();
  activates = p.op.kind == OpKind::conv_activation_forward;
  groups = attrs.groups;
  x = p.in[0], y = weights ? p.in[1] : p.out[0];
  unpools = pool && p.op.kind != OpKind::conv_pool_forward;
  if (unpools) {
    const size_t cells_at = weights ? 1 : 0;  // gradient, pooled map, arg-max
    (weights ? y : x) =
        infer({OpKind::activation_max_pool_backward, pool->pool}, std::span(p.in).subspan(cells_at, 3))[0];
  } else if (pool) {
    window = pool->pool.pool.kernel;
    cells = spatial(y.shape);
    y = infer({OpKind::conv_forward, attrs}, p.in)[0];
  }
  const Shape& w = (weights ? p.out[0] : weight_of(p)).shape;
  kernel = spatial(w);
  in = x.shape.c() / groups, out = y.shape.c() / groups;
  if (forward && !pool) leave_out_unread();
  const int64_t s = attrs.stride[2], d = attrs.dilation[2], pad = attrs.pad_low[2];
  const int64_t width = pooled() ? cells[2] * window[2] : y.shape.w();
  if (forward) {
    ColumnPhase phase{.count = width, .advance = s};
    for (int64_t t = 0; t < kernel[2]; ++t) phase.taps.push_back({t, t * d - pad});
    phases.push_back(std::move(phase));
  } else {
    for (int64_t r = 0; r < std::min(s, width); ++r) {
      ColumnPhase phase{.start = r, .step = s, .count = ceil_div(width - r, s)};
      for (int64_t t = 0; t < kernel[2]; ++t)
        if (const int64_t shifted = r + pad - t * d; floor_mod(shifted, s) == 0) phase.taps.push_back({t, shifted / s});
      phases.push_back(std::move(phase));
    }
  }
  bool first = true;
  for (ColumnPhase& phase : phases) {
    std::erase_if(phase.taps, [&](const ColumnTap& t) { return inside(phase, t).size() == 0; });
    std::sort(phase.taps.begin(), phase.taps.end(), [](auto& a, auto& b) { return a.column < b.column; });
    for (size_t i = 1; i < phase.taps.size(); ++i)
      phase.contiguous = phase.contiguous && phase.taps[i].column == phase.taps[i - 1].column + 1;
    phase.first_tap = column_taps;
    column_taps += static_cast<int64_t>(phase.taps.size());
    positions = std::max(positions, phase.count);
    for (const ColumnTap& t : phase.taps) {
      column_low = first ? t.column : std::min(column_low, t.column);
      column_high = first ? t.column : std::max(column_high, t.column);
      first = false;
    }
  }
}

void DirectShape::leave_out_unread() {
  if (kernel != Int3{1, 1, 1} || attrs.pad_low != Int3{}) return;
  for (int axis = 0; axis < 3; ++axis)
    if ((y.shape[axis + 1] - 1) * attrs.stride[axis] >= x.shape[axis + 1]) return;  // padding behind the last column
  x.shape = {x.shape.n(), y.shape.d(), y.shape.h(), y.shape.w(), x.shape.c()};
  for (size_t axis = 0; axis < 3; ++axis) x.stride[axis + 1] *= attrs.stride[axis];
  attrs.stride = {1, 1, 1};
}

int64_t DirectShape::source(int axis, int64_t o, int64_t t) const {
  const int64_t s = attrs.stride[axis], shift = t * attrs.dilation[axis], pad = attrs.pad_low[axis];
  const int64_t extent = x.shape[axis + 1];
  int64_t at = forward ? o * s - pad + shift : o + pad - shift;
  if (!forward) {
    if (at < 0 || at % s) return -1;
    at /= s;
  }
  return at >= 0 && at < extent ? at : -1;
}

bool DirectShape::first_to_read(int axis, int64_t t) const {
  const int64_t stride = attrs.stride[axis], dilation = attrs.dilation[axis];
  // backward_data: output o meets input (o - t * dilation) / stride, and so does an earlier one through a lower tap.
  for (int64_t other = forward ? t + 1 : 0; other < (forward ? kernel[axis] : t); ++other)
    if (!forward || (other - t) * dilation % stride == 0) return false;
  return true;
}

int64_t DirectShape::row_at(int64_t index) const {
  if (!pooled()) return index;
  const int64_t cell = index / row_group(), in_cell = index % row_group();
  const int64_t h = cell % cells[1] * window[1] + in_cell % window[1];
  const int64_t d = cell / cells[1] % cells[0] * window[0] + in_cell / window[1];
  return (cell / (cells[1] * cells[0]) * y.shape.d() + d) * y.shape.h() + h;
}

int64_t DirectShape::source_row(int64_t row, int64_t t) const {
  const int64_t h = source(1, row % y.shape.h(), t % kernel[1]);
  const int64_t d = source(0, row / y.shape.h() % y.shape.d(), t / kernel[1]);
  if (h < 0 || d < 0) return -1;
  return (row / (y.shape.h() * y.shape.d()) * x.shape.d() + d) * x.shape.h() + h;
}

int64_t DirectShape::row_offset(const TensorDesc& desc, int64_t row) {
  const Shape& s = desc.shape;
  return desc.offset(row / (s.h() * s.d()), row / s.h() % s.d(), row % s.h(), 0);
}

Range DirectShape::inside(const ColumnPhase& phase, const ColumnTap& tap) const {
  // The first position at or past an input column.
  const auto reaches = [&](int64_t column) {
    const int64_t distance = column - tap.column;
    return distance <= 0 ? 0 : std::min(ceil_div(distance, phase.advance), phase.count);
  };
  return {reaches(0), reaches(x.shape.w())};
}

std::string DirectShape::kept_taps() const {
  std::string list;
  for (const ColumnPhase& phase : phases)
    for (const ColumnTap& tap : phase.taps) list.append(" ").append(std::to_string(tap.weight));
  return list;
}

Range DirectShape::interior(const ColumnPhase& phase) const {
  Range common{0, phase.count};
  for (const ColumnTap& tap : phase.taps) {
    const Range r = inside(phase, tap);
    common = {std::max(common.begin, r.begin), std::min(common.end, r.end)};
  }
  return {common.begin, std::max(common.begin, common.end)};
}

int64_t DirectShape::columns(int64_t count) const {
  return phases[0].advance * (count - 1) + column_high - column_low + 1;
}

int weight_input(const Problem& p) {
  return p.op.kind == OpKind::conv_pool_backward_data ? 3 : 1;
}

const TensorDesc& weight_of(const Problem& p) {
  return p.in[static_cast<size_t>(weight_input(p))];
}

Problem in_one_row(const Problem& p) {
  if (std::holds_alternative<ConvPoolAttrs>(p.op.attrs)) return p;
  const auto& a = p.op.as<ConvAttrs>();
  const Shape &x = p.in[0].shape, &y = p.out[0].shape, &w = p.in[1].shape;
  const Int3 none{0, 0, 0}, ones{1, 1, 1};
  const bool product = spatial(w) == ones && a.stride == ones && a.pad_low == none && spatial(x) == spatial(y);
  if (!product || p.in[0].pixel_pitch() < 0 || p.out[0].pixel_pitch() < 0) return p;
  Problem flat = p;
  for (TensorDesc* t : {&flat.in[0], &flat.out[0]}) {
    const int64_t positions = t->shape.elements() / t->shape.c(), step = t->stride[3];
    t->shape = {1, 1, 1, positions, t->shape.c()};
    t->stride = {positions * step, positions * step, positions * step, step};
  }
  return flat;
}

bool is_depthwise(const Problem& p) {
  const int64_t groups = p.op.as<ConvAttrs>().groups;
  const Shape& y = p.op.kind == OpKind::conv_backward_weights ? p.in[1].shape : p.out[0].shape;
  return groups > 1 && groups == p.in[0].shape.c() && groups == y.c();
}

Support needs_pointwise(const Problem& p) {
  const auto& a = p.op.as<ConvAttrs>();
  const Shape& w = p.op.kind == OpKind::conv_backward_weights ? p.out[0].shape : p.in[1].shape;
  if (w.d() * w.h() * w.w() != 1 || a.pad_low != Int3{} || a.pad_high != Int3{})
    return Support::no("needs a 1x1 kernel without padding");
  if (a.groups != 1) return Support::no("needs one group");
  return Support::yes();
}

namespace {

bool is_pointwise(const Problem& p) {
  const Shape& w = p.op.kind == OpKind::conv_backward_weights ? p.out[0].shape : p.in[1].shape;
  return w.d() * w.h() * w.w() == 1;
}

/// Enough work to be worth packing and sharing.
bool many_positions(const Problem& p) {
  const Shape& y = p.op.kind == OpKind::conv_backward_weights ? p.in[1].shape : p.out[0].shape;
  return y.elements() / y.c() >= 2048;
}

}  // namespace

bool multiplies_faster([[maybe_unused]] DType type) {
#ifdef CONVOY_WITH_AVX512
  const CpuFeatures& cpu = cpu_features();
  return type == DType::bf16 ? cpu.fast_bf16_dot || amx_granted() : type == DType::f16 && cpu.avx512_fp16;
#else
  return false;
#endif
}

bool strides_from_few_channels(const Problem& p) {
  return p.op.kind == OpKind::conv_forward && p.op.as<ConvAttrs>().stride != Int3{1, 1, 1} && p.in[0].shape.c() <= 16 &&
         p.in[1].shape.d() == 1 && p.in[1].shape.w() == 3 && many_positions(p);
}

namespace {

/// Whether a dilation reaches so far beyond the image that few taps meet it: Winograd's tiles stick out of the image
/// instead, and the library multiplies by padding. 8 x 12 positions with a dilation of 6, Zen 3, forward: 4.3 and 1.9
/// times as fast.
bool reaches_far_outside(const Problem& p) {
  if (p.op.kind == OpKind::conv_backward_weights || p.op.as<ConvAttrs>().dilation == Int3{1, 1, 1}) return false;
  return !is_depthwise(p) && share_inside(*conv_shapes(p)) < 0.55;
}

}  // namespace

bool direct_is_measured_faster(const Problem& p) {
  if (std::holds_alternative<ConvPoolAttrs>(p.op.attrs)) return false;
  const auto& a = p.op.as<ConvAttrs>();
  if (is_depthwise(p)) return p.in[0].dtype == DType::f32 || p.in[0].dtype == DType::bf16;
  if (reaches_far_outside(p)) return !multiplies_faster(p.in[0].dtype);
  if (p.in[0].dtype != DType::f32) return false;
  const bool sums_weights = p.op.kind == OpKind::conv_backward_weights;
  if (is_pointwise(p)) return a.groups == 1 && many_positions(p) && (sums_weights || p.out[0].shape.c() >= 32);
  if (strides_from_few_channels(p)) return true;
  const bool strided = a.stride != Int3{1, 1, 1};
  if (sums_weights)
    return (a.result_size[1] == 3 && a.result_size[2] == 3) || (strided && a.result_size[0] == 1 && many_positions(p));
  return p.op.kind == OpKind::conv_backward_data && strided && p.out[0].shape.c() >= 64;
}

bool direct_widening_is_measured_faster(const Problem& p) {
  if (p.in[0].dtype != DType::bf16 || std::holds_alternative<ConvPoolAttrs>(p.op.attrs) || !many_positions(p))
    return false;
  const auto& a = p.op.as<ConvAttrs>();
  const bool sums_weights = p.op.kind == OpKind::conv_backward_weights, wide = p.out[0].shape.c() >= 32;
  if (a.groups != 1) return false;
  if (is_pointwise(p)) return sums_weights || wide;
  const int64_t taps = (sums_weights ? p.out[0] : p.in[1]).shape.w();
  const bool winograd = a.stride == Int3{1, 1, 1} && (taps == 3 || taps == 5);
  return !winograd && (p.op.kind != OpKind::conv_backward_data || wide);
}

bool direct_avx2_is_measured_faster(const Problem& p) {
  if (!direct_is_measured_faster(p)) return false;
  if (!is_pointwise(p) || p.op.kind == OpKind::conv_backward_weights) return true;
  return p.op.kind == OpKind::conv_backward_data && p.out[0].shape.c() <= 2 * p.in[0].shape.c();
}

bool few_outputs_is_measured_faster(const Problem& p) {
  const Shape& y = (p.op.kind == OpKind::conv_backward_weights ? p.in[1] : p.out[0]).shape;
  return is_pointwise(p) && many_positions(p) && y.n() * y.d() * y.h() >= 64 && p.in[0].shape.c() >= 64 &&
         y.c() <= few_outputs_at_most;
}

namespace {

/// Weight gradients whose tasks in pointwise_weights.inl are enough for all threads.
bool has_pointwise_tasks(const Problem& p) {
  if (p.op.kind != OpKind::conv_backward_weights || !needs_pointwise(p).ok || !many_positions(p)) return false;
  const int64_t tasks =
      ceil_div(p.in[0].shape.c(), pointwise_task_inputs) * ceil_div(p.in[1].shape.c(), pointwise_task_outputs);
  return tasks >= 2 * p.threads;
}

}  // namespace

bool pointwise_avx512_is_measured_faster(const Problem& p) {
  return p.in[0].dtype == DType::f32 && has_pointwise_tasks(p) && std::min(p.in[0].shape.c(), p.in[1].shape.c()) >= 704;
}

bool pointwise_bf16_is_measured_faster(const Problem& p) {
  return p.in[0].dtype == DType::bf16 && has_pointwise_tasks(p) && p.in[0].shape.c() >= 704 && p.in[1].shape.c() >= 256;
}

bool pointwise_avx2_is_measured_faster(const Problem& p) {
  if (p.in[0].dtype != DType::f32) return false;
  const bool sums_weights = p.op.kind == OpKind::conv_backward_weights,
             strided = p.op.as<ConvAttrs>().stride != Int3{1, 1, 1};
  const int64_t in = p.in[0].shape.c(), out = sums_weights ? p.in[1].shape.c() : p.out[0].shape.c();
  if (sums_weights)
    return in * out >= 256 * 256 && has_pointwise_tasks(p) && (in * out >= 256 * 704 || in >= 384 || strided);
  const bool transposed = p.op.kind == OpKind::conv_backward_data && strided;
  return !transposed && needs_pointwise(p).ok && many_positions(p) && std::min(in, out) >= 32;
}

bool direct_bf16_is_measured_faster(const Problem& p) {
  if (p.in[0].dtype != DType::bf16 || std::holds_alternative<ConvPoolAttrs>(p.op.attrs)) return false;
  const DirectShape s(p);
  const auto& a = p.op.as<ConvAttrs>();
  const bool sums_weights = p.op.kind == OpKind::conv_backward_weights;
  if (is_pointwise(p)) {
    if (a.groups != 1 || !many_positions(p)) return false;
    return sums_weights || (s.y.shape.c() >= 32 && s.x.shape.c() <= 2 * direct_chunk_words);
  }
  if (is_depthwise(p)) return false;
  if (a.stride != Int3{1, 1, 1}) {
    if (sums_weights) return s.x.shape.c() >= 16 && s.y.shape.elements() / s.y.shape.c() >= 10000;
    return p.op.kind == OpKind::conv_backward_data && s.y.shape.c() >= 64;
  }
  if (a.dilation == Int3{1, 1, 1}) return false;
  return share_inside(*conv_shapes(p)) < (sums_weights ? 0.7 : 0.8);
}

int64_t RowSet::collect(const DirectShape& s, int64_t first, int64_t rows, int32_t* slots, int64_t* sources) {
  int64_t count = 0;
  const int64_t taps = s.row_taps();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = s.row_at(first + r), h = row % s.y.shape.h(), plane = row / s.y.shape.h();
    const int64_t d = plane % s.y.shape.d(), n = plane / s.y.shape.d();
    for (int64_t t = 0, td = 0, th = 0; t < taps; ++t) {
      const int64_t from_d = s.source(0, d, td), from_h = s.source(1, h, th);
      const int64_t source = from_d < 0 || from_h < 0 ? -1 : (n * s.x.shape.d() + from_d) * s.x.shape.h() + from_h;
      if (++th == s.kernel[1]) th = 0, ++td;
      int64_t slot = -1;
      if (source >= 0) {
        // The newest rows are the likeliest.
        for (slot = count - 1; slot >= 0 && sources[slot] != source;) --slot;
        if (slot < 0) slot = count, sources[count++] = source;
      }
      slots[r * taps + t] = static_cast<int32_t>(slot);
    }
  }
  return count;
}

Range RowSet::band(const DirectShape& s, int64_t index, int64_t bands) {
  return split_range(s.rows(), static_cast<int>(index), static_cast<int>(bands), s.row_group());
}

int64_t RowSet::largest(const DirectShape& s, int64_t bands) {
  const int64_t groups = s.rows() / s.row_group(), most = ceil_div(groups, bands) * s.row_group();
  std::vector<int32_t> slots(static_cast<size_t>(most * s.row_taps()));
  std::vector<int64_t> sources(slots.size() + 1);
  int64_t largest = 0;
  for (int64_t b = 0; b < bands; ++b) {
    const Range range = band(s, b, bands);
    largest = std::max(largest, collect(s, range.begin, range.size(), slots.data(), sources.data()));
  }
  return largest;
}

}  // namespace convoy
