// Softmax cross-entropy per pixel, a vector of pixels at a time: the classes of a pixel lie side by side, so that they
// are turned on the way in and out.

constexpr int64_t most_classes = 16;
constexpr int64_t pixel_block = 4096;  // pixels per partial sum

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

/// Exponentials of the classes of up to a vector of pixels and what goes with them.
struct PixelVector {
  float value[most_classes][Vec::lanes] = {};  // exp(logit - largest)
  float largest[Vec::lanes], sum[Vec::lanes];

  PixelVector(const float* logits, int64_t classes, int64_t pixels) {
    for (int64_t i = 0; i < pixels; ++i)
      for (int64_t k = 0; k < classes; ++k) value[k][i] = logits[i * classes + k];
    Vec top = load(value[0]);
    for (int64_t k = 1; k < classes; ++k) top = max(top, load(value[k]));
    Vec total = Vec::all(0.0f);
    for (int64_t k = 0; k < classes; ++k) {
      const Vec z = load(value[k]) - top, e = select(is_nan(z), z, exp_negative(z));
      store(value[k], e);
      total = total + e;
    }
    store(largest, top);
    store(sum, total);
  }
};

/// Weight of a label: 0 where it is ignored, not a number where no class has it.
inline std::array<float, 256> label_weights(const PixelLossAttrs& a, int64_t classes) {
  std::array<float, 256> table;
  table.fill(NAN);
  for (int64_t k = 0; k < classes; ++k) table[size_t(k)] = float(a.weights[k]);
  if (a.ignore >= 0 && a.ignore < 256) table[size_t(a.ignore)] = 0;
  return table;
}

inline double pixel_share(const Problem& p) {
  return p.op.as<PixelLossAttrs>().reduction == Reduction::mean ? 1.0 / double(p.in[0].shape.rows()) : 1.0;
}

std::unique_ptr<Prepared> prepare_pixel_loss(const Problem& p) {
  const int64_t pixels = p.in[0].shape.rows(), classes = p.in[0].shape.c(), blocks = ceil_div(pixels, pixel_block);
  return prepared(
      [=, weights = label_weights(p.op.as<PixelLossAttrs>(), p.in[0].shape.c())](const KernelArgs& args) {
        const auto& a = p.op.as<PixelLossAttrs>();
        const float* logits = args.in[0].data<float>();
        const uint8_t* labels = args.in[1].data<uint8_t>();
        double* partial = reinterpret_cast<double*>(args.workspace);
        parallel_ranges(blocks, p.threads, 1, [&](Range mine) {
          for (int64_t b = mine.begin; b < mine.end; ++b) {
            double total = 0;
            const int64_t end = std::min(pixels, (b + 1) * pixel_block);
            for (int64_t i = b * pixel_block; i < end; i += Vec::lanes) {
              const int64_t count = std::min<int64_t>(Vec::lanes, end - i);
              const PixelVector v(logits + i * classes, classes, count);
              for (int64_t j = 0; j < count; ++j) {
                const uint8_t label = labels[i + j];
                const float weight = weights[label];
                if (weight == 0) continue;
                // log of the sum less the logit; the logit itself is exact where its exponential underflows
                const double loss = double(v.largest[j]) + std::log(double(v.sum[j])) -
                                    double(logits[(i + j) * classes + std::min<int64_t>(label, classes - 1)]);
                total +=
                    double(weight) * loss * (a.loss == PixelLoss::focal ? std::pow(-std::expm1(-loss), a.gamma) : 1.0);
              }
            }
            partial[b] = total;
          }
        });
        double total = 0;
        for (int64_t b = 0; b < blocks; ++b) total += partial[b];
        args.out[0].data<float>()[0] = float(total * pixel_share(p));
      },
      blocks * int64_t(sizeof(double)));
}

std::unique_ptr<Prepared> prepare_pixel_loss_backward(const Problem& p) {
  const int64_t pixels = p.in[0].shape.rows(), classes = p.in[0].shape.c();
  return prepared([=, weights = label_weights(p.op.as<PixelLossAttrs>(), p.in[0].shape.c())](const KernelArgs& args) {
    const auto& a = p.op.as<PixelLossAttrs>();
    const float scale = float(args.in[2].data<double>()[int(ScaleField::scale)] * pixel_share(p));
    const float* logits = args.in[0].data<float>();
    const uint8_t* labels = args.in[1].data<uint8_t>();
    float* gradient = args.out[0].data<float>();
    parallel_ranges(pixels, p.threads, 4096, [&](Range mine) {
      for (int64_t i = mine.begin; i < mine.end; i += Vec::lanes) {
        const int64_t count = std::min<int64_t>(Vec::lanes, mine.end - i);
        const PixelVector v(logits + i * classes, classes, count);
        for (int64_t j = 0; j < count; ++j) {
          float* to = gradient + (i + j) * classes;
          const uint8_t label = labels[i + j];
          if (weights[label] == 0) {
            std::fill(to, to + classes, 0.0f);
            continue;
          }
          float factor = scale * weights[label];
          if (a.loss == PixelLoss::focal) {
            const double own = double(v.value[std::min<int64_t>(label, classes - 1)][j]) / double(v.sum[j]),
                         rest = 1 - own;
            const double slope =
                a.gamma > 0 && own > 0 && rest > 0 ? a.gamma * std::pow(rest, a.gamma - 1) * own * std::log(own) : 0.0;
            factor *= float(std::pow(rest, a.gamma) - slope);
          }
          const float inverse = 1 / v.sum[j];
          for (int64_t k = 0; k < classes; ++k) to[k] = factor * (v.value[k][j] * inverse - float(k == label));
        }
      }
    });
  });
}

std::unique_ptr<Prepared> prepare_arg_max(const Problem& p) {
  return prepared([p](const KernelArgs& args) {
    const int64_t classes = p.in[0].shape.c(), pitch = p.in[0].pixel_pitch();
    by_storage(p.in[0].dtype, [&](auto zero) {
      const auto* x = args.in[0].data<decltype(zero)>();
      uint8_t* y = args.out[0].data<uint8_t>();
      parallel_ranges(p.in[0].shape.rows(), p.threads, 4096, [&](Range mine) {
        for (int64_t i = mine.begin; i < mine.end; ++i) {
          int64_t best = 0;
          for (int64_t k = 1; k < classes; ++k)
            if (float(x[i * pitch + k]) > float(x[i * pitch + best])) best = k;
          y[i] = uint8_t(best);
        }
      });
    });
  });
}
