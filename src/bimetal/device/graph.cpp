#include "bimetal/device/graph.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <utility>

#include "bimetal/base/error.h"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#endif

namespace bimetal::device {
namespace {

#if __has_include(<ATen/core/GraphImplInterface.h>)

/// Of a device that has registered its own with libtorch, as CUDA's have not.
class RegisteredGraph final : public Graph {
 public:
  explicit RegisteredGraph(std::unique_ptr<at::GraphImplInterface> graph)
      : graph_(std::move(graph)) {}

  void begin(c10::MempoolId_t pool) override { graph_->capture_begin(pool); }
  void end() override { graph_->capture_end(); }
  c10::MempoolId_t pool() const override { return graph_->pool(); }
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<at::GraphImplInterface> graph_;
};

std::unique_ptr<Graph> registered_graph(c10::DeviceType type) {
  if (!at::has_graph_impl(type)) return nullptr;
  return std::make_unique<RegisteredGraph>(at::create_graph_impl(type));
}

#else

std::unique_ptr<Graph> registered_graph(c10::DeviceType /*type*/) {
  return nullptr;
}

#endif

c10::Stream stream_aside(const torch::Device& device) {
  if (has_graphs(device)) {
    return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  throw Error(ErrorCode::Unsupported,
              fmt::format("{} has no graphs that this build can use", device.str()));
}

}  // namespace

std::unique_ptr<Graph> make_graph(const torch::Device& device) {
  if (device.is_cpu()) return nullptr;
  return device.is_cuda() ? make_cuda_graph() : registered_graph(device.type());
}

bool has_graphs(const torch::Device& device) {
  return make_graph(device) != nullptr;
}

GraphRecorder::GraphRecorder(const torch::Device& device)
    : device_(device), stream_(stream_aside(device)) {}

std::unique_ptr<Graph> GraphRecorder::record(const std::function<void()>& work) {
  const c10::StreamGuard aside(stream_);
  auto graph = make_graph(device_);
  graph->begin(pool_);
  try {
    work();
  } catch (...) {
    try {
      graph->end();
    } catch (const std::exception&) {
      // It follows from the first error, which says more.
    }
    throw;
  }
  graph->end();
  pool_ = graph->pool();
  return graph;
}

}  // namespace bimetal::device
