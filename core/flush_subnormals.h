// Subnormal numbers out of the way of arithmetic.
#pragma once

#include "core/parallel.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace convoy {

/// While it lives, f32 and f64 arithmetic of the calling thread and, above 1, of its team of `threads` (oneDNN's, too;
/// not of other threads, which make their own) reads subnormal numbers as zero and writes zero for them; bf16
/// instructions always do, f16 ones never. An operation that meets one takes some hundred cycles otherwise, and
/// gradients behind a softmax that is sure of itself are full of them: the weight gradient of the layer before the
/// logits took twice its time.
class FlushSubnormals {
 public:
  explicit FlushSubnormals([[maybe_unused]] int threads) {
#ifdef __SSE__
    threads_ = threads, before_ = _mm_getcsr() & both;
    set(both);
#endif
  }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
#ifdef __SSE__
  ~FlushSubnormals() {
    set(before_);
  }

 private:
  static constexpr unsigned both = 0x8040;  // of MXCSR: flush to zero, denormals are zero
  void set(unsigned bits) const {
    parallel_threads(threads_, [bits](int) { _mm_setcsr((_mm_getcsr() & ~both) | bits); });
  }
  int threads_;
  unsigned before_;
#endif
};

}  // namespace convoy
