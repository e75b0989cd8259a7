// Shapes, descriptors, buffers and tensors.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.h"

namespace convoy {

/// Logical extents, always five. Activations are N, D, H, W, C (an image has D = 1, a feature vector D = H = W = 1);
/// convolution weights are K, KD, KH, KW, C/groups; vectors and scalars put their length in C.
struct Shape {
  std::array<int64_t, 5> extent{1, 1, 1, 1, 1};

  Shape() = default;
  Shape(int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) : extent{n, d, h, w, c} {}
  static Shape vector(int64_t length) { return {1, 1, 1, 1, length}; }

  int64_t n() const { return extent[0]; }
  int64_t d() const { return extent[1]; }
  int64_t h() const { return extent[2]; }
  int64_t w() const { return extent[3]; }
  int64_t c() const { return extent[4]; }
  int64_t operator[](int axis) const { return extent[axis]; }
  int64_t& operator[](int axis) { return extent[axis]; }
  int64_t rows() const { return n() * d() * h() * w(); }
  int64_t elements() const { return rows() * c(); }
  bool operator==(const Shape&) const = default;
  std::string str() const;
};

/// Shape, element type and the strides (in elements) of N, D, H, W; C is contiguous. Dense unless the value is a
/// slice of a wider one.
struct TensorDesc {
  Shape shape;
  DType dtype = DType::f32;
  std::array<int64_t, 4> stride{1, 1, 1, 1};

  TensorDesc() = default;
  TensorDesc(const Shape& s, DType t) : shape(s), dtype(t), stride(dense_strides(s)) {}
  static std::array<int64_t, 4> dense_strides(const Shape& s);

  bool dense() const { return stride == dense_strides(shape); }
  int64_t offset(int64_t n, int64_t d, int64_t h, int64_t w) const {
    return n * stride[0] + d * stride[1] + h * stride[2] + w * stride[3];
  }
  /// Elements from one pixel to the next where all are evenly spaced (dense tensors, channel slices), else -1.
  int64_t pixel_pitch() const {
    const bool even =
        stride[2] == shape.w() * stride[3] && stride[1] == shape.h() * stride[2] && stride[0] == shape.d() * stride[1];
    return even ? stride[3] : -1;
  }
  /// Bytes of the elements themselves.
  int64_t bytes() const { return shape.elements() * size_of(dtype); }
  /// Bytes from the first to one past the last element, gaps included.
  int64_t span_bytes() const;
  bool operator==(const TensorDesc&) const = default;
  std::string str() const;
};

/// 64-byte aligned memory, shared by all tensors that point into it. Contents start undefined unless `zero`.
class Buffer {
 public:
  enum class Fill { none, zero };
  Buffer(int64_t bytes, Fill fill);
  /// Memory that `release` gives back.
  Buffer(std::byte* data, int64_t bytes, std::function<void()> release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  /// Of those who take turns with the memory, the one who writes from here on; null: nobody.
  void hold(const void* user) { holder_ = user; }
  bool held_by(const void* user) const { return holder_ == user; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  const void* holder_ = nullptr;
  std::function<void()> release_;  ///< empty: from the heap
};

/// A described piece of a buffer. Cheap to copy, never resizes.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const TensorDesc& desc, std::shared_ptr<Buffer> buffer, int64_t byte_offset = 0);
  /// A tensor over memory that somebody else keeps alive (tests, memory-mapped files).
  Tensor(const TensorDesc& desc, void* borrowed) : desc_(desc), data_(static_cast<std::byte*>(borrowed)) {}
  static Tensor zeros(const TensorDesc& desc);
  static Tensor zeros(const Shape& shape, DType dtype) { return zeros(TensorDesc(shape, dtype)); }

  const TensorDesc& desc() const { return desc_; }
  const Shape& shape() const { return desc_.shape; }
  DType dtype() const { return desc_.dtype; }
  bool empty() const { return data_ == nullptr; }
  std::byte* bytes() const { return data_; }

  /// Typed pointer to the first element; throws when T is not the element type.
  template <class T>
  T* data() const {
    if (dtype_of<T>() != desc_.dtype) fail_type(dtype_of<T>());
    return reinterpret_cast<T*>(data_);
  }
  /// All elements of a dense tensor.
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<size_t>(desc_.shape.elements())};
  }

  /// Element (n,d,h,w,c) widened to double, and the rounding store; slow, for tests and host-side bookkeeping.
  double at(int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) const;
  void set(int64_t n, int64_t d, int64_t h, int64_t w, int64_t c, double value) const;
  /// Copies all elements from a tensor of the same shape, converting the type.
  void copy_from(const Tensor& source) const;

 private:
  [[noreturn]] void fail_type(DType asked) const;
  TensorDesc desc_;
  std::shared_ptr<Buffer> buffer_;
  std::byte* data_ = nullptr;
};

/// Calls f(n, d, h, w, c) for every element in memory order.
template <class F>
void for_each_index(const Shape& s, F&& f) {
  for (int64_t n = 0; n < s.n(); ++n)
    for (int64_t d = 0; d < s.d(); ++d)
      for (int64_t h = 0; h < s.h(); ++h)
        for (int64_t w = 0; w < s.w(); ++w)
          for (int64_t c = 0; c < s.c(); ++c) f(n, d, h, w, c);
}

}  // namespace convoy
