// A CosmoFlow that is planned and run in no time.
#pragma once

#include "models/program.h"

namespace convoy::testing {

inline CosmoflowOptions small_cosmoflow() {
  CosmoflowOptions o;
  o.model.size = 16;
  o.model.conv_size = 16;
  o.batch = 2;
  o.plan.threads = 2;
  return o;
}

}  // namespace convoy::testing
