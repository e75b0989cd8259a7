// A small plan run once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/executor.h"

namespace convoy::testing {

/// What a plan without states makes of an f32 input "x" that grows by a quarter from -20 on: the kept value of a name.
inline std::vector<float> kept_of_ramp(const Plan& plan, const std::string& kept) {
  StateStore store;
  Executor e(plan, store, std::make_shared<Buffer>(plan.arena_bytes, Buffer::Fill::zero));
  float value = -20;
  for (float& v : e.tensor("x").span<float>()) v = value, value += 0.25f;
  e.run();
  const auto span = e.tensor(kept).span<float>();
  return {span.begin(), span.end()};
}

}  // namespace convoy::testing
