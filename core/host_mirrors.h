// The host's side of a plan that runs on a device: inputs that go up, kept values that come down, and control states
// (in f64: what the host tells a step and what steps count), which live on the host between runs.
#pragma once

#include <memory>
#include <vector>

#include "core/bound_plan.h"
#include "core/device.h"

namespace convoy {

class HostMirrors {
 public:
  /// `host` holds the control states. Throws Error(usage) where the host is to see a slice.
  HostMirrors(const BoundPlan& bound, const StateStore& host, Device& device);

  /// The host's side of a value, which is fetched now where it is large and has not come down since the last run; null
  /// for values of the device alone.
  const Tensor* find(ValueId id) const;

  /// Copies inputs beside the queue.
  void stage();
  /// Queues what was staged, and control states, to where the plan wants them.
  void place();
  bool staged() const { return staged_; }
  /// Queues kept values and control states back.
  void bring_back();
  /// Behind the end of the queue: control states get what came.
  void arrived();

 private:
  struct Mirror {
    Tensor device, host;
    std::shared_ptr<Buffer> staging;  ///< on the device, of inputs
    /// Of control states, whose memory copies would wait for: what travels up and down in its place.
    std::shared_ptr<Buffer> locked;
    bool up, down;
    bool late = false;            ///< comes down when it is asked for
    mutable bool behind = false;  ///< has not come down since the last run
    int64_t bytes() const { return host.desc().bytes(); }
    void* traveller() const { return locked ? locked->data() : host.bytes(); }
  };
  Device& device_;
  std::vector<Mirror> mirrors_;
  std::vector<int> mirror_of_;  ///< by value, -1 for none
  bool staged_ = false;
};

}  // namespace convoy
