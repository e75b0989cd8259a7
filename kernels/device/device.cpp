#include "kernels/device/device.h"

#include "core/text.h"
#include "kernels/device/probes.h"

namespace convoy {

DeviceChoice parse_device(const std::string& text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceKind::cuda, 0};
  if (text.starts_with("cuda:")) return {DeviceKind::cuda, parse_number<int>(text.substr(5), "device number"), true};
  fail_usage("device: expected cpu, cuda or cuda:N, found \"" + text + "\"");
}

#ifndef CONVOY_WITH_CUDA
std::shared_ptr<Device> open_cuda_device(int) {
  fail_usage("device cuda: this build has no CUDA (configure with -DWITH_CUDA=ON)");
}
int cuda_device_count() {
  return 0;
}
const std::string& why_no_peer_sums() {
  static const std::string none;
  return none;
}
std::vector<Ceiling> probe_device() {
  return {};
}
#endif

}  // namespace convoy
