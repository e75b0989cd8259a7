// oneDNN 2.x and 3.x behind one set of functions. 3.0 removed operation descriptors: everything that builds a primitive
// descriptor differs between the two and lives here; callers see one API. Included by kernels/ only.
#pragma once

#include <dnnl.hpp>
#include <optional>
#include <string>

#include "core/kernel.h"

namespace convoy::onednn {

/// Process-wide CPU engine. Before it exists the ISA is capped below AMX where the CPU announces AMX but hides CPUID
/// leaf 0x1D: oneDNN builds its tile configuration from that leaf and would die with SIGILL.
const dnnl::engine& engine();
dnnl::stream& stream();
/// "oneDNN 2.6.3" and whether the ISA was capped.
std::string version_text();

dnnl::memory::data_type type_of(DType type);
bool has_type(DType type);

/// What both layouts of one convolution problem share: oneDNN's dims are N, C, [D,] H, W; depth is left out for images.
struct ConvShape {
  explicit ConvShape(const ConvAttrs& attrs, const TensorDesc& x, const TensorDesc& w, const TensorDesc& y);
  dnnl::memory::dims x, w, y, stride, dilation, pad_low, pad_high;
  dnnl::memory::dims w_strides;  ///< of our K, KD, KH, KW, C order
  bool image, grouped;
  DType x_type, w_type, y_type;

  /// The caller's tensor: dense channels-last.
  dnnl::memory::desc plain_x() const { return activation(x, x_type); }
  dnnl::memory::desc plain_y() const { return activation(y, y_type); }
  dnnl::memory::desc plain_w() const { return {w, type_of(w_type), w_strides}; }
  dnnl::memory::desc any(const dnnl::memory::dims& dims, DType type) const {
    return {dims, type_of(type), dnnl::memory::format_tag::any};
  }
  /// The same weights seen by a deconvolution: input and output channels swapped.
  dnnl::memory::dims deconv_w() const;
  dnnl::memory::dims deconv_w_strides() const;

 private:
  dnnl::memory::desc activation(const dnnl::memory::dims& dims, DType type) const;
};

/// Who chooses the layout of activations: we, or the library, which Winograd's algorithm leaves no choice.
enum class Layout { channels_last, blocked, winograd };

dnnl::convolution_forward::primitive_desc conv_forward(const ConvShape& s, Layout layout, bool bias);
dnnl::convolution_backward_data::primitive_desc conv_backward_data(const ConvShape& s, Layout layout);
dnnl::convolution_backward_weights::primitive_desc conv_backward_weights(const ConvShape& s, Layout layout);
/// backward_data used forward, with a bias.
dnnl::deconvolution_forward::primitive_desc deconv_forward(const ConvShape& s, Layout layout);

dnnl::inner_product_forward::primitive_desc dense_forward(const dnnl::memory::desc& x, const dnnl::memory::desc& w,
                                                          const std::optional<dnnl::memory::desc>& bias,
                                                          const dnnl::memory::desc& y);
dnnl::inner_product_backward_data::primitive_desc dense_backward_data(const dnnl::memory::desc& dy,
                                                                      const dnnl::memory::desc& w,
                                                                      const dnnl::memory::desc& dx);
dnnl::inner_product_backward_weights::primitive_desc dense_backward_weights(const dnnl::memory::desc& x,
                                                                            const dnnl::memory::desc& dy,
                                                                            const dnnl::memory::desc& dw,
                                                                            const dnnl::memory::desc& db);

/// A dense tensor. Whether depth is left out is for both sides of a problem to agree on: a volume may be pooled to a
/// depth of one.
dnnl::memory::desc channels_last(const TensorDesc& d, bool image);
dnnl::pooling_forward::primitive_desc pool_forward(dnnl::algorithm algorithm, const PoolAttrs& attrs,
                                                   const TensorDesc& x, const TensorDesc& y);
dnnl::pooling_backward::primitive_desc pool_backward(dnnl::algorithm algorithm, const PoolAttrs& attrs,
                                                     const TensorDesc& x, const TensorDesc& y);

}  // namespace convoy::onednn
