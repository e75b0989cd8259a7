#include "kernels/onednn/shim.h"

#include "kernels/simd/cpu.h"

namespace convoy::onednn {
namespace {

using dnnl::memory;
constexpr bool v3 = DNNL_VERSION_MAJOR >= 3;

/// Where CONVOY_MAX_ISA asks for it, or where oneDNN would take AMX without finding out how large the tiles are.
bool isa_must_be_capped() {
  return cpu_features().limited || (cpu_features().amx_bf16 && !cpu_features().tile_leaf);
}

dnnl::cpu_isa newest_isa_but_amx() {
  const CpuFeatures& f = cpu_features();
#if DNNL_VERSION_MAJOR >= 3
  if (f.avx512_fp16) return dnnl::cpu_isa::avx512_core_fp16;
#endif
  return f.avx512_bf16 ? dnnl::cpu_isa::avx512_core_bf16
         : f.avx512    ? dnnl::cpu_isa::avx512_core
         : f.avx2      ? dnnl::cpu_isa::avx2
                       : dnnl::cpu_isa::sse41;
}

dnnl::engine make_engine() {
  if (isa_must_be_capped()) dnnl::set_max_cpu_isa(newest_isa_but_amx());
  return dnnl::engine(dnnl::engine::kind::cpu, 0);
}

/// Scratch memory is booked by our planner.
dnnl::primitive_attr attributes() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

memory::dims spatial(const Int3& v, bool image) {
  return image ? memory::dims{v[1], v[2]} : memory::dims{v[0], v[1], v[2]};
}

#if DNNL_VERSION_MAJOR >= 3
memory::dims dims_of(const memory::desc& d) {
  return d.get_dims();
}
memory::data_type type_of_desc(const memory::desc& d) {
  return d.get_data_type();
}
#else
memory::dims dims_of(const memory::desc& d) {
  return d.dims();
}
memory::data_type type_of_desc(const memory::desc& d) {
  return d.data_type();
}
#endif

}  // namespace

const dnnl::engine& engine() {
  static const dnnl::engine cpu = make_engine();
  return cpu;
}

dnnl::stream& stream() {
  static dnnl::stream queue(engine());
  return queue;
}

std::string version_text() {
  const dnnl_version_t* v = dnnl_version();
  return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch) +
         (cpu_features().limited ? " (up to CONVOY_MAX_ISA)"
          : isa_must_be_capped() ? " (capped below AMX: CPUID leaf 0x1D is hidden)"
                                 : "");
}

memory::data_type type_of(DType type) {
  switch (type) {
    case DType::f32:
      return memory::data_type::f32;
    case DType::bf16:
      return memory::data_type::bf16;
    case DType::f16:
      return memory::data_type::f16;
    case DType::u8:
      return memory::data_type::u8;
    default:
      fail_runtime("oneDNN has no " + std::string(name_of(type)));
  }
}

bool has_type(DType type) {
  return type == DType::f32 || type == DType::bf16 || (v3 && type == DType::f16);
}

ConvShape::ConvShape(const ConvAttrs& a, const TensorDesc& xd, const TensorDesc& wd, const TensorDesc& yd)
    : x_type(xd.dtype), w_type(wd.dtype), y_type(yd.dtype) {
  const Shape &xs = xd.shape, &ws = wd.shape, &ys = yd.shape;
  image = xs.d() == 1 && ys.d() == 1 && ws.d() == 1 && a.pad_low[0] == 0 && a.pad_high[0] == 0;
  grouped = a.groups > 1;
  const auto with_spatial = [&](memory::dims dims, const Shape& s) {
    const memory::dims extents = spatial({s.d(), s.h(), s.w()}, image);
    dims.insert(dims.end(), extents.begin(), extents.end());
    return dims;
  };
  x = with_spatial({xs.n(), xs.c()}, xs);
  y = with_spatial({ys.n(), ys.c()}, ys);
  w = with_spatial(grouped ? memory::dims{a.groups, ws.n() / a.groups, ws.c()} : memory::dims{ws.n(), ws.c()}, ws);
  const auto& s = TensorDesc::dense_strides(ws);
  w_strides = grouped ? memory::dims{ws.n() / a.groups * s[0], s[0], 1} : memory::dims{s[0], 1};
  const memory::dims taps = spatial({s[1], s[2], s[3]}, image);
  w_strides.insert(w_strides.end(), taps.begin(), taps.end());
  stride = spatial(a.stride, image);
  dilation = spatial({a.dilation[0] - 1, a.dilation[1] - 1, a.dilation[2] - 1}, image);
  pad_low = spatial(a.pad_low, image);
  pad_high = spatial(a.pad_high, image);
}

memory::desc ConvShape::activation(const memory::dims& dims, DType type) const {
  return {dims, type_of(type), image ? memory::format_tag::nhwc : memory::format_tag::ndhwc};
}

memory::dims ConvShape::deconv_w() const {
  memory::dims dims = w;
  std::swap(dims[grouped ? 1 : 0], dims[grouped ? 2 : 1]);
  return dims;
}
memory::dims ConvShape::deconv_w_strides() const {
  memory::dims strides = w_strides;
  std::swap(strides[grouped ? 1 : 0], strides[grouped ? 2 : 1]);
  return strides;
}

namespace {

dnnl::algorithm algorithm_of(Layout layout) {
  return layout == Layout::winograd ? dnnl::algorithm::convolution_winograd : dnnl::algorithm::convolution_direct;
}

}  // namespace

dnnl::convolution_forward::primitive_desc conv_forward(const ConvShape& s, Layout layout, bool bias) {
  const bool plain = layout == Layout::channels_last;
  const memory::desc x = plain ? s.plain_x() : s.any(s.x, s.x_type), y = plain ? s.plain_y() : s.any(s.y, s.y_type);
  const memory::desc w = s.any(s.w, s.w_type);
  const memory::desc b = bias ? memory::desc({s.y[1]}, memory::data_type::f32, memory::format_tag::a) : memory::desc();
  constexpr auto prop = dnnl::prop_kind::forward_training;
  const auto algorithm = algorithm_of(layout);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), prop, algorithm, x, w, b, y, s.stride, s.dilation, s.pad_low, s.pad_high, attributes()};
#else
  const auto desc =
      bias ? dnnl::convolution_forward::desc(prop, algorithm, x, w, b, y, s.stride, s.dilation, s.pad_low, s.pad_high)
           : dnnl::convolution_forward::desc(prop, algorithm, x, w, y, s.stride, s.dilation, s.pad_low, s.pad_high);
  return {desc, attributes(), engine()};
#endif
}

dnnl::convolution_backward_data::primitive_desc conv_backward_data(const ConvShape& s, Layout layout) {
  const auto hint = conv_forward(s, layout, false);
  const bool plain = layout == Layout::channels_last;
  const memory::desc x = plain ? s.plain_x() : s.any(s.x, s.x_type), y = plain ? s.plain_y() : s.any(s.y, s.y_type);
  const memory::desc w = s.any(s.w, s.w_type);
  const auto algorithm = algorithm_of(layout);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), algorithm, x, w, y, s.stride, s.dilation, s.pad_low, s.pad_high, hint, attributes()};
#else
  return {dnnl::convolution_backward_data::desc(algorithm, x, w, y, s.stride, s.dilation, s.pad_low, s.pad_high),
          attributes(), engine(), hint};
#endif
}

dnnl::convolution_backward_weights::primitive_desc conv_backward_weights(const ConvShape& s, Layout layout) {
  ConvShape forward_shape = s;
  forward_shape.w_type = s.x_type;  // the hint is the forward pass over narrow weights; gradients are f32
  const auto hint = conv_forward(forward_shape, layout, true);
  const bool plain = layout == Layout::channels_last;
  const memory::desc x = plain ? s.plain_x() : s.any(s.x, s.x_type), y = plain ? s.plain_y() : s.any(s.y, s.y_type);
  const memory::desc w = s.any(s.w, s.w_type), b({s.y[1]}, memory::data_type::f32, memory::format_tag::a);
  const auto algorithm = algorithm_of(layout);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), algorithm, x, w, b, y, s.stride, s.dilation, s.pad_low, s.pad_high, hint, attributes()};
#else
  return {dnnl::convolution_backward_weights::desc(algorithm, x, w, b, y, s.stride, s.dilation, s.pad_low, s.pad_high),
          attributes(), engine(), hint};
#endif
}

dnnl::deconvolution_forward::primitive_desc deconv_forward(const ConvShape& s, Layout layout) {
  const bool plain = layout == Layout::channels_last;
  const memory::desc from = plain ? s.plain_y() : s.any(s.y, s.y_type), to = plain ? s.plain_x() : s.any(s.x, s.x_type);
  const memory::desc w = s.any(s.deconv_w(), s.w_type), b({s.x[1]}, memory::data_type::f32, memory::format_tag::a);
  constexpr auto prop = dnnl::prop_kind::forward_training;
  constexpr auto direct = dnnl::algorithm::deconvolution_direct;
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), prop, direct, from, w, b, to, s.stride, s.dilation, s.pad_low, s.pad_high, attributes()};
#else
  return {dnnl::deconvolution_forward::desc(prop, direct, from, w, b, to, s.stride, s.dilation, s.pad_low, s.pad_high),
          attributes(), engine()};
#endif
}

dnnl::inner_product_forward::primitive_desc dense_forward(const memory::desc& x, const memory::desc& w,
                                                          const std::optional<memory::desc>& bias,
                                                          const memory::desc& y) {
  constexpr auto prop = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), prop, x, w, bias.value_or(memory::desc()), y, attributes()};
#else
  const auto desc =
      bias ? dnnl::inner_product_forward::desc(prop, x, w, *bias, y) : dnnl::inner_product_forward::desc(prop, x, w, y);
  return {desc, attributes(), engine()};
#endif
}

dnnl::inner_product_backward_data::primitive_desc dense_backward_data(const memory::desc& dy, const memory::desc& w,
                                                                      const memory::desc& dx) {
  const auto hint = dense_forward(dx, w, std::nullopt, dy);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), dx, w, dy, hint, attributes()};
#else
  return {dnnl::inner_product_backward_data::desc(dx, w, dy), attributes(), engine(), hint};
#endif
}

dnnl::inner_product_backward_weights::primitive_desc dense_backward_weights(const memory::desc& x,
                                                                            const memory::desc& dy,
                                                                            const memory::desc& dw,
                                                                            const memory::desc& db) {
  const memory::desc narrow(dims_of(dw), type_of_desc(x), memory::format_tag::ab);
  const auto hint = dense_forward(x, narrow, db, dy);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), x, dw, db, dy, hint, attributes()};
#else
  return {dnnl::inner_product_backward_weights::desc(x, dw, db, dy), attributes(), engine(), hint};
#endif
}

memory::desc channels_last(const TensorDesc& d, bool image) {
  const Shape& s = d.shape;
  if (image) return {{s.n(), s.c(), s.h(), s.w()}, type_of(d.dtype), memory::format_tag::nhwc};
  return {{s.n(), s.c(), s.d(), s.h(), s.w()}, type_of(d.dtype), memory::format_tag::ndhwc};
}

dnnl::pooling_forward::primitive_desc pool_forward(dnnl::algorithm algorithm, const PoolAttrs& a, const TensorDesc& x,
                                                   const TensorDesc& y) {
  const bool image = x.shape.d() == 1;
  const memory::desc from = channels_last(x, image), to = channels_last(y, image);
  const memory::dims stride = spatial(a.stride, image), kernel = spatial(a.kernel, image),
                     low = spatial(a.pad_low, image), high = spatial(a.pad_high, image);
  constexpr auto prop = dnnl::prop_kind::forward_training;
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), prop, algorithm, from, to, stride, kernel, memory::dims(stride.size(), 0), low, high, attributes()};
#else
  return {dnnl::pooling_forward::desc(prop, algorithm, from, to, stride, kernel, low, high), attributes(), engine()};
#endif
}

dnnl::pooling_backward::primitive_desc pool_backward(dnnl::algorithm algorithm, const PoolAttrs& a, const TensorDesc& x,
                                                     const TensorDesc& y) {
  const auto hint = pool_forward(algorithm, a, x, y);
  const bool image = x.shape.d() == 1;
  const memory::desc from = channels_last(x, image), to = channels_last(y, image);
  const memory::dims stride = spatial(a.stride, image), kernel = spatial(a.kernel, image),
                     low = spatial(a.pad_low, image), high = spatial(a.pad_high, image);
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), algorithm, from, to, stride, kernel, memory::dims(stride.size(), 0), low, high, hint, attributes()};
#else
  return {dnnl::pooling_backward::desc(algorithm, from, to, stride, kernel, low, high), attributes(), engine(), hint};
#endif
}

}  // namespace convoy::onednn
