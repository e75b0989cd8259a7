// Bilinear resizing on CUDA devices, a pixel and 16 bytes of its channels to a thread. Gradients are gathered: a thread
// adds up what outputs took from its input, in the same order in every run.
#include "kernels/device/channel_sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace resize_cuda {
namespace {

using namespace cuda;

constexpr int threads = 256;

/// The two input positions of one output position, and the share of the second.
struct Blend {
  int low, high;
  float share;
};

/// One axis: outputs read inputs at step*i + shift, clamped.
struct Axis {
  int inputs, outputs;
  double step, shift;
  Axis(Corners corners, int64_t in, int64_t out) : inputs(int(in)), outputs(int(out)), step(0), shift(0) {
    const double ratio = double(in) / double(out);
    if (corners == Corners::half_pixel) step = ratio, shift = 0.5 * ratio - 0.5;
    if (corners == Corners::asymmetric) step = ratio;
    if (corners == Corners::aligned && out > 1) step = double(in - 1) / double(out - 1);
  }
  __device__ Blend blend(int out) const {
    const double at = fmin(fmax(fma(double(out), step, shift), 0.0), double(inputs - 1));
    const int low = int(at);
    return {low, min(low + 1, inputs - 1), float(at - low)};
  }
  /// Outputs that may read input `in`: first and one past the last.
  __device__ int first_reader(int in) const {
    if (in == 0 || step == 0) return 0;
    return max(0, int((in - 1 - shift) / step) - 1);
  }
  __device__ int end_of_readers(int in) const {
    if (in == inputs - 1 || step == 0) return outputs;
    return min(outputs, int((in + 1 - shift) / step) + 2);
  }
  /// How much of input `in` output `out` takes.
  __device__ float weight(int out, int in) const {
    const Blend b = blend(out);
    return (b.low == in ? 1 - b.share : 0.0f) + (b.high == in ? b.share : 0.0f);
  }
};

/// Where pack i of a tensor of images lies.
struct Place {
  int channel, h, w;
  int64_t image;
  __device__ Place(int64_t i, int packs, int width, int height, int columns) {
    channel = int(i % packs) * width, i /= packs;
    w = int(i % columns), i /= columns;
    h = int(i % height), image = i / height;
  }
};

template <int width, class T>
__global__ void resize(int64_t count, int packs, Axis rows, Axis columns, Pixels<const T> x, Pixels<T> y) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) {
    const Place p(i, packs, width, rows.outputs, columns.outputs);
    const Blend h = rows.blend(p.h), w = columns.blend(p.w);
    const int64_t image = p.image * rows.inputs;
    const auto load = [&](int row, int column) {
      return x.template load<width>((image + row) * columns.inputs + column, p.channel);
    };
    const auto a = load(h.low, w.low), b = load(h.low, w.high), c = load(h.high, w.low), d = load(h.high, w.high);
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) {
      const float above = (1 - w.share) * to_float(a.v[k]) + w.share * to_float(b.v[k]),
                  below = (1 - w.share) * to_float(c.v[k]) + w.share * to_float(d.v[k]);
      out.v[k] = from_float<T>((1 - h.share) * above + h.share * below);
    }
    y.store((p.image * rows.outputs + p.h) * columns.outputs + p.w, p.channel, out);
  }
}

template <int width, class T>
__global__ void resize_backward(int64_t count, int packs, Axis rows, Axis columns, Pixels<const T> dy, Pixels<T> dx) {
  for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < count; i += int64_t(gridDim.x) * threads) {
    const Place p(i, packs, width, rows.inputs, columns.inputs);
    const int left = columns.first_reader(p.w), right = columns.end_of_readers(p.w);
    float sum[width] = {};
    for (int h = rows.first_reader(p.h); h < rows.end_of_readers(p.h); ++h) {
      const float of_row = rows.weight(h, p.h);
      if (of_row == 0) continue;
      for (int w = left; w < right; ++w) {
        const float weight = of_row * columns.weight(w, p.w);
        if (weight == 0) continue;
        const auto v = dy.template load<width>((p.image * rows.outputs + h) * columns.outputs + w, p.channel);
        for (int k = 0; k < width; ++k) sum[k] = fmaf(weight, to_float(v.v[k]), sum[k]);
      }
    }
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(sum[k]);
    dx.store((p.image * rows.inputs + p.h) * columns.inputs + p.w, p.channel, out);
  }
}

/// Gradient of an image of one pixel, which every output is: sums over each image.
std::unique_ptr<Prepared> prepare_sums(const Problem& p) {
  const Shape y = p.in[0].shape;
  const int64_t each = y.h() * y.w();
  return prepared(
      [each](const KernelArgs& a) {
        dispatch(a.out[0].dtype(), [&](auto zero) {
          const Pixels<decltype(zero)> dx = pixels<decltype(zero)>(a.out[0]);
          queue_sums_of_images(a.in[0], each, 1, a.workspace, dx.data, dx.pitch);
        });
      },
      channel_sum_bytes(each, y.c(), 1));
}

std::unique_ptr<Prepared> prepare(const Problem& p) {
  const bool backward = p.op.kind == OpKind::resize_backward;
  if (backward && p.out[0].shape.h() * p.out[0].shape.w() == 1) return prepare_sums(p);
  const Shape &small = backward ? p.out[0].shape : p.in[0].shape, &large = backward ? p.in[0].shape : p.out[0].shape;
  const Corners corners = p.op.as<ResizeAttrs>().corners;
  const Axis rows(corners, small.h(), large.h()), columns(corners, small.w(), large.w());
  return prepared([p, backward, rows, columns](const KernelArgs& a) {
    dispatch(p.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      with_width<T>({&a.in[0], &a.out[0]}, [&](auto width) {
        const int64_t count = p.out[0].shape.elements() / width;
        const int packs = int(p.out[0].shape.c() / width);
        const Pixels<const T> from = pixels<const T>(a.in[0]);
        const Pixels<T> to = pixels<T>(a.out[0]);
        if (backward)
          resize_backward<width>
              <<<grid_for(count, threads), threads, 0, stream()>>>(count, packs, rows, columns, from, to);
        else
          resize<width><<<grid_for(count, threads), threads, 0, stream()>>>(count, packs, rows, columns, from, to);
      });
    });
    check_launch("resize");
  });
}

Support supports(const Problem& p) {
  for (const TensorDesc& desc : {p.in[0], p.out[0]})
    if (std::max(desc.shape.h(), desc.shape.w()) > 1 << 24) return Support::no("more than 2^24 rows or columns");
  return p.op.kind == OpKind::resize_backward ? even_sums(p) : even_floats(p);
}

}  // namespace
}  // namespace resize_cuda

std::vector<KernelPtr> resize_cuda_kernels() {
  using namespace resize_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::resize, supports, prepare));
  list.push_back(kernel("cuda", OpKind::resize_backward, supports, prepare));
  return list;
}

}  // namespace convoy
