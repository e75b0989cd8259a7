// Convolution problems in the notation of oneDNN's benchdnn and of its verbose lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"

namespace convoy::bench {

enum class Pass : unsigned char { forward, backward_data, backward_weights };
std::string_view name_of(Pass pass);
/// "forward,backward_data" in any order; throws Error(usage) naming the unknown pass.
std::vector<Pass> parse_passes(std::string_view text);

/// One convolution or transposed convolution, before a pass and a type are chosen.
struct ConvString {
  std::string name;
  bool transposed = false;
  Shape src, dst;  ///< as the layer sees them
  Shape weights;   ///< K, KD, KH, KW, C/groups of the convolution whose backward_data a transposed one is
  ConvAttrs attrs;

  /// Throws Error(usage) where a tensor or the work would be too large to count.
  Problem problem(Pass pass, DType type) const;
};

/// Reads `conv ic16ih768iw1152oc64kh7sh2ph3n"root"`, `deconv ...`, or the bare descriptor. Keys: g mb ic oc id ih iw od
/// oh ow kd kh kw sd sh sw dd dh dw (dilation minus 1) pd ph pw. As in benchdnn a missing axis takes the values of the
/// next smaller one that is given (w from h from d) and, where only smaller ones are given, the image has fewer axes;
/// mb is 2, missing outputs follow from the rest, missing padding from given outputs (half of what they need). The
/// padding behind equals the one in front where that gives the outputs, else it is what they need. Throws Error(usage)
/// naming the token, and for outputs that no padding behind gives.
ConvString parse_conv_string(std::string_view text);

/// A pasted verbose line (`dnnl_verbose,exec,cpu,convolution,...` or `onednn_verbose,...`): problem, pass and type.
struct VerboseLine {
  ConvString conv;
  Pass pass;
  DType type;
  std::string post_ops;  ///< what the library's primitive did behind the convolution, which is not part of the problem
};
bool is_verbose_line(std::string_view text);
VerboseLine parse_verbose_line(std::string_view text);

}  // namespace convoy::bench
