#include "support/simulated_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_copy_from_and_resize_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "support/simulated_graph.h"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#endif

namespace bimetal::testing {
namespace {

// A type without kernels in libtorch itself. (Parameters cannot become PrivateUse1's by set_data.)
constexpr auto kType = c10::DeviceType::HPU;

struct Copy {
  std::uint64_t ticket;
  std::optional<c10::StreamId> inward;  ///< from the host, by this stream
  std::function<void()> make;
};

/// The queue of the one device. Copies are in it until something says that they have ended.
struct Queue {
  std::mutex mutex;
  std::deque<Copy> copies;
  std::uint64_t tickets = 0;  ///< given to copies and events, in order
  std::uint64_t passed = 0;  ///< the last one of which somebody knows that the device has passed it
  std::vector<std::string> waits;
  std::int64_t launches = 0;
  std::set<const void*> page_locked;

  /// Makes all copies that were asked for before `ticket`.
  void pass(std::uint64_t ticket) {
    std::vector<std::function<void()>> made;  // whose memory is given back when nothing is locked
    const std::scoped_lock lock(mutex);
    passed = std::max(passed, std::min(ticket, tickets));
    while (!copies.empty() && copies.front().ticket <= ticket) {
      copies.front().make();
      made.push_back(std::move(copies.front().make));
      copies.pop_front();
    }
  }
  /// Kernels to come wait for what `stream` has copied before `ticket`, and the host does not.
  void kernels_wait(std::uint64_t ticket, c10::StreamId stream) {
    std::vector<Copy> made;
    const std::scoped_lock lock(mutex);
    for (auto copy = copies.begin(); copy != copies.end();) {
      if (copy->ticket > ticket || copy->inward != stream) {
        ++copy;
        continue;
      }
      copy->make();
      made.push_back(std::move(*copy));
      copy = copies.erase(copy);
    }
  }
  void pass_all() { pass(~std::uint64_t{0}); }

  void wait_for(std::string what) {
    {
      const std::scoped_lock lock(mutex);
      waits.push_back(std::move(what));
    }
    pass_all();
  }

  bool has_passed(std::uint64_t ticket) {
    const std::scoped_lock lock(mutex);
    return ticket <= passed;
  }

  std::uint64_t ticket() {
    const std::scoped_lock lock(mutex);
    return ++tickets;
  }
};

Queue& queue() {
  static auto& only = *new Queue;
  return only;
}

/// Within a kernel, whose own copies are none of the host's.
thread_local int kernels_under_way = 0;
struct InKernel {
  InKernel() { ++kernels_under_way; }
  ~InKernel() { --kernels_under_way; }
};

struct Event {
  std::uint64_t ticket;
  c10::StreamId stream;
  std::chrono::steady_clock::time_point when;
  int looks = 0;
};

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  static c10::Device only() { return {kType, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return only(); }
  c10::Device getDevice() const override { return only(); }
  c10::Stream& current() const {
    thread_local c10::Stream stream(c10::Stream::DEFAULT, only());
    return stream;
  }
  c10::Stream getStream(c10::Device) const noexcept override { return current(); }
  c10::Stream getDefaultStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, only());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device);
  }
  c10::Stream getNewStream(c10::Device, int) const override { return make_stream(); }
  c10::Stream getNewStream(c10::Device device) const { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return std::exchange(current(), stream);
  }
  static constexpr c10::StreamId kKernels = 0;  ///< of the default stream
  static c10::Stream make_stream() {
    static std::atomic<c10::StreamId> last = 0;
    return c10::Stream(c10::Stream::UNSAFE, only(), ++last);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    delete static_cast<Event*>(*event);
    *event = new Event{queue().ticket(), stream.id(), std::chrono::steady_clock::now()};
  }
  /// Kernels run in the order of their calls.
  void block(void* event, const c10::Stream& stream) const override {
    const auto& behind = *static_cast<Event*>(event);
    if (stream.id() == kKernels) queue().kernels_wait(behind.ticket, behind.stream);
  }
  /// Not at the first look: code that takes it for granted reads too early.
  bool queryEvent(void* event) const override {
    auto& seen = *static_cast<Event*>(event);
    if (queue().has_passed(seen.ticket)) return true;
    if (seen.looks++ == 0) return false;
    queue().pass(seen.ticket);
    return true;
  }
  void synchronizeEvent(void*) const override { queue().wait_for("an event"); }
  void synchronizeStream(const c10::Stream&) const override { queue().wait_for("a stream"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { queue().wait_for("the device"); }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    const auto between = static_cast<Event*>(second)->when - static_cast<Event*>(first)->when;
    return std::chrono::duration<double, std::milli>(between).count();
  }
};

/// The host's memory, said to be somebody else's.
struct Memory final : c10::DeviceAllocator {
  explicit Memory(c10::Device of, bool locked) : device(of), page_locked(locked) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const data = c10::alloc_cpu(bytes);
    if (page_locked) {
      const std::scoped_lock lock(queue().mutex);
      queue().page_locked.insert(data);
    }
    if (page_locked) return {data, data, &free_locked, device};
    auto* const block = new Block{data, bytes};
    count(static_cast<std::int64_t>(bytes));
    return {data, block, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return page_locked ? &free_locked : nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  // It keeps none.
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const std::scoped_lock lock(queue().mutex);
    stats.allocated_bytes[0] = allocated;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    const std::scoped_lock lock(queue().mutex);
    allocated.reset_peak();
  }

  struct Block {
    void* data;
    std::size_t bytes;
  };
  /// The device's bytes: so many more, or less.
  static void count(std::int64_t bytes);
  static void free_block(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    count(-static_cast<std::int64_t>(block->bytes));
    c10::free_cpu(block->data);
  }

  static void free_locked(void* data) {
    {
      const std::scoped_lock lock(queue().mutex);
      queue().page_locked.erase(data);
    }
    c10::free_cpu(data);
  }

  c10::Device device;
  bool page_locked;
  c10::CachingAllocator::Stat allocated;
};

Memory& device_memory() {
  static auto& memory = *new Memory(Guard::only(), false);
  return memory;
}

void Memory::count(std::int64_t bytes) {
  const std::scoped_lock lock(queue().mutex);
  auto& allocated = device_memory().allocated;
  if (bytes >= 0) allocated.increase(static_cast<std::size_t>(bytes));
  if (bytes < 0) allocated.decrease(static_cast<std::size_t>(-bytes));
}

struct HPUHooks final : at::HPUHooksInterface {
  explicit HPUHooks(at::HPUHooksArgs) {}
  bool hasHPU() const override { return true; }
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Device getDeviceFromPtr(void*) const override { return Guard::only(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const auto& generator = *new at::Generator(at::detail::createCPUGenerator());
    return generator;
  }
  bool isPinnedPtr(const void* data) const override {
    const std::scoped_lock lock(queue().mutex);
    return queue().page_locked.contains(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto& memory = *new Memory(c10::kCPU, true);
    return &memory;
  }
};

using at::HPUHooksRegistry;
using at::RegistererHPUHooksRegistry;
REGISTER_HPU_HOOKS(HPUHooks)

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &device_memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::HPU),
                                           dtype.value_or(at::kFloat));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &device_memory(),
                                   c10::DispatchKeySet(c10::DispatchKey::HPU),
                                   dtype.value_or(at::kFloat), format);
}

/// For kernels that are kept.
at::Tensor host_of(const at::Tensor& tensor) {
  return on_cpu(memory_of(tensor));
}

/// The graph that this thread's launches belong to; nullptr: they are done.
SimulatedGraph* recorded() {
  return SimulatedGraph::on(Guard().current().id());
}

std::vector<at::Tensor> contents_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> contents;
  for (const auto& tensor : tensors) {
    contents.push_back(tensor.defined() ? host_of(tensor).clone() : tensor);
  }
  return contents;
}

/// A kernel that changes some tensors and makes others.
std::vector<at::Tensor> launch_one(const std::vector<at::Tensor>& changed,
                                   const std::function<std::vector<at::Tensor>()>& run) {
  auto* const graph = recorded();
  const auto before = contents_of(graph != nullptr ? changed : std::vector<at::Tensor>());
  const auto kernel = [run] {
    const InKernel within;
    return run();
  };
  auto made = kernel();
  if (graph != nullptr) graph->add(kernel, made, changed, before);
  return made;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  const auto from = host_of(self), to = host_of(target);
  const auto copy = [from, to] {
    const c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset);
    to.copy_(from);
  };
  auto& all = queue();
  const bool out = target.is_cpu(), in = self.is_cpu();
  if (kernels_under_way > 0) {
    copy();
    return target;
  }
  if (!out && !in) {
    launch_one({to}, [copy] {
      copy();
      return std::vector<at::Tensor>{};
    });
    return target;
  }
  if (recorded() != nullptr) SimulatedGraph::refuse("a copy between host and device");
  const auto locked = [](const at::Tensor& host) {
    return at::globalContext().isPinnedPtr(host.storage().data(), kType);
  };
  if (!non_blocking || !locked(out ? target : self)) {
    all.wait_for(out ? "a copy to the host" : "a copy from the host");
    copy();
  } else if (out) {
    const std::scoped_lock lock(all.mutex);
    // The copy has the values of now: later kernels come later in the stream.
    all.copies.push_back(
        {++all.tickets, std::nullopt, [to, now = from.clone()] { to.copy_(now); }});
  } else if (const auto stream = Guard().current().id(); stream != Guard::kKernels) {
    const std::scoped_lock lock(all.mutex);
    all.copies.push_back({++all.tickets, stream, copy});
  } else {
    copy();
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  auto resized = target;
  if (target.sizes() != self.sizes()) resized.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  if (kernels_under_way == 0 && recorded() != nullptr) SimulatedGraph::refuse("reading a number");
  if (kernels_under_way == 0) queue().wait_for("aten::_local_scalar_dense");
  return on_cpu(self).item();
}

at::Tensor on_device(const at::Tensor& made) {
  return made.defined() ? made.to(Guard::only()) : made;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> three(const std::vector<at::Tensor>& made) {
  return {made[0], made[1], made[2]};
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  const auto added = bias && bias->defined() ? std::optional(host_of(*bias)) : std::nullopt;
  return launch_one({},
                    [=, x = host_of(input), w = host_of(weight), s = stride.vec(),
                     p = padding.vec(), d = dilation.vec(), o = output_padding.vec()] {
                      return std::vector{
                          on_device(at::convolution(x, w, added, s, p, d, transposed, o, groups))};
                    })
      .front();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, std::int64_t groups, std::array<bool, 3> wanted) {
  return three(launch_one(
      {}, [=, g = host_of(gradient), x = host_of(input), w = host_of(weight), s = stride.vec(),
           p = padding.vec(), d = dilation.vec(), o = output_padding.vec()] {
        const std::vector<std::int64_t> biases = {w.size(0)};
        const auto [input_gradient, weight_gradient, bias_gradient] =
            at::convolution_backward(g, x, w, biases, s, p, d, transposed, o, groups, wanted);
        return std::vector{on_device(input_gradient), on_device(weight_gradient),
                           on_device(bias_gradient)};
      }));
}

/// Its schema does not say that it writes running statistics, which a fallback would so lose.
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps) {
  const auto host = [](const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional(host_of(*tensor)) : std::nullopt;
  };
  const auto mean = host(running_mean), variance = host(running_var);
  return three(launch_one(
      {mean.value_or(at::Tensor()), variance.value_or(at::Tensor())},
      [=, x = host_of(input), w = host(weight), b = host(bias)] {
        const auto [normalised, saved_mean, saved_factor] =
            at::native_batch_norm(x, w, b, mean, variance, training, momentum, eps);
        return std::vector{on_device(normalised), on_device(saved_mean), on_device(saved_factor)};
      }));
}

void launch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto* const graph = kernels_under_way == 0 ? recorded() : nullptr;
  if (kernels_under_way == 0 && graph == nullptr) {
    const std::scoped_lock lock(queue().mutex);
    ++queue().launches;
  }
  const auto last = [&](std::size_t count) {
    return std::vector<c10::IValue>(stack->end() - static_cast<std::ptrdiff_t>(count),
                                    stack->end());
  };
  const auto given = last(op.schema().arguments().size());
  const auto changed = graph != nullptr ? changed_by(op, given) : std::vector<at::Tensor>();
  const auto before = contents_of(changed);
  const InKernel within;
  at::native::cpu_fallback(op, stack);
  if (graph == nullptr) return;
  const auto again = [op, kept = memory_of(given)] {
    const InKernel inside;
    torch::jit::Stack own = kept;
    at::native::cpu_fallback(op, &own);
    return tensors_in(own);
  };
  graph->add(again, tensors_in(last(op.schema().returns().size())), changed, before);
}

#if __has_include(<ATen/core/GraphImplInterface.h>)

struct GraphOfDevice final : at::GraphImplInterface {
  explicit GraphOfDevice(const at::GraphImplArgs&) {}
  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {
    graph = std::make_shared<SimulatedGraph>(Guard().current().id());
    SimulatedGraph::begin(graph);
  }
  void capture_end() override { SimulatedGraph::end(*graph); }
  void instantiate() override {}
  void replay() override {
    {
      const std::scoped_lock lock(queue().mutex);
      ++queue().launches;
    }
    graph->replay();
  }
  void reset() override { graph.reset(); }
  at::MempoolId_t pool() const override { return {1, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

  std::shared_ptr<SimulatedGraph> graph;
};

using at::GraphImplRegistry;
using at::RegistererGraphImplRegistry;
REGISTER_GRAPH_IMPL(HPU, GraphOfDevice)

#endif

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("native_batch_norm", native_batch_norm);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  // Updates of many parameters at once, as cards have them.
  for (const char* const fused :
       {"_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_foreach_zero_"}) {
    m.impl(fused, torch::CppFunction::makeFromBoxedFunction<&launch>());
  }
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", at::native::set_);
}

TORCH_LIBRARY_IMPL(_, HPU, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&launch>());
}

}  // namespace

torch::Device SimulatedDevice::install() {
  static const bool installed = [] {
    static const auto& guard = *new Guard;
    static const c10::impl::DeviceGuardImplRegistrar registrar(kType, &guard);
    c10::SetAllocator(kType, &device_memory());
    return true;
  }();
  return installed ? Guard::only() : torch::Device(torch::kCPU);
}

std::vector<std::string> SimulatedDevice::take_waits() {
  const std::scoped_lock lock(queue().mutex);
  return std::exchange(queue().waits, {});
}

std::int64_t SimulatedDevice::take_launches() {
  const std::scoped_lock lock(queue().mutex);
  return std::exchange(queue().launches, 0);
}

std::int64_t SimulatedDevice::copies_under_way() {
  const std::scoped_lock lock(queue().mutex);
  return std::ranges::count_if(queue().copies, [](const Copy& copy) { return !copy.inward; });
}

}  // namespace bimetal::testing
