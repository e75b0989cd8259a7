// The contract between plans and kernels: describe a problem, ask who supports it, prepare once, run many times.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/communicator.h"
#include "core/op.h"

namespace convoy {

enum class DeviceKind : uint8_t { cpu, cuda };

/// Everything a kernel may know before it runs. Tests, benches, the tuned table and plans all speak in problems.
struct Problem {
  Op op;
  std::vector<TensorDesc> in;
  std::vector<TensorDesc> out;
  DeviceKind device = DeviceKind::cpu;
  int threads = 1;  ///< for the kernel to use: it is told when it is prepared, not when it runs

  /// "conv_forward{stride=2,2,2} in=f32:1x8x8x8x4|f32:32x3x3x3x4 out=f32:1x3x3x3x32 device=cpu threads=2"
  std::string text() const;
  /// Inverse of text(); `out`, `device` and `threads` may be left out. Throws Error(usage) for what no kernel may be
  /// given: extents below 1, strides below dense ones, outputs other than the op's own and its updated states.
  static Problem parse(std::string_view text);
  int64_t flops() const { return flops_of(op, in, out); }
  int64_t bytes() const { return bytes_of(in, out); }
};

/// Yes, or why not.
struct Support {
  bool ok = true;
  std::string reason;
  static Support yes() { return {}; }
  static Support no(std::string why) { return {false, std::move(why)}; }
};

/// A weight in a kernel's own order. The plan runs `pack` once per update of the weight, in a node of its own that all
/// nodes of one kernel's name asking for the same (weight, form) share, whatever their op. The weight has the problem's
/// descriptor, which in plans is dense: `supports` refuses others that `pack` cannot read. `packed` is 64-byte aligned;
/// `pack` may use threads (core/parallel.h).
struct PackRequest {
  int input = 1;     ///< which input of the op
  std::string form;  ///< equal forms of one kernel hold equal bytes
  int64_t bytes = 0;
  std::function<void(const Tensor& weight, std::byte* packed)> pack;
};

/// Pointers for one run. `out` holds the outputs, then the updated states (which are also the last inputs). Tensors may
/// be slices of wider ones where `supports` took such descriptors (TensorDesc::dense, pixel_pitch). Of ops with an
/// OpDef::in_place_input the first output may lie where that input does.
struct KernelArgs {
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  std::span<std::byte* const> packed;  ///< one per PackRequest
  std::byte* workspace = nullptr;      ///< 64-byte aligned, contents undefined
  /// The groups of ranks that AllReduceAttrs::group names; empty in a run of one rank.
  std::span<Communicator* const> groups = {};
};

/// A kernel made ready for one problem. `run` finds all room that grows with the problem in its workspace, and neither
/// decides nor throws; all-reduces alone throw, where a rank is lost, and launches on a device that fails. (References,
/// which are made to be read, allocate.)
class Prepared {
 public:
  virtual ~Prepared() = default;
  virtual int64_t workspace_bytes() const { return 0; }
  virtual std::vector<PackRequest> packed_weights() const { return {}; }
  /// What really runs ("jit:avx512_core" of a library, an ISA of our own); for tables only.
  virtual std::string detail() const { return {}; }
  virtual void run(const KernelArgs& args) const = 0;
};

/// A node's kernel and what it is given.
struct KernelRun {
  const Prepared* kernel;
  KernelArgs args;
};

/// A kernel of a device that can run in one launch with kernels of the nodes behind it.
class Joinable : public Prepared {
 public:
  /// Whether the next node's kernel may run in the same launch as this one's. If so, none of their values share memory,
  /// but that the last one's output may take the place of its input, which others of them may read as well.
  virtual bool joins(const Prepared& next) const = 0;
  /// This kernel, which is the first, and those behind it: in whatever order, or at once, but as if in this one.
  virtual void run_joined(std::span<const KernelRun> all) const = 0;
  void run(const KernelArgs& args) const final {
    const KernelRun alone{this, args};
    run_joined({&alone, 1});
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual std::string_view name() const = 0;
  virtual Support supports(const Problem& problem) const = 0;
  /// Measured to be faster here than kernels that stand before it in the list.
  virtual bool preferred(const Problem&) const { return false; }
  virtual std::unique_ptr<Prepared> prepare(const Problem& problem) const = 0;
};

/// Best first (but see Kernel::preferred); the plain reference is the last of the CPU's.
using KernelList = std::vector<std::unique_ptr<Kernel>>;
inline constexpr std::string_view reference_name = "reference";

/// A prepared kernel from a function, for kernels without state of their own.
class PreparedFunction final : public Prepared {
 public:
  using Run = std::function<void(const KernelArgs&)>;
  explicit PreparedFunction(Run run, int64_t workspace = 0, std::string detail = {})
      : run_(std::move(run)), workspace_(workspace), detail_(std::move(detail)) {}
  int64_t workspace_bytes() const override { return workspace_; }
  std::string detail() const override { return detail_; }
  void run(const KernelArgs& args) const override { run_(args); }

 private:
  Run run_;
  int64_t workspace_;
  std::string detail_;
};

}  // namespace convoy
