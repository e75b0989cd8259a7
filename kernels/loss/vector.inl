// Softmax cross-entropy per pixel, a vector of pixels at a time: the classes of a pixel lie side by side, so that they
// are turned on the way in and out. Only powers of the focal loss that are no small integers go pixel by pixel.

constexpr int64_t most_classes = 16;
constexpr int64_t pixel_block = 4096;  // pixels per partial sum
constexpr int64_t pixel_run = 256;     // of them summed in f32 before they are added in f64

Support supports_pixel_loss(const Problem& p) {
  if (p.in[0].dtype != DType::f32) return Support::no("is computed in f32, found " + p.in[0].str());
  if (p.in[0].shape.c() > most_classes)
    return Support::no("handles 16 classes, found " + std::to_string(p.in[0].shape.c()));
  return needs_dense(p);
}

/// exp for arguments of at most zero; below -87 it is 0.
inline Vec exp_negative(Vec x) {
  return select(greater(Vec::all(-87.0f), x), Vec::all(0.0f), exp_bounded(x));
}

/// Turns `pixels` pixels of `classes` values to [class][pixel], or back: f(element, class, pixel). Their number is
/// known to the compiler for the three of climate segmentation.
template <class F>
inline void for_pixel_classes(int64_t pixels, int64_t classes, F&& f) {
  const auto each = [&](auto count) {
    for (int64_t i = 0; i < pixels; ++i)
      for (int64_t k = 0; k < count; ++k) f(i * count + k, k, i);
  };
  classes == 3 ? each(std::integral_constant<int64_t, 3>{}) : each(classes);
}

/// Exponentials of the classes of up to a vector of pixels and what goes with them; lanes without a pixel count as one
/// of zeros.
struct PixelVector {
  alignas(64) float logit[most_classes][Vec::lanes];
  Vec value[most_classes];  // exp(logit - largest)
  Vec largest, sum;

  PixelVector(const float* logits, int64_t classes, int64_t pixels) {
    if (pixels < Vec::lanes) std::fill(logit[0], logit[0] + classes * Vec::lanes, 0.0f);
    for_pixel_classes(pixels, classes, [&](int64_t at, int64_t k, int64_t i) { logit[k][i] = logits[at]; });
    largest = Vec::all(-INFINITY);
    for (int64_t k = 0; k < classes; ++k) largest = max(largest, load(logit[k]));
    sum = Vec::all(0.0f);
    for (int64_t k = 0; k < classes; ++k) {
      const Vec z = load(logit[k]) - largest;
      value[k] = select(is_nan(z), z, exp_negative(z));
      sum = sum + value[k];
    }
  }
};

/// The labels of a vector of pixels and their weights: 0 where they are ignored, not a number where no class has them.
struct PixelLabels {
  Ints label;
  Vec weight = Vec::all(NAN);
  PixelLabels(const PixelLossAttrs& a, const uint8_t* labels, int64_t classes, int64_t pixels)
      : label(pixels < Vec::lanes ? load_bytes(labels, pixels) : load_bytes(labels)) {
    for (int64_t k = 0; k < classes; ++k) weight = select(is(k), Vec::all(float(a.weights[k])), weight);
    if (a.ignore >= 0 && a.ignore < 256) weight = select(is(a.ignore), Vec::all(0.0f), weight);
  }
  Mask is(int64_t k) const { return equal(label, Ints::all(static_cast<int>(k))); }
  /// `value`, or 0 where the weight is 0: NaN of an ignored pixel goes no further.
  Vec counted(Vec value) const { return select(equal(as_ints(abs(weight)), Ints::all(0)), Vec::all(0.0f), value); }
};

inline double pixel_share(const Problem& p) {
  return p.op.as<PixelLossAttrs>().reduction == Reduction::mean ? 1.0 / double(p.in[0].shape.rows()) : 1.0;
}

/// Of the focal loss: base to the power of gamma, where that is a whole number by multiplication.
inline Vec power(Vec base, double gamma) {
  constexpr double most_products = 16;
  if (gamma == std::floor(gamma) && gamma <= most_products) {
    Vec result = Vec::all(1.0f);
    for (int i = 0; i < int(gamma); ++i) result = result * base;
    return result;
  }
  float lanes[Vec::lanes];
  store(lanes, base);
  for (float& value : lanes) value = float(std::pow(double(value), gamma));
  return load(lanes);
}

/// What a softmax says of the label's class. Probabilities of the other classes are added up: one less the label's own
/// would lose its digits where that is close to one.
struct LabelClass {
  Vec loss, probability, rest;
  LabelClass(const PixelVector& v, const PixelLabels& l, int64_t classes) {
    // log of the sum less the logit; the logit itself is exact where its exponential underflows
    Vec logit = v.largest, own = v.value[0], others = Vec::all(0.0f);
    for (int64_t k = 0; k < classes; ++k) {
      logit = select(l.is(k), load(v.logit[k]), logit);
      own = select(l.is(k), v.value[k], own);
      others = others + select(l.is(k), Vec::all(0.0f), v.value[k]);
    }
    loss = (v.largest - logit) + log_one_to_sixteen(v.sum);
    probability = own / v.sum, rest = others / v.sum;
  }
};

/// Weighted losses of a vector of pixels.
inline Vec pixel_losses(const PixelLossAttrs& a, const float* logits, const uint8_t* labels, int64_t classes,
                        int64_t pixels) {
  const PixelVector v(logits, classes, pixels);
  const PixelLabels l(a, labels, classes, pixels);
  const LabelClass own(v, l, classes);
  Vec loss = own.loss;
  if (a.loss == PixelLoss::focal) loss = loss * power(own.rest, a.gamma);
  loss = l.counted(l.weight * loss);
  if (pixels == Vec::lanes) return loss;
  float lanes[Vec::lanes];
  store(lanes, loss);
  std::fill(lanes + pixels, lanes + Vec::lanes, 0.0f);
  return load(lanes);
}

std::unique_ptr<Prepared> prepare_pixel_loss(const Problem& p) {
  const int64_t pixels = p.in[0].shape.rows(), classes = p.in[0].shape.c(), blocks = ceil_div(pixels, pixel_block);
  return prepared(
      [=](const KernelArgs& args) {
        const auto& a = p.op.as<PixelLossAttrs>();
        const float* logits = args.in[0].data<float>();
        const uint8_t* labels = args.in[1].data<uint8_t>();
        double* partial = reinterpret_cast<double*>(args.workspace);
        parallel_ranges(blocks, p.threads, 1, [&](Range mine) {
          for (int64_t b = mine.begin; b < mine.end; ++b) {
            partial[b] = 0;
            const int64_t end = std::min(pixels, (b + 1) * pixel_block);
            for (int64_t begin = b * pixel_block; begin < end; begin += pixel_run) {
              Vec total = Vec::all(0.0f);
              for (int64_t i = begin; i < std::min(end, begin + pixel_run); i += Vec::lanes)
                total = total + pixel_losses(a, logits + i * classes, labels + i, classes,
                                             std::min<int64_t>(Vec::lanes, end - i));
              partial[b] += double(sum(total));
            }
          }
        });
        double total = 0;
        for (int64_t b = 0; b < blocks; ++b) total += partial[b];
        args.out[0].data<float>()[0] = float(total * pixel_share(p));
      },
      blocks * int64_t(sizeof(double)));
}

/// Of the focal loss: its derivative by the log of the label's probability, over that of the plain one.
inline Vec focal_factor(double gamma, const PixelVector& v, const PixelLabels& l, int64_t classes) {
  if (gamma == 0) return Vec::all(1.0f);
  const LabelClass own(v, l, classes);
  const Vec slope = Vec::all(float(gamma)) * power(own.rest, gamma - 1) * own.probability * own.loss;
  // Where nothing is left to other classes, a power below one of that is infinite, and the loss zero.
  return power(own.rest, gamma) + select(greater(own.rest, Vec::all(0.0f)), slope, Vec::all(0.0f));
}

std::unique_ptr<Prepared> prepare_pixel_loss_backward(const Problem& p) {
  const int64_t pixels = p.in[0].shape.rows(), classes = p.in[0].shape.c();
  return prepared([=](const KernelArgs& args) {
    const auto& a = p.op.as<PixelLossAttrs>();
    const Vec scale = Vec::all(float(args.in[2].data<double>()[int(ScaleField::scale)] * pixel_share(p)));
    const float* logits = args.in[0].data<float>();
    const uint8_t* labels = args.in[1].data<uint8_t>();
    float* gradient = args.out[0].data<float>();
    parallel_ranges(pixels, p.threads, 4096, [&](Range mine) {
      for (int64_t i = mine.begin; i < mine.end; i += Vec::lanes) {
        const int64_t count = std::min<int64_t>(Vec::lanes, mine.end - i);
        const PixelVector v(logits + i * classes, classes, count);
        const PixelLabels l(a, labels + i, classes, count);
        Vec factor = scale * l.weight;
        if (a.loss == PixelLoss::focal) factor = factor * focal_factor(a.gamma, v, l, classes);
        const Vec inverse = Vec::all(1.0f) / v.sum;
        alignas(64) float turned[most_classes][Vec::lanes];
        for (int64_t k = 0; k < classes; ++k) {
          const Vec hit = select(l.is(k), Vec::all(1.0f), Vec::all(0.0f));
          store(turned[k], l.counted(factor * (v.value[k] * inverse - hit)));
        }
        float* to = gradient + i * classes;
        for_pixel_classes(count, classes, [&](int64_t at, int64_t k, int64_t j) { to[at] = turned[k][j]; });
      }
    });
  });
}

/// A vector of pixels at a time, class by class; the first of equals wins, and a NaN wins over nothing.
std::unique_ptr<Prepared> prepare_arg_max(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const int64_t classes = p.in[0].shape.c(), px = p.in[0].pixel_pitch(), py = p.out[0].pixel_pitch();
    by_storage(p.in[0].dtype, [&](auto zero) {
      const auto* x = args.in[0].data<decltype(zero)>();
      uint8_t* y = args.out[0].data<uint8_t>();
      parallel_ranges(p.in[0].shape.rows(), p.threads, 4096, [&](Range mine) {
        for (int64_t i = mine.begin; i < mine.end; i += Vec::lanes) {
          const int64_t pixels = std::min<int64_t>(Vec::lanes, mine.end - i);
          const auto* from = x + i * px;
          alignas(64) float turned[Vec::lanes] = {};
          Vec best = Vec::all(0.0f);
          Ints winner = Ints::all(0);
          for (int64_t k = 0; k < classes; ++k) {
            for (int64_t j = 0; j < pixels; ++j) turned[j] = float(from[j * px + k]);
            const Vec value = load(turned);
            const Mask wins = greater(value, best);
            best = k == 0 ? value : select(wins, value, best);
            winner = k == 0 ? winner : select(wins, Ints::all(int(k)), winner);
          }
          uint8_t found[Vec::lanes];
          store_bytes(found, winner);
          for (int64_t j = 0; j < pixels; ++j) y[(i + j) * py] = found[j];
        }
      });
    });
  });
}
