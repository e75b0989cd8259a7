// A kernel, or the library primitives that define a fused op, made ready to be timed on one problem.
#pragma once

#include <functional>
#include <memory>
#include <string>
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
  /// and on our first kernel otherwise; null for plain ops and without the library. Of the library's layouts each op
  /// keeps the one that is faster here, reorders included. This is what a fused kernel has to beat.
  static std::unique_ptr<Candidate> definition(const KernelList& list, const Problem& problem);

  /// The same, each op on the last kernel that takes it: the plain ones of a device. Null where an op has none.
  static std::unique_ptr<Candidate> plain(const KernelList& list, const Problem& problem);
  /// Runs both; whether all outputs agree within the roundings of their types.
  bool agrees_with(Candidate& other);

  /// Seconds of one run, the weight packing included that a training step pays.
  double run();
  const std::string& name() const { return name_; }
  const std::string& detail() const { return detail_; }
  /// What the last run wrote.
  const std::vector<Tensor>& results() const { return results_; }

  std::vector<double> seconds;
  int runs = 1;  ///< that the seconds were chosen from
  bool wrong = false, checked = false;
  double minimum() const;
  double median() const;

 private:
  /// A kernel ready to run a stage.
  struct Way {
    std::string name;
    std::unique_ptr<Prepared> prepared;
    std::shared_ptr<Buffer> workspace;
    std::vector<PackRequest> requests;
    std::vector<std::shared_ptr<Buffer>> packs;
    std::vector<std::byte*> packed;
  };
  struct Stage {
    std::vector<Way> ways;  ///< the first is run
    std::vector<Tensor> in, out;
  };
  Candidate() = default;
  /// Runs a definition on the kernels that `choose` gives, the fastest of each stage; null where it gives none.
  static std::unique_ptr<Candidate> of_definition(
      const Problem& p, const std::function<std::vector<const Kernel*>(const Problem&)>& choose);
  void add_stage(const std::vector<const Kernel*>& kernels, const Problem& problem, std::vector<Tensor> in,
                 std::vector<Tensor> out);
  static void run_stage(const Stage& stage, const Way& way);
  /// Runs the stages once, each that has several ways on all of them, and keeps the fastest.
  void keep_fastest_ways();
  std::string name_, detail_;
  std::vector<Stage> stages_;
  std::vector<Tensor> results_;
};

/// The fastest of the candidates that are not wrong and no definition, which a tuned table may name: of those that were
/// checked where one was. Null where all are wrong.
const Candidate* fastest_kernel(const std::vector<std::unique_ptr<Candidate>>& candidates);
/// The fastest of those that only the lack of a check keeps behind one that was checked, which is slower; null: none.
const Candidate* passed_over(const std::vector<std::unique_ptr<Candidate>>& candidates, const Candidate& chosen);

}  // namespace convoy::bench
