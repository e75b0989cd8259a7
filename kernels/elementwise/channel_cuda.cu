// Ops along the channel axis on CUDA devices: sums over pixels, scale and shift per channel, and the copies that the
// slice pass left over. Bound by memory.
#include "kernels/device/channel_sums.h"
#include "kernels/function_kernel.h"

namespace convoy {
namespace channel_cuda {
namespace {

using namespace cuda;

template <class T, int width>
struct Dot {
  static constexpr int quantities = 1, values_of_channel = 0;
  Pixels<const T> a, b;
  struct Loaded {
    Pack<T, width> a, b;
  };
  __device__ Loaded load(int64_t pixel, int channel) const {
    return {a.template load<width>(pixel, channel), b.template load<width>(pixel, channel)};
  }
  __device__ void add(const OfChannels<0, width>&, const Loaded& v, float (&sums)[1][width]) const {
    for (int k = 0; k < width; ++k) sums[0][k] = fmaf(value_of(v.a, k), value_of(v.b, k), sums[0][k]);
  }
};

template <class T, int width>
struct Scale {
  static constexpr int values_of_channel = 2;
  Pixels<const T> x;
  Pixels<T> y;
  const float *scale, *shift;  ///< no shift: null
  __device__ void of_channel(int c, float (&v)[2]) const { v[0] = scale[c], v[1] = shift ? shift[c] : 0.0f; }
  __device__ Pack<T, width> load(int64_t pixel, int channel) const { return x.template load<width>(pixel, channel); }
  __device__ void finish(const OfChannels<2, width>& own, const Pack<T, width>& v, int64_t pixel, int channel) const {
    Pack<T, width> out;
    for (int k = 0; k < width; ++k) out.v[k] = from_float<T>(fmaf(value_of(v, k), own.v[0][k], own.v[1][k]));
    y.store(pixel, channel, out);
  }
};

/// Channels from `begin` on are those of `from`, zero where it has none.
template <class T, int width>
struct Copy {
  static constexpr int values_of_channel = 0;
  Pixels<const T> from;
  Pixels<T> to;
  int begin, channels;
  __device__ Pack<T, width> load(int64_t pixel, int channel) const {
    if (channel < begin || channel >= begin + channels) {
      Pack<T, width> zeros;
      for (int k = 0; k < width; ++k) zeros.v[k] = from_float<T>(0);
      return zeros;
    }
    return from.template load<width>(pixel, channel - begin);
  }
  __device__ void finish(const OfChannels<0, width>&, const Pack<T, width>& v, int64_t pixel, int channel) const {
    to.store(pixel, channel, v);
  }
};

void queue_copy(const Tensor& from, const Tensor& to, int64_t begin) {
  const Shape& s = to.shape();
  const Tensor inside = channels_of(to, begin, from.shape().c());
  dispatch(to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_width<T>({&from, &to, &inside}, [&](auto width) {
      queue_for_pixels<width>(s.rows(), s.c(),
                              Copy<T, width>{pixels<const T>(from), pixels<T>(to), int(begin), int(from.shape().c())});
    });
  });
}

std::unique_ptr<Prepared> prepare_sum(const Problem& p) {
  const Shape s = p.in[0].shape;
  return prepared([](const KernelArgs& a) { queue_channel_sum(a.in[0], a.workspace, data<float>(a.out[0])); },
                  channel_sum_bytes(s.rows(), s.c(), 1));
}

std::unique_ptr<Prepared> prepare_dot(const Problem& p) {
  const Shape s = p.in[0].shape;
  return prepared(
      [s](const KernelArgs& a) {
        dispatch(a.in[0].dtype(), [&](auto zero) {
          using T = decltype(zero);
          with_width<T>({&a.in[0], &a.in[1]}, [&](auto width) {
            queue_sums<width>(s.rows(), s.c(), Dot<T, width>{pixels<const T>(a.in[0]), pixels<const T>(a.in[1])},
                              Scaled<float>{1, data<float>(a.out[0]), int(s.c())}, a.workspace);
          });
        });
      },
      channel_sum_bytes(s.rows(), s.c(), 1));
}

std::unique_ptr<Prepared> prepare_scale(const Problem& p) {
  return prepared([s = p.in[0].shape](const KernelArgs& a) {
    dispatch(a.in[0].dtype(), [&](auto zero) {
      using T = decltype(zero);
      with_width<T>({&a.in[0], &a.out[0]}, [&](auto width) {
        queue_for_pixels<width>(
            s.rows(), s.c(),
            Scale<T, width>{pixels<const T>(a.in[0]), pixels<T>(a.out[0]), data<const float>(a.in[1]),
                            a.in.size() > 2 ? data<const float>(a.in[2]) : nullptr});
      });
    });
  });
}

std::unique_ptr<Prepared> prepare_concat(const Problem&) {
  return prepared([](const KernelArgs& a) {
    int64_t begin = 0;
    for (const Tensor& in : a.in) {
      queue_copy(in, channels_of(a.out[0], begin, in.shape().c()), 0);
      begin += in.shape().c();
    }
  });
}

std::unique_ptr<Prepared> prepare_slice(const Problem& p) {
  return prepared([attrs = p.op.as<SliceAttrs>()](const KernelArgs& a) {
    queue_copy(channels_of(a.in[0], attrs.begin, attrs.size), a.out[0], 0);
  });
}

std::unique_ptr<Prepared> prepare_pad(const Problem& p) {
  return prepared([begin = p.op.as<SliceAttrs>().begin](const KernelArgs& a) { queue_copy(a.in[0], a.out[0], begin); });
}

}  // namespace
}  // namespace channel_cuda

std::vector<KernelPtr> channel_cuda_kernels() {
  using namespace channel_cuda;
  std::vector<KernelPtr> list;
  list.push_back(kernel("cuda", OpKind::channel_sum, even_sums, prepare_sum));
  list.push_back(kernel("cuda", OpKind::channel_dot, even_sums, prepare_dot));
  list.push_back(kernel("cuda", OpKind::channel_scale, even_floats, prepare_scale));
  list.push_back(kernel("cuda", OpKind::concat, even_floats, prepare_concat));
  list.push_back(kernel("cuda", OpKind::slice, even_floats, prepare_slice));
  list.push_back(kernel("cuda", OpKind::pad_channels, even_floats, prepare_pad));
  return list;
}

}  // namespace convoy
