// The CUDA device: memory, one stream, graphs. Plain cudaMalloc throughout: an arena is one allocation per program.
#include <cstdio>
#include <map>

#include "kernels/device/cuda.h"
#include "kernels/device/device.h"
#include "kernels/device/peer_sums.h"

namespace convoy {
namespace cuda {
namespace {

struct Current {
  cudaStream_t stream = nullptr;
  int capability = 0, code_capability = 0, multiprocessors = 1, shared_memory = 0;
  bool early_launches = false;
};
Current current;

}  // namespace

cudaStream_t stream() {
  return current.stream;
}
int capability() {
  return current.capability;
}
int code_capability() {
  return current.code_capability;
}
Support runs_mma() {
  if (!current.capability) return Support::no("no CUDA device is open");
  if (current.capability < 80) return Support::no("compute capability below 8.0");
  return current.code_capability < 80 ? Support::no("not compiled for 8.0 or later") : Support::yes();
}
Support runs_wgmma() {
  if (!current.capability) return Support::no("no CUDA device is open");
  if (current.capability != 90) return Support::no("not of compute capability 9.0");
#ifdef CONVOY_WITH_HOPPER
  return Support::yes();
#else
  return Support::no("not compiled for 9.0a");
#endif
}
bool early_launches() {
  return current.early_launches;
}
int multiprocessors() {
  return current.multiprocessors;
}
int shared_memory() {
  return current.shared_memory;
}

void allow_shared_bytes(const void* kernel, int bytes) {
  static std::map<const void*, int> allowed;
  int& most = allowed[kernel];
  if (bytes <= most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "asking for shared memory");
  most = bytes;
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_runtime(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

int grid_for(int64_t work, int threads) {
  const int64_t blocks = (work + threads - 1) / threads, most = int64_t(current.multiprocessors) * (2048 / threads) * 4;
  return static_cast<int>(std::max<int64_t>(1, std::min(blocks, most)));
}

Support even_floats(const Problem& p) {
  if (!current.capability) return Support::no("no CUDA device is open");
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& desc : *list) {
      if (desc.pixel_pitch() < 0) return Support::no("evenly spaced pixels only");
      if (desc.shape.elements() >= int64_t(1) << 40) return Support::no("too many elements");
      for (int i = 0; i < 5; ++i)
        if (desc.shape[i] >= int64_t(1) << 31) return Support::no("an extent of 2^31 or more");
    }
  const DType type = p.in[0].dtype;
  if (type != DType::f32 && type != DType::bf16 && type != DType::f16) return Support::no("f32, bf16 or f16 only");
  return Support::yes();
}

Support few_channels_to_sum(const TensorDesc& x) {
  return x.shape.c() <= most_summed_channels ? Support::yes() : Support::no("more than 2^17 channels to sum");
}

Support even_sums(const Problem& p) {
  const Support even = even_floats(p);
  return even.ok ? few_channels_to_sum(p.in[0]) : even;
}

Support even_convolution(const Problem& p) {
  if (const Support even = even_floats(p); !even.ok) return even;
  const TensorDesc& weights = p.op.kind == OpKind::conv_backward_weights ? p.out[0] : p.in[1];
  return weights.dense() ? Support::yes() : Support::no("needs dense weights, found " + weights.str());
}

Support dense_floats(const Problem& p) {
  if (const Support even = even_floats(p); !even.ok) return even;
  for (const auto* list : {&p.in, &p.out})
    for (const TensorDesc& desc : *list)
      if (!desc.dense()) return Support::no("dense tensors only");
  return Support::yes();
}

namespace {

__global__ void probe() {}

class Graph final : public Recording {
 public:
  explicit Graph(cudaGraph_t graph) {
    const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
    check(cudaGraphDestroy(graph), "destroying a graph");
    check(status, "instantiating a graph");
  }
  ~Graph() override { cudaGraphExecDestroy(graph_); }
  void replay() override { check(cudaGraphLaunch(graph_, current.stream), "launching a graph"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

class CudaFence final : public Fence {
 public:
  CudaFence() { check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"); }
  ~CudaFence() override { cudaEventDestroy(event); }
  bool passed() override {
    const cudaError_t status = cudaEventQuery(event);
    if (status != cudaErrorNotReady) check(status, "running the queue");
    return status == cudaSuccess;
  }

  cudaEvent_t event = nullptr;
};

#ifdef CONVOY_CUDA_HARDLY_OPTIMISED
constexpr const char* how_compiled = ", kernels compiled as a check (CONVOY_CUDA_CHECK): times say nothing";
#else
constexpr const char* how_compiled = "";
#endif

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) {
    int count = 0;
    if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0)
      fail_usage(std::string("device cuda: no device: ") + cudaGetErrorString(status));
    if (ordinal < 0 || ordinal >= count)
      fail_usage("device cuda:" + std::to_string(ordinal) + ": there are " + std::to_string(count) + " devices");
    if (current.stream) fail_usage("a CUDA device is open already");
    // What kernels and cuDNN were told, they were told of the first one.
    static int first = -1;
    if (first >= 0 && ordinal != first)
      fail_usage("device cuda:" + std::to_string(ordinal) + ": this process has used cuda:" + std::to_string(first));
    check(cudaSetDevice(ordinal), "choosing a device");
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, ordinal), "reading the device's properties");
    probe<<<1, 1>>>();
    if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess)
      fail_usage("device cuda:" + std::to_string(ordinal) + ": this build has no code for compute capability " +
                 std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                 " (CMAKE_CUDA_ARCHITECTURES): " + cudaGetErrorString(status));
    cudaFuncAttributes code;
    check(cudaFuncGetAttributes(&code, probe), "reading a kernel's attributes");
    cudaStream_t compute = nullptr;
    check(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking), "creating a stream");
    for (cudaStream_t* stream : {&uploads_, &downloads_})
      check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "creating a stream");
    for (cudaEvent_t* event : {&staged_, &free_})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "creating an event");
    current.stream = compute;
    first = ordinal;
    current.capability = 10 * properties.major + properties.minor;
    current.code_capability = code.ptxVersion > 0 ? code.ptxVersion : code.binaryVersion;
    char bus[32] = {};
    check(cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal), "reading the device's place");
    identity_ = std::string(bus) + " ";
    for (const char byte : properties.uuid.bytes) {  // instances of one device (MIG) share its place
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
      identity_ += digits;
    }
    int driver = 0;
    check(cudaDriverGetVersion(&driver), "reading the driver's version");
    current.early_launches = current.code_capability >= 90 && driver >= 12030;
    current.multiprocessors = properties.multiProcessorCount;
    current.shared_memory = int(properties.sharedMemPerBlockOptin);
    description_ = std::string(properties.name) + ", compute capability " + std::to_string(properties.major) + "." +
                   std::to_string(properties.minor) + ", " + std::to_string(properties.totalGlobalMem >> 20) + " MiB" +
                   how_compiled;
  }
  ~CudaDevice() override {
    clear_marks();
    for (cudaEvent_t event : spare_) cudaEventDestroy(event);
    cudaEventDestroy(staged_), cudaEventDestroy(free_), cudaStreamDestroy(uploads_), cudaStreamDestroy(downloads_);
    cudaStreamDestroy(current.stream);
    current = {};
  }

  std::string description() const override { return description_; }
  std::string identity() const override { return identity_; }

  std::shared_ptr<Buffer> allocate(int64_t bytes) override {
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))) != cudaSuccess) {
      cudaGetLastError();  // the failure is reported here and nowhere else
      size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total), "reading the free memory");
      fail_runtime("device memory: asked for " + std::to_string(bytes) + " bytes, " + std::to_string(free) + " of " +
                   std::to_string(total) + " are free");
    }
    return std::make_shared<Buffer>(static_cast<std::byte*>(memory), bytes, [memory] { cudaFree(memory); });
  }

  std::shared_ptr<Buffer> allocate_host(int64_t bytes) override {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "page-locking host memory");
    return std::make_shared<Buffer>(static_cast<std::byte*>(memory), bytes, [memory] { cudaFreeHost(memory); });
  }

  void upload(void* to, const void* from, int64_t bytes) override {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, current.stream), "copying up");
  }
  void download(void* to, const void* from, int64_t bytes) override {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, current.stream),
          "copying down");
  }
  void stage(void* to, const void* from, int64_t bytes) override {
    check(cudaStreamWaitEvent(uploads_, free_), "waiting for staging memory");
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, uploads_), "copying ahead");
    check(cudaEventRecord(staged_, uploads_), "recording an event");
  }
  void await_staged() override { check(cudaStreamWaitEvent(current.stream, staged_), "waiting for inputs"); }
  void staging_free() override { check(cudaEventRecord(free_, current.stream), "recording an event"); }
  void wait_until_staged() override { check(cudaEventSynchronize(staged_), "copying ahead"); }
  std::unique_ptr<Fence> fence() override { return std::make_unique<CudaFence>(); }
  void fetch(void* to, const void* from, int64_t bytes, Fence& arrived) override {
    cudaEvent_t event = dynamic_cast<CudaFence&>(arrived).event;
    check(cudaEventRecord(event, current.stream), "recording an event");
    check(cudaStreamWaitEvent(downloads_, event), "waiting for the queue");
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, downloads_), "copying down");
    check(cudaEventRecord(event, downloads_), "recording an event");
  }
  std::unique_ptr<PeerSums> peer_sums(Communicator& node, std::shared_ptr<Buffer> arena, std::vector<PeerSum> sums,
                                      std::shared_ptr<Buffer> flags) override {
    return make_peer_sums(node, std::move(arena), std::move(sums), std::move(flags));
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, current.stream), "copying");
  }
  void synchronize() override { check(cudaStreamSynchronize(current.stream), "running the queue"); }

  std::unique_ptr<Recording> record(const std::function<void()>& work) override {
    check(cudaStreamBeginCapture(current.stream, cudaStreamCaptureModeThreadLocal), "starting a recording");
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(current.stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(current.stream, &graph), "ending a recording");
    return std::make_unique<Graph>(graph);
  }

  void mark() override {
    if (spare_.empty()) {
      spare_.emplace_back();
      check(cudaEventCreate(&spare_.back()), "creating an event");
    }
    marks_.push_back(spare_.back());
    spare_.pop_back();
    check(cudaEventRecord(marks_.back(), current.stream), "recording an event");
  }
  double seconds_after(size_t mark) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, marks_.at(mark), marks_.at(mark + 1)), "reading an event");
    return 1e-3 * double(milliseconds);
  }
  void clear_marks() override {
    spare_.insert(spare_.end(), marks_.begin(), marks_.end());
    marks_.clear();
  }

 private:
  std::string description_, identity_;
  cudaStream_t uploads_ = nullptr, downloads_ = nullptr;
  cudaEvent_t staged_ = nullptr, free_ = nullptr;
  std::vector<cudaEvent_t> marks_, spare_;
};

}  // namespace
}  // namespace cuda

std::shared_ptr<Device> open_cuda_device(int ordinal) {
  return std::make_shared<cuda::CudaDevice>(ordinal);
}

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace convoy
