// Which convolutions Winograd takes, and with which scheme. Included by winograd.inl, whose list of refusals it is.

/// The axes of schemes whose tiles have so many outputs along H and W.
template <int outputs>
struct AxesOf;
template <>
struct AxesOf<2> {
  using Depth = TwoThree;
  using Three = TwoThree;
  using Five = TwoFive;
};
template <>
struct AxesOf<4> {
  using Depth = FourThree;
  using Three = FourThree;
  using Five = FourFive;
};
template <>
struct AxesOf<6> {
  using Depth = FourThree;  // with six all round sums would err by a further factor of two, and tiles fit fewer volumes
  using Three = SixThree;
  using Five = SixFive;
};

/// Calls f(scheme) with the scheme of a kernel's extents whose tiles have so many outputs along an axis, or says no.
template <int outputs, class F>
Support with_scheme(const Shape& w, F&& f) {
  using A = AxesOf<outputs>;
  const Int3 k{w.d(), w.h(), w.w()};
  if (k == Int3{3, 3, 3}) return f(Scheme<typename A::Depth, typename A::Three, typename A::Three>{});
  if (k == Int3{1, 3, 3}) return f(Scheme<Flat, typename A::Three, typename A::Three>{});
  if (k == Int3{1, 5, 5}) return f(Scheme<Flat, typename A::Five, typename A::Five>{});
  return Support::no("needs a 3x3, 5x5 or 3x3x3 kernel, found " + w.str());
}

/// The numbers of that scheme, or no.
using FindScheme = Support (*)(const Shape& w, SchemeNumbers& scheme);
template <int outputs>
Support scheme_numbers(const Shape& w, SchemeNumbers& scheme) {
  return with_scheme<outputs>(w, [&](auto wanted) {
    scheme = wanted.numbers;
    return Support::yes();
  });
}

/// Whether the tiles of s, of six outputs, take enough fewer multiplications than tiles of four: not where they stick
/// out of the image, or out of the sub-lattices of a dilation, too far. `w` are the convolution's weights.
inline Support saves_beside_four(const Shape& w, WinogradShape s) {
  const double six = double(s.tile_count) * s.scheme.points;
  if (const Support four = scheme_numbers<4>(w, s.scheme); !four.ok) return four;
  set_tiles(s);
  if (double(s.tile_count) * s.scheme.points >= least_saved * six) return Support::yes();
  return Support::no("saves too little beside tiles of four outputs: those of six stick out of the image");
}

/// Whether f(scheme) supports the stride-2 convolution of images that p is, or its transpose.
template <class F>
Support with_strided_scheme(const Problem& p, F&& f) {
  const ConvAttrs& a = winograd_conv(p);
  const Shape& w = weight_of(p).shape;
  const bool pools = p.op.kind == OpKind::conv_pool_forward || p.op.kind == OpKind::conv_pool_backward_data;
  if (pools || w.d() != 1 || w.h() != 3 || w.w() != 3 || a.stride != Int3{1, 2, 2} || a.dilation != Int3{1, 1, 1})
    return Support::no("takes a stride of 1x2x2 for undilated 3x3 kernels of images that are not pooled");
  if (a.pad_low[0] != 0) return Support::no("with a stride pads images along H and W only");
  if (p.op.kind == OpKind::conv_backward_data) return f(Scheme<Flat, ThreeUp, ThreeUp>{});
  return f(Scheme<Flat, ThreeDown, ThreeDown>{});
}

Support supports_strided(const Problem& p) {
  const Shape& w = weight_of(p).shape;
  if (multiplies_faster(p.in[0].dtype))
    return Support::no("with a stride saves less than this CPU's " + std::string(name_of(p.in[0].dtype)) + " products");
  if (w.n() % 16 || w.c() % 16)
    return Support::no("needs channels in multiples of 16, found " + std::to_string(w.c()) + " and " +
                       std::to_string(w.n()));
  if (!weight_of(p).dense()) return Support::no("needs dense weights");
  return with_strided_scheme(p, [&](auto scheme) {
    const int64_t tiles = winograd_shape(p, scheme.numbers).tile_count;
    return tiles >= 64 ? Support::yes() : Support::no("needs 64 tiles, found " + std::to_string(tiles));
  });
}

/// With tiles of so many outputs; `find` gives the scheme of a kernel's extents.
inline Support supports_winograd(const Problem& whole, int outputs, FindScheme find) {
  if (const Support sum = supports_addend(whole); !sum.ok) return sum;
  const Problem p = without_addend(whole);
  if (const Support type = needs_narrow_float(p); !type.ok) return type;
  const ConvAttrs& a = winograd_conv(p);
  const Int3 one{1, 1, 1}, two{2, 2, 2};
  const Shape& w = weight_of(p).shape;
  if (a.groups != 1) return Support::no("needs one group");
  if (a.stride != one) return outputs > 2 ? Support::no("needs stride 1") : supports_strided(p);
  const bool backward = p.op.kind == OpKind::conv_backward_data || p.op.kind == OpKind::conv_pool_backward_data;
  const bool four = outputs < 6 && w.c() == 4 && !backward && w.n() % 16 == 0;
  if ((w.n() % 16 || w.c() % 16) && !four)
    return Support::no("needs channels in multiples of 16, found " + std::to_string(w.c()) + " and " +
                       std::to_string(w.n()));
  if (p.op.kind == OpKind::conv_pool_forward) {
    if (const Support window = supports_window(p.op.as<ConvPoolAttrs>()); !window.ok) return window;
    if (a.dilation != one) return Support::no("pools undilated convolutions only");
    if (w.d() == 1 && p.op.as<ConvPoolAttrs>().pool.pool.kernel[0] != 1) return Support::no("pools images by 1x2x2");
  }
  if (p.op.kind == OpKind::conv_pool_backward_data) {
    const auto& pool = p.op.as<ConvPoolAttrs>().pool;
    if (const Support window = supports_window(p.op.as<ConvPoolAttrs>()); !window.ok) return window;
    if (pool.pool.kernel != two || w.d() != 3) return Support::no("un-pools 2x2x2 windows in three dimensions only");
    if (a.dilation != one) return Support::no("un-pools undilated convolutions only");
    const Shape& cells = p.in[0].shape;
    if (pool.pool.result_size != Int3{2 * cells.d(), 2 * cells.h(), 2 * cells.w()})
      return Support::no("un-pools even extents only");
  }
  SchemeNumbers scheme;
  if (const Support found = find(w, scheme); !found.ok) return found;
  const WinogradShape s = winograd_shape(p, scheme);
  for (int i = 0; i < 3; ++i)
    if (s.pad[i] < 0) return Support::no("pads at most dilation * (kernel - 1) in front");
  // Transformed weights stream once per block: with few tiles that costs more than the products saved, least so in
  // three dimensions and with many channels.
  const bool saves_much =
      outputs > 2 || scheme.k[0] > 1 || (scheme.k[2] == 3 && s.channels_in() * s.channels_out() >= 128 * 128);
  const int64_t least = saves_much ? 64 : 256;
  if (s.tile_count < least)
    return Support::no("needs " + std::to_string(least) + " tiles, found " + std::to_string(s.tile_count));
  if (outputs == 6)
    if (const Support saves = saves_beside_four(w, s); !saves.ok) return saves;
  if (!weight_of(p).dense()) return Support::no("needs dense weights");
  const bool pools = p.op.kind == OpKind::conv_pool_forward || p.op.kind == OpKind::conv_pool_backward_data;
  return pools ? needs_dense(p) : Support::yes();
}
template <int outputs>
Support supports_winograd(const Problem& p) {
  return supports_winograd(p, outputs, scheme_numbers<outputs>);
}

template <int outputs>
std::unique_ptr<Prepared> prepare_winograd(const Problem& p) {
  std::unique_ptr<Prepared> prepared;
  const auto make = [&](auto scheme) {
    prepared = std::make_unique<PreparedWinograd>(p, scheme.numbers, winograd_code<decltype(scheme)>());
    return Support::yes();
  };
  if (outputs == 2 && winograd_conv(p).stride != Int3{1, 1, 1})
    with_strided_scheme(without_addend(p), make);
  else
    with_scheme<outputs>(weight_of(p).shape, make);
  return prepared;
}

/// Products of a pair of channels in tiles of so many outputs; infinite for kernels that have none.
template <int outputs>
double tile_products(const ConvShapes& c, bool forward) {
  WinogradShape s;
  s.y = TensorDesc(forward ? c.y : c.x, DType::f32), s.dilation = c.attrs.dilation;
  if (!scheme_numbers<outputs>(c.w, s.scheme).ok) return INFINITY;
  set_tiles(s);
  return double(s.tile_count) * s.scheme.points;
}

/// Whether tiles of two outputs go before larger ones, which have more weights to read per tile and stick further out
/// of the image, or out of the sub-lattices of a dilation; and before direct sums, which leave out what meets padding,
/// but take longer for a product.
inline bool prefers_small_tiles(const Problem& p) {
  // 14 x 20 positions with a dilation of 6, 1.19 times the products of tiles of four: 1.3 times as fast.
  constexpr double least = 1.3, direct_product = 1.1;
  if (multiplies_faster(p.in[0].dtype)) return false;
  const ConvShapes c = *conv_shapes(p);
  const bool forward = !is_data_gradient(p.op.kind) && p.op.kind != OpKind::conv_pool_backward_data;
  const double two = tile_products<2>(c, forward),
               larger = std::min(tile_products<4>(c, forward), tile_products<6>(c, forward));
  return two < least * larger && two < direct_product * double(pairs_inside(c));
}

/// With a stride even the direct kernels that are preferred elsewhere are slower where this one is not refused, but for
/// few input channels.
inline bool prefers_winograd(const Problem& p) {
  if (winograd_conv(p).stride != Int3{1, 1, 1}) return !strides_from_few_channels(p);
  return prefers_small_tiles(p);
}
