// A kernel, or the library primitives that define a fused op, made ready to be timed on one problem.
#pragma once

#include <memory>
#include <vector>

#include "core/kernel.h"

namespace convoy::bench {

class Candidate {
 public:
  /// One kernel on random data.
  Candidate(const Kernel& kernel, const Problem& problem);
  /// The plain ops that a fused op stands for, each on oneDNN where it takes the op and on our first kernel otherwise;
  /// null for plain ops and without oneDNN. This is what a fused kernel has to beat.
  static std::unique_ptr<Candidate> definition(const KernelList& list, const Problem& problem);

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
    std::unique_ptr<Buffer> workspace;
    std::vector<Tensor> in, out;
    std::vector<PackRequest> requests;
    std::vector<std::unique_ptr<Buffer>> packs;
    std::vector<std::byte*> packed;
  };
  Candidate() = default;
  void add_stage(const Kernel& kernel, const Problem& problem, std::vector<Tensor> in, std::vector<Tensor> out);
  std::string name_, detail_;
  std::vector<Stage> stages_;
};

}  // namespace convoy::bench
