#include "core/state_store.h"

#include <cmath>
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
      const auto set = [&](int64_t i, double value) { values[static_cast<size_t>(i)] = from_double<T>(value); };
      if (init.kind == StateInit::Kind::he_normal)
        return for_normals(random, range, [&](int64_t i, double normal) { set(i, normal * deviation); });
      const bool uniform = init.kind == StateInit::Kind::glorot_uniform;
      for (int64_t i = range.begin; i < range.end; ++i)
        set(i, uniform ? (2.0 * random.uniform(static_cast<uint64_t>(i)) - 1.0) * limit : init.value);
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
