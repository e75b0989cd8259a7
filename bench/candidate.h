// A kernel, or the library primitives that define a fused op, made ready to be timed on one problem.
#pragma once

#include <memory>
#include <vector>

#include "core/device.h"
#include "core/kernel.h"

namespace convoy::bench {

/// Candidates made from here on run on this device; null, the beginning: on the CPU.
void use_device(Device* device);

class Candidate {
 public:
  /// One kernel on random data.
  Candidate(const Kernel& kernel, const Problem& problem);
  /// The plain ops that a fused op stands for, each on the library (oneDNN, on a device cuDNN) where it takes the op
  /// and on our first kernel otherwise; null for plain ops and without the library. This is what a fused kernel has to
  /// beat.
  static std::unique_ptr<Candidate> definition(const KernelList& list, const Problem& problem);

  /// The same, each op on the last kernel that takes it: the plain ones of a device. Null where an op has none.
  static std::unique_ptr<Candidate> plain(const KernelList& list, const Problem& problem);
  /// Runs both; whether all outputs agree within the roundings of their types.
  bool agrees_with(Candidate& other);

  /// Seconds of one run, the weight packing included that a training step pays.
  double run();
  const std::string& name() const { return name_; }
  const std::string& detail() const { return detail_; }

  std::vector<double> seconds;
  bool wrong = false, checked = false;
  double minimum() const;
  double median() const;

 private:
  struct Stage {
    std::unique_ptr<Prepared> prepared;
    std::shared_ptr<Buffer> workspace;
    std::vector<Tensor> in, out;
    std::vector<PackRequest> requests;
    std::vector<std::shared_ptr<Buffer>> packs;
    std::vector<std::byte*> packed;
  };
  Candidate() = default;
  /// Runs a definition on the kernels that `choose` gives; null where it gives none.
  static std::unique_ptr<Candidate> of_definition(const Problem& p,
                                                  const std::function<const Kernel*(const Problem&)>& choose);
  void add_stage(const Kernel& kernel, const Problem& problem, std::vector<Tensor> in, std::vector<Tensor> out);
  std::string name_, detail_;
  std::vector<Stage> stages_;
  std::vector<Tensor> results_;
};

}  // namespace convoy::bench
