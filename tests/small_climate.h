// A DeepCAM for images of 32 x 48 that is planned and run in no time.
#pragma once

#include "models/program.h"

namespace convoy::testing {

inline ClimateOptions small_climate() {
  ClimateOptions o;
  o.model.width_divisor = 16;
  o.model.height = 32, o.model.width = 48;
  return o;
}

}  // namespace convoy::testing
