// Compiled where libtorch is for CUDA or ROCm and their headers are there. Not yet run on any
// device; builds without CUDA compile it in make portability.
#include <ATen/cuda/CUDAGraph.h>

#include <memory>

#include "bimetal/device/graph.h"

namespace bimetal::device {
namespace {

class CudaGraph final : public Graph {
 public:
  /// Other threads, which fetch batches and make buckets, may allocate meanwhile.
  void begin(c10::MempoolId_t pool) override {
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
  }
  void end() override { graph_.capture_end(); }
  c10::MempoolId_t pool() const override { return graph_.pool(); }
  void replay() override { graph_.replay(); }

 private:
  mutable at::cuda::CUDAGraph graph_;  // whose pool() is not const
};

}  // namespace

std::unique_ptr<Graph> make_cuda_graph() {
  return std::make_unique<CudaGraph>();
}

}  // namespace bimetal::device
