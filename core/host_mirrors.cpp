#include "core/host_mirrors.h"

#include <cstring>

namespace convoy {
namespace {

/// Kept values of more bytes (logits of images) are copied from a device when the host asks for them.
constexpr int64_t late_bytes = int64_t{1} << 20;

}  // namespace

HostMirrors::HostMirrors(const BoundPlan& bound, const StateStore& host, Device& device) : device_(device) {
  const Plan& plan = bound.plan();
  mirror_of_.assign(plan.values.size(), -1);
  ByValue<bool> written(plan.values.size());
  for (const PlannedNode& node : plan.nodes)
    for (ValueId id : node.out) written[id] = true;
  for (size_t v = 0; v < plan.values.size(); ++v) {
    const Value& value = plan.values[v];
    const Tensor& there = bound.tensor(static_cast<ValueId>(v));
    if (there.empty()) continue;
    const bool control = value.kind == ValueKind::state && value.desc.dtype == DType::f64;
    const bool input = value.kind == ValueKind::input;
    if (!control && !input && !value.keep) continue;
    if (!value.desc.dense()) fail_usage("value " + value.name + " is a slice: the host cannot see it");
    mirror_of_[v] = static_cast<int>(mirrors_.size());
    const int64_t bytes = value.desc.bytes();
    Mirror m{.device = there,
             .host = control ? host.get(value.name) : Tensor(value.desc, device.allocate_host(bytes)),
             .staging = input ? device.allocate(bytes) : nullptr,
             .locked = control ? device.allocate_host(bytes) : nullptr,
             .up = control,
             .down = control ? written[v] : value.keep && !input};
    m.late = value.keep && !input && bytes > late_bytes;
    mirrors_.push_back(std::move(m));
  }
}

const Tensor* HostMirrors::find(ValueId id) const {
  const int found = mirror_of_.at(static_cast<size_t>(id));
  if (found < 0) return nullptr;
  const Mirror& m = mirrors_[static_cast<size_t>(found)];
  if (m.behind) {
    device_.download(m.host.bytes(), m.device.bytes(), m.bytes());
    device_.synchronize();
    m.behind = false;
  }
  return &m.host;
}

void HostMirrors::stage() {
  for (const Mirror& m : mirrors_)
    if (m.staging) device_.stage(m.staging->data(), m.host.bytes(), m.bytes());
  staged_ = true;
}

void HostMirrors::place() {
  device_.await_staged();
  for (const Mirror& m : mirrors_) {
    if (m.staging) device_.copy(m.device.bytes(), m.staging->data(), m.bytes());
    if (m.locked) std::memcpy(m.locked->data(), m.host.bytes(), static_cast<size_t>(m.bytes()));
    if (m.up) device_.upload(m.device.bytes(), m.traveller(), m.bytes());
  }
  device_.staging_free();
  staged_ = false;
}

void HostMirrors::bring_back() {
  for (const Mirror& m : mirrors_) {
    m.behind = m.late;
    if (m.down && !m.late) device_.download(m.traveller(), m.device.bytes(), m.bytes());
  }
}

void HostMirrors::arrived() {
  for (const Mirror& m : mirrors_)
    if (m.locked && m.down) std::memcpy(m.host.bytes(), m.locked->data(), static_cast<size_t>(m.bytes()));
}

}  // namespace convoy
