#include "core/all_finite.h"

#include <cmath>

namespace convoy {

bool all_finite(const Tensor& t) {
  if (!is_float(t.dtype())) return true;
  bool finite = true;
  for_each_index(t.shape(), [&](int64_t n, int64_t d, int64_t h, int64_t w, int64_t c) {
    finite = finite && std::isfinite(t.at(n, d, h, w, c));
  });
  return finite;
}

}  // namespace convoy
