#include "core/state_store.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "core/normal.h"
#include "core/parallel.h"

namespace convoy {
namespace {

void fill(const Tensor& tensor, const StateInit& init, const PhiloxStream& random) {
  if (init.kind == StateInit::Kind::zero) return;
  if (init.kind == StateInit::Kind::first) return tensor.set(0, 0, 0, 0, 0, init.value);
  // Glorot & Bengio 2010 eq. 16; He et al. 2015 eq. 10.
  const double limit = std::sqrt(6.0 / double(init.fan_in + init.fan_out));
  const double deviation = std::sqrt(2.0 / double(init.fan_in));
  // An element's value depends on its index alone: the same bits come from any number of threads.
  dispatch_dtype(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<T> values = tensor.span<T>();
    parallel_ranges(static_cast<int64_t>(values.size()), default_threads(), 4096, [&](Range range) {
      double drawn[256];
      for (int64_t first = range.begin; first < range.end; first += std::ssize(drawn)) {
        const std::span<T> part = values.subspan(
            static_cast<size_t>(first), static_cast<size_t>(std::min<int64_t>(std::ssize(drawn), range.end - first)));
        if (init.kind == StateInit::Kind::he_normal)
          fill_normal(random, static_cast<uint64_t>(first), std::span(drawn, part.size()));
        for (size_t i = 0; i < part.size(); ++i) {
          double value = init.value;
          if (init.kind == StateInit::Kind::glorot_uniform)
            value = (2.0 * random.uniform(static_cast<uint64_t>(first) + i) - 1.0) * limit;
          if (init.kind == StateInit::Kind::he_normal) value = drawn[i] * deviation;
          part[i] = from_double<T>(value);
        }
      }
    });
  });
}

}  // namespace

void StateStore::place(const std::string& name, const Tensor& tensor, bool fills) {
  places_[name] = {tensor, fills};
}

bool StateStore::fills(const std::string& name) const {
  const auto place = places_.find(name);
  return place == places_.end() || place->second.fills;
}

void StateStore::initialise(const Tape& tape, uint64_t seed) {
  for (const StateSpec& spec : tape.states()) {
    const Value& value = tape.value(spec.value);
    if (contains(value.name)) {
      if (!(get(value.name).desc() == value.desc))
        fail_usage("state " + value.name + " is " + get(value.name).desc().str() + ", the tape wants " +
                   value.desc.str());
      continue;
    }
    const auto place = places_.find(value.name);
    const bool own = place == places_.end();
    const Tensor tensor = own ? Tensor::zeros(value.desc) : place->second.tensor;
    if (own || place->second.fills) fill(tensor, spec.init, PhiloxStream(seed, hash_name(value.name)));
    entries_.emplace_back(value.name, tensor);
    if (spec.rank > 0) ranks_[value.name] = spec.rank;
  }
}

bool StateStore::contains(const std::string& name) const {
  for (const auto& [key, tensor] : entries_)
    if (key == name) return true;
  return false;
}

const Tensor& StateStore::get(const std::string& name) const {
  for (const auto& [key, tensor] : entries_)
    if (key == name) return tensor;
  fail_usage("no state is named \"" + name + "\"");
}

int StateStore::rank(const std::string& name) const {
  const auto found = ranks_.find(name);
  return found == ranks_.end() ? 0 : found->second;
}

}  // namespace convoy
