#include "tests/device_run.h"

#include "core/passes/passes.h"
#include "kernels/kernel_list.h"
#include "tests/catch.hpp"

namespace convoy::testing {
namespace {

constexpr int64_t fence_bytes = 256;
constexpr int poison = 0xff;

/// Memory of the device with a fence behind it.
class Fenced {
 public:
  Fenced(Device& device, int64_t bytes)
      : device_(&device), bytes_(bytes), memory_(device.allocate(bytes + fence_bytes)) {
    const std::vector<std::byte> fill(static_cast<size_t>(bytes + fence_bytes), std::byte(poison));
    device.upload(memory_->data(), fill.data(), bytes + fence_bytes);
    device.synchronize();
  }
  std::byte* data() const { return memory_->data(); }
  bool intact() const {
    std::vector<std::byte> fence(fence_bytes);
    device_->download(fence.data(), memory_->data() + bytes_, fence_bytes);
    device_->synchronize();
    return std::all_of(fence.begin(), fence.end(), [](std::byte b) { return b == std::byte(poison); });
  }

 private:
  Device* device_;
  int64_t bytes_;
  std::shared_ptr<Buffer> memory_;
};

/// A run's tensors on the device; those that are input and output at once exist once.
struct OnDevice {
  std::vector<Fenced> memory;
  std::vector<Tensor> in, out;
  OnDevice(Device& device, const Run& run) {
    const auto place = [&](const Tensor& t) {
      memory.emplace_back(device, t.desc().span_bytes());
      return Tensor(t.desc(), memory.back().data());
    };
    for (const Tensor& t : run.in) {
      in.push_back(place(t));
      device.upload(in.back().bytes(), t.bytes(), t.desc().span_bytes());
    }
    for (const Tensor& t : run.out) {
      const auto same =
          std::find_if(run.in.begin(), run.in.end(), [&](const Tensor& i) { return i.bytes() == t.bytes(); });
      out.push_back(same == run.in.end() ? place(t) : in[static_cast<size_t>(same - run.in.begin())]);
    }
  }
};

void run_on(Device& device, const Kernel& kernel, const Problem& p, std::span<const Tensor> in,
            std::span<const Tensor> out) {
  const auto prepared = kernel.prepare(p);
  const Fenced workspace(device, prepared->workspace_bytes());
  std::vector<Fenced> packs;
  std::vector<std::byte*> packed;
  for (const PackRequest& request : prepared->packed_weights()) {
    packs.emplace_back(device, request.bytes);
    request.pack(in[static_cast<size_t>(request.input)], packs.back().data());
    packed.push_back(packs.back().data());
  }
  prepared->run({in, out, packed, workspace.data()});
  device.synchronize();
  INFO(kernel.name() << " " << p.text());
  CHECK(workspace.intact());
  for (const Fenced& pack : packs) CHECK(pack.intact());
}

}  // namespace

const Kernel* find_kernel(std::string_view name, const Problem& p) {
  for (const auto& kernel : kernel_list())
    if (kernel->name() == name && kernel->supports(p).ok) return kernel.get();
  return nullptr;
}

Problem on_cuda(const Problem& p) {
  Problem q = p;
  q.device = DeviceKind::cuda;
  return q;
}

void execute_on_device(Device& device, const Kernel& kernel, const Problem& p, Run& run) {
  const OnDevice there(device, run);
  run_on(device, kernel, p, there.in, there.out);
  for (size_t i = 0; i < run.out.size(); ++i)
    device.download(run.out[i].bytes(), there.out[i].bytes(), run.out[i].desc().span_bytes());
  device.synchronize();
  INFO(kernel.name() << " " << p.text());
  for (const Fenced& memory : there.memory) CHECK(memory.intact());
}

void execute_definition_on_device(Device& device, const Problem& p, Run& run) {
  const OnDevice there(device, run);
  walk_definition(
      p, there.in, there.out, [&](const TensorDesc& d) { return Tensor(d, device.allocate(d.bytes())); },
      [&](Problem q, std::span<const Tensor> in, std::span<const Tensor> out) {
        q.device = DeviceKind::cuda;
        const Kernel* kernel = find_kernel("cuda_plain", q);
        if (!kernel) kernel = find_kernel("cuda", q);
        if (!kernel) FAIL("no plain kernel for " << q.text());
        run_on(device, *kernel, q, in, out);
      });
  for (size_t i = 0; i < run.out.size(); ++i)
    device.download(run.out[i].bytes(), there.out[i].bytes(), run.out[i].desc().span_bytes());
  device.synchronize();
}

}  // namespace convoy::testing
