#include "core/tensor.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/parallel.h"
#include "core/round_up.h"

namespace convoy {

std::string Shape::str() const {
  std::string text;
  for (int axis = 0; axis < 5; ++axis) text.append(axis ? "x" : "").append(std::to_string(extent[axis]));
  return text;
}

std::array<int64_t, 4> TensorDesc::dense_strides(const Shape& s) {
  const int64_t w = s.c(), h = w * s.w(), d = h * s.h(), n = d * s.d();
  return {n, d, h, w};
}

int64_t TensorDesc::span_bytes() const {
  if (shape.elements() == 0) return 0;
  return (offset(shape.n() - 1, shape.d() - 1, shape.h() - 1, shape.w() - 1) + shape.c()) * size_of(dtype);
}

std::string TensorDesc::str() const {
  std::string text = std::string(name_of(dtype)) + ":" + shape.str();
  if (!dense())
    for (int axis = 0; axis < 4; ++axis) text.append(axis ? "," : "@").append(std::to_string(stride[axis]));
  return text;
}

Buffer::Buffer(int64_t bytes, Fill fill) : bytes_(bytes) {
  // Arenas ask for huge pages: kernels walk many rows at once, more than a TLB of small pages covers.
  constexpr size_t huge_page = size_t{2} << 20;
  const bool large = static_cast<size_t>(bytes) >= 8 * huge_page;
  const size_t alignment = large ? huge_page : 64;
  const auto rounded = static_cast<size_t>(round_up(std::max<int64_t>(1, bytes), static_cast<int64_t>(alignment)));
  data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
  if (!data_) fail_runtime("out of memory: cannot allocate " + std::to_string(bytes >> 20) + " MiB");
#ifdef __linux__
  if (large) madvise(data_, rounded, MADV_HUGEPAGE);  // a refusal costs speed only
#endif
  if (fill != Fill::zero) return;
  // Pages of large buffers come to the memory next to the threads that will work on them.
  parallel_ranges(static_cast<int64_t>(rounded), large ? default_threads() : 1, 4096,
                  [this](Range r) { std::memset(data_ + r.begin, 0, static_cast<size_t>(r.size())); });
}

Buffer::~Buffer() {
  if (release_)
    release_();
  else
    std::free(data_);
}

Tensor::Tensor(const TensorDesc& desc, std::shared_ptr<Buffer> buffer, int64_t byte_offset)
    : desc_(desc), buffer_(std::move(buffer)) {
  if (byte_offset < 0 || byte_offset + desc.span_bytes() > buffer_->bytes())
    fail_runtime("tensor " + desc.str() + " at byte " + std::to_string(byte_offset) + " exceeds its buffer of " +
                 std::to_string(buffer_->bytes()) + " bytes");
  data_ = buffer_->data() + byte_offset;
}

Tensor Tensor::zeros(const TensorDesc& desc) {
  return Tensor(desc, std::make_shared<Buffer>(desc.span_bytes(), Buffer::Fill::zero));
}

double Tensor::at(int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) const {
  return dispatch_dtype(desc_.dtype, [&](auto zero) {
    return to_double(reinterpret_cast<const decltype(zero)*>(data_)[desc_.offset(n, d, h, w) + c]);
  });
}

void Tensor::set(int64_t n, int64_t d, int64_t h, int64_t w, int64_t c, double value) const {
  dispatch_dtype(desc_.dtype, [&](auto zero) {
    using T = decltype(zero);
    reinterpret_cast<T*>(data_)[desc_.offset(n, d, h, w) + c] = from_double<T>(value);
  });
}

void Tensor::copy_from(const Tensor& source) const {
  if (!(source.shape() == shape()))
    fail_usage("cannot copy a tensor of shape " + source.shape().str() + " into one of shape " + shape().str());
  if (source.dtype() == dtype() && source.desc().dense() && desc_.dense()) {
    std::memcpy(data_, source.bytes(), static_cast<size_t>(desc_.bytes()));
    return;
  }
  for_each_index(shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    set(n, d, h, w, c, source.at(n, d, h, w, c));
  });
}

void Tensor::fail_type(DType asked) const {
  fail_runtime("tensor " + desc_.str() + " read as " + std::string(name_of(asked)));
}

}  // namespace convoy
