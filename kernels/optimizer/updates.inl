// Updates of parameters, as sweeps: a step goes over all of them in one parallel region per round. Norms are summed in
// blocks of Sweep::grain elements, one partial sum each, which every reader adds up in their order.

Support supports_update(const Problem& p) {
  return p.in[0].dtype == DType::f32 ? needs_dense(p) : Support::no("keeps f32 state, found " + p.in[0].str());
}

/// Calls f(number, elements) for every block of a part; parts begin with a block.
template <class F>
void for_blocks(Range part, F&& f) {
  for (int64_t begin = part.begin; begin < part.end; begin += Sweep::grain)
    f(begin / Sweep::grain, Range{begin, std::min(part.end, begin + Sweep::grain)});
}

/// The sum of the squares of f's values in 16 sums side by side, whatever a vector's length: ranks on different CPUs
/// must come to the same bits, or their weights drift apart.
template <class F>
double block_sum(Range block, F&& f) {
  constexpr int64_t lanes = Vec::lanes, vectors = 16 / lanes;
  Vec total[vectors];
  for (Vec& t : total) t = Vec::all(0.0f);
  const auto add = [&](Vec& to, Vec value) { to = fma(value, value, to); };
  int64_t i = block.begin;
  for (; i + 16 <= block.end; i += 16)
#pragma GCC unroll 2
    for (int64_t k = 0; k < vectors; ++k) add(total[k], f(i + k * lanes, std::integral_constant<int64_t, 0>{}));
#pragma GCC unroll 2
  for (int64_t k = 0; k < vectors; ++k, i += lanes) {
    if (i + lanes <= block.end)
      add(total[k], f(i, std::integral_constant<int64_t, 0>{}));
    else if (i < block.end)
      add(total[k], f(i, block.end - i));
  }
  for (int64_t k = 1; k < vectors; ++k) total[0] = total[0] + total[k];
  return double(sum(total[0]));
}

inline double square_sum(const float* x, Range block) {
  return block_sum(block, [&](int64_t i, auto n) { return get(x + i, n); });
}

inline double total_of(const double* partial, int64_t count) {
  double total = 0;
  for (int64_t k = 0; k < count; ++k) total += partial[k];
  return total;
}

/// A Sweep from what an optimizer does in each round. Nothing happens where a gradient was not finite.
template <class Optimizer>
class SweptUpdate final : public Sweep {
 public:
  explicit SweptUpdate(const Problem& p) : Sweep(p.threads), optimizer_(p), count_(p.in[0].shape.elements()) {}
  int rounds() const override { return optimizer_.rounds(); }
  int64_t elements() const override { return count_; }
  int64_t workspace_bytes() const override { return optimizer_.sums() * blocks(count_) * int64_t(sizeof(double)); }
  void run_part(int round, Range part, const KernelArgs& args) const override {
    if (args.in[3].template data<float>()[0] != 0) optimizer_.run(round, part, blocks(count_), args);
  }

 private:
  Optimizer optimizer_;
  int64_t count_;
};

/// With LARC a first round sums the squares of parameter and gradient; what the (unscaled) gradient is multiplied by
/// follows from them.
template <class A>
struct Larc {
  const A a;
  bool on() const { return a.larc != 0; }
  int rounds() const { return on() ? 2 : 1; }
  int64_t sums() const { return on() ? 2 : 0; }
  void add_up(Range part, int64_t blocks, const KernelArgs& args) const {
    double* partial = reinterpret_cast<double*>(args.workspace);
    for_blocks(part, [&](int64_t k, Range block) {
      partial[k] = square_sum(args.out[0].data<float>(), block);
      partial[blocks + k] = square_sum(args.in[0].data<float>(), block);
    });
  }
  double factor(int64_t blocks, const KernelArgs& args) const {
    const double rate = args.in[1].data<double>()[int(StepField::learning_rate)],
                 scale = args.in[2].data<double>()[int(ScaleField::scale)];
    if (!on() || rate == 0) return 1;
    const double* partial = reinterpret_cast<const double*>(args.workspace);
    const double weights = std::sqrt(total_of(partial, blocks)),
                 gradient = std::sqrt(total_of(partial + blocks, blocks)) / scale;
    const double local = weights > 0 && gradient > 0 ? a.larc * weights / gradient : a.larc_epsilon;
    return std::min(1.0, local / rate);
  }
};

/// Gradient and states are read once and written once.
struct Sgd : Larc<SgdAttrs> {
  explicit Sgd(const Problem& p) : Larc{p.op.as<SgdAttrs>()} {}
  void run(int round, Range part, int64_t blocks, const KernelArgs& args) const {
    if (round + 1 < rounds()) return add_up(part, blocks, args);
    const Vec rate = Vec::all(float(factor(blocks, args) * args.in[1].data<double>()[int(StepField::learning_rate)] /
                                    args.in[2].data<double>()[int(ScaleField::scale)]));
    const Vec momentum = Vec::all(float(a.momentum));
    const float* g = args.in[0].data<float>();
    float *w = args.out[0].data<float>(), *v = args.out[1].data<float>();
    for_vectors(part.begin, part.end, [&](int64_t i, auto n) {
      const Vec step = rate * get(g + i, n);
      const Vec velocity = momentum * get(v + i, n) - step;
      put(v + i, velocity, n);
      put(w + i, get(w + i, n) + velocity, n);
    });
  }
};

/// The constants of Adam's direction m/c1 / (sqrt(v/c2) + epsilon), and one step of its moments.
struct AdamDirection {
  Vec factor, b1, b2, d1, d2, first, second, epsilon;
  template <class A>
  AdamDirection(const A& a, const KernelArgs& args, double gradient_factor) {
    const double* scale = args.in[2].data<double>();
    const double t = scale[int(ScaleField::applied)] + 1;
    factor = Vec::all(float(gradient_factor / scale[int(ScaleField::scale)]));
    b1 = Vec::all(float(a.beta1)), b2 = Vec::all(float(a.beta2)), d1 = Vec::all(float(1 - a.beta1)),
    d2 = Vec::all(float(1 - a.beta2));
    first = Vec::all(float(1 / (1 - std::pow(a.beta1, t)))),
    second = Vec::all(float(1 / std::sqrt(1 - std::pow(a.beta2, t)))), epsilon = Vec::all(float(a.epsilon));
  }
  template <class N>
  Vec advance(Vec gradient, float* m, float* v, N n) const {
    const Vec mean = fma(b1, get(m, n), d1 * gradient), square = fma(b2, get(v, n), d2 * gradient * gradient);
    put(m, mean, n);
    put(v, square, n);
    return direction(mean, square);
  }
  Vec direction(Vec mean, Vec square) const { return first * mean / (sqrt(square) * second + epsilon); }
};

struct Adam : Larc<AdamAttrs> {
  explicit Adam(const Problem& p) : Larc{p.op.as<AdamAttrs>()} {}
  void run(int round, Range part, int64_t blocks, const KernelArgs& args) const {
    if (round + 1 < rounds()) return add_up(part, blocks, args);
    const AdamDirection adam(a, args, factor(blocks, args));
    const Vec rate = Vec::all(float(-args.in[1].data<double>()[int(StepField::learning_rate)])),
              decay = Vec::all(float(a.weight_decay)), l2 = Vec::all(float(a.l2));
    const float* g = args.in[0].data<float>();
    float *w = args.out[0].data<float>(), *m = args.out[1].data<float>(), *v = args.out[2].data<float>();
    for_vectors(part.begin, part.end, [&](int64_t i, auto n) {
      const Vec weight = get(w + i, n), gradient = fma(l2, weight, adam.factor * get(g + i, n));
      // 1 - lr * weight_decay as a factor would round to 1 where decay is small.
      put(w + i, fma(rate, fma(decay, weight, adam.advance(gradient, m + i, v + i, n)), weight), n);
    });
  }
};

/// Moments and both norms, then the step along a direction formed again from the new moments.
struct Lamb {
  const LambAttrs a;
  explicit Lamb(const Problem& p) : a(p.op.as<LambAttrs>()) {}
  int rounds() const { return 2; }
  int64_t sums() const { return 2; }
  void run(int round, Range part, int64_t blocks, const KernelArgs& args) const {
    const double all = args.in[4].data<double>()[0];
    const AdamDirection adam(a, args, a.max_grad_norm > 0 ? std::min(1.0, a.max_grad_norm / all) : 1.0);
    const Vec decay = Vec::all(float(a.weight_decay));
    const float* g = args.in[0].data<float>();
    float *w = args.out[0].data<float>(), *m = args.out[1].data<float>(), *v = args.out[2].data<float>();
    double* partial = reinterpret_cast<double*>(args.workspace);
    if (round == 0) {
      for_blocks(part, [&](int64_t k, Range block) {
        partial[k] = square_sum(w, block);
        partial[blocks + k] = block_sum(block, [&](int64_t i, auto n) {
          return fma(decay, get(w + i, n), adam.advance(adam.factor * get(g + i, n), m + i, v + i, n));
        });
      });
      return;
    }
    const double weights = total_of(partial, blocks), updates = total_of(partial + blocks, blocks);
    const double ratio = weights > 0 && updates > 0 ? std::sqrt(weights / updates) : 1.0;
    const Vec rate = Vec::all(float(-ratio * args.in[1].data<double>()[int(StepField::learning_rate)]));
    for_vectors(part.begin, part.end, [&](int64_t i, auto n) {
      const Vec weight = get(w + i, n), u = fma(decay, weight, adam.direction(get(m + i, n), get(v + i, n)));
      put(w + i, fma(rate, u, weight), n);
    });
  }
};

template <class Optimizer>
std::unique_ptr<Prepared> prepare_update(const Problem& p) {
  return std::make_unique<SweptUpdate<Optimizer>>(p);
}

std::unique_ptr<Prepared> prepare_gradient_norm(const Problem& p) {
  const std::vector<int64_t> elements = elements_of(std::span(p.in).first(p.in.size() - 1));
  std::vector<int64_t> first(elements.size() + 1);  // block of each gradient
  for (size_t k = 0; k < elements.size(); ++k) first[k + 1] = first[k] + Sweep::blocks(elements[k]);
  return prepared(
      [p, elements, first](const KernelArgs& args) {
        double* partial = reinterpret_cast<double*>(args.workspace);
        parallel_parts(elements, p.threads, Sweep::grain, [&](size_t k, Range part) {
          for_blocks(part, [&](int64_t block, Range r) {
            partial[first[k] + block] = square_sum(args.in[k].data<float>(), r);
          });
        });
        double total = 0;
        for (size_t k = 0; k < elements.size(); ++k) total += total_of(partial + first[k], first[k + 1] - first[k]);
        args.out[0].data<double>()[0] = std::sqrt(total) / args.in.back().data<double>()[int(ScaleField::scale)];
      },
      first.back() * int64_t(sizeof(double)));
}

/// Gradients of several passes, added up.
class SweptAccumulation final : public Sweep {
 public:
  explicit SweptAccumulation(const Problem& p) : Sweep(p.threads), count_(p.in[0].shape.elements()) {}
  int rounds() const override { return 1; }
  int64_t elements() const override { return count_; }
  void run_part(int, Range part, const KernelArgs& args) const override {
    const bool first = args.in[1].data<double>()[int(StepField::micro_step)] == 0;
    const float* g = args.in[0].data<float>();
    float* sum = args.out[0].data<float>();
    for_vectors(part.begin, part.end,
                [&](int64_t i, auto n) { put(sum + i, first ? get(g + i, n) : get(sum + i, n) + get(g + i, n), n); });
  }

 private:
  int64_t count_;
};

std::unique_ptr<Prepared> prepare_accumulate(const Problem& p) {
  return std::make_unique<SweptAccumulation>(p);
}
