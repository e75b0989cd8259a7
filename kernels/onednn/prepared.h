// A prepared oneDNN primitive: operands that need another layout are reordered inside the kernel's own workspace, or
// for weights in a Pack node; scratch memory is booked. Nothing is created per run.
#pragma once

#include <unordered_map>

#include "kernels/onednn/shim.h"

namespace convoy::onednn {

class PreparedPrimitive final : public Prepared {
 public:
  PreparedPrimitive(dnnl::primitive primitive, const dnnl::memory::desc& scratchpad, std::string detail);

  /// An argument read from (or written to) a tensor of the node: `plain` is the caller's layout, `wanted` the
  /// primitive's.
  void add_input(int argument, int index, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);
  void add_output(int argument, int index, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);
  /// A weight that the plan packs once per update; falls back to a plain input where the layouts agree already.
  void add_weight(int argument, int index, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);

  int64_t workspace_bytes() const override { return workspace_; }
  std::vector<PackRequest> packed_weights() const override { return packs_; }
  std::string detail() const override { return detail_; }
  void run(const KernelArgs& args) const override;

 private:
  enum class From { input, output, packed };
  struct Argument {
    int index;
    From from;
    dnnl::memory plain, inner;  ///< inner is empty where no reorder is needed
    dnnl::reorder reorder;
    int64_t offset = 0;  ///< of the reordered copy in the workspace
  };
  Argument& add(int argument, int index, From from, const dnnl::memory::desc& plain, const dnnl::memory::desc& wanted);
  int64_t book(int64_t bytes);

  dnnl::primitive primitive_;
  mutable std::vector<Argument> arguments_;
  mutable dnnl::memory scratchpad_;
  std::unordered_map<int, dnnl::memory> list_;  ///< the same memories, as the library wants them
  int64_t scratchpad_offset_ = 0, workspace_ = 0;
  std::vector<PackRequest> packs_;
  std::string detail_;
};

}  // namespace convoy::onednn
