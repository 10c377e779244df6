#pragma once
// The torch.distributed backend "bimetal": torch's process groups over comm::Group.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/c10d/backend_error.h"
#include "bimetal/c10d/backend_work.h"
#include "bimetal/c10d/host_tensors.h"
#include "bimetal/comm/group.h"

namespace bimetal::c10d {

inline constexpr const char* kBackendName = "bimetal";

/// An operation of the fabric, to be begun when the call's turn has come.
using FabricCall = std::function<comm::Work(comm::Group&, Deadline)>;

struct BackendOptions final : ::c10d::Backend::Options {
  explicit BackendOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : Options(kBackendName, timeout) {}
};

/// Every collective of c10d::Backend. Tensors may be strided (and, in all-reduces, sparse: see
/// reductions/sparse.h) and on any device (see HostTensors); an operation on a device's tensors
/// begins behind what that device has queued and ends with the results there. Inputs stay as they
/// are, also where the fabric uses its own as scratch.
///
/// Works complete on the group's threads, in the order of their calls. Calls must come in the same
/// order on all ranks; send and recv are matched by (peer, tag). Futures' callbacks run on threads
/// of their own, where they may block and make calls: CallOrder has their order. Errors are
/// BackendErrors: thrown by the call for arguments that can't work (by wait() where the call comes
/// behind callbacks), by the work's wait() otherwise. Ranks in them are global. Thread-safe.
class BimetalBackend final : public ::c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;
  using StorePtr = c10::intrusive_ptr<::c10d::Store>;
  using Milliseconds = std::chrono::milliseconds;

  /// `store` is the group's alone and outlives the meeting: monitoredBarrier and CallOrder use it,
  /// too. options->global_ranks_in_group is empty for the default group, whose connections all
  /// others share. See make_backend.
  BimetalBackend(comm::Group group, StorePtr store, c10::intrusive_ptr<BackendOptions> options);
  ~BimetalBackend() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override { options_->timeout = timeout; }
  const comm::Group& group() const noexcept { return calls_.group; }
  const GroupCalls& calls() const noexcept { return calls_; }
  const BackendOptions& options() const noexcept { return *options_; }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const ::c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(std::vector<at::Tensor>& tensors,
                           const ::c10d::AllreduceOptions& opts) override {
    return allreduce(tensors, opts);
  }
  WorkPtr allreduce_coalesced(std::vector<at::Tensor>& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const ::c10d::BroadcastOptions& opts) override;
  WorkPtr reduce(std::vector<at::Tensor>& tensors, const ::c10d::ReduceOptions& opts) override;

  /// Outputs of unlike sizes are allowed if all ranks pass the same sizes.
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const ::c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override;
  /// outputs[r][i] takes rank r's inputs[i].
  WorkPtr allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                              std::vector<at::Tensor>& inputs,
                              const ::c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const ::c10d::GatherOptions& opts) override;
  /// At the root into one tensor. A virtual function of torch's since 2.14: hence no "override".
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const ::c10d::GatherOptions& opts);
  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const ::c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(std::vector<at::Tensor>& outputs,
                         std::vector<std::vector<at::Tensor>>& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                   const ::c10d::AllToAllOptions& opts) override;
  /// Splits count rows (the first dimension), one for each rank; none: equal parts.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& opts) override;

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  /// The work's sourceRank() is the sender once it is done.
  WorkPtr recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override;
  /// Through the store, so that a rank that does not come breaks nothing: Error(Timeout) on every
  /// rank that is there, naming all that are not, whatever `wait_all_ranks` says.
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  /// The works of the calls in between become one.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<::c10d::Backend> split(const StorePtr& store, const std::vector<int>& ranks,
                                            const c10::intrusive_ptr<Options>& opts) override;

  /// Calls are numbered from 0 on all ranks: there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  /// Ends what is in flight, here and on the other ranks, with Error(Aborted).
  void abort() override;
  /// Orderly end: waits for what is in flight, by the process group's timeout.
  void shutdown() override;

 private:
  /// One call in the making.
  struct Issue {
    HostTensors tensors;
    std::vector<FabricCall> calls;
    Deadline deadline;
    std::vector<std::function<void()>> finish = {};  ///< after them, before results are handed back
  };
  static std::vector<comm::Work> begin(comm::Group& group, const Issue& issue);
  /// Makes the work of a call whose operations `issue` names.
  template <typename Body>
  WorkPtr start(::c10d::OpType type, const char* title, Milliseconds timeout,
                std::vector<at::Tensor> outputs, Body&& issue);
  WorkPtr finish_start(BackendWork::Description description, Issue issue);
  Milliseconds timeout_or_default(Milliseconds timeout) const;
  void all_reduce_one(Issue& issue, const at::Tensor& tensor, const ::c10d::ReduceOp& op);
  void all_gather_list(Issue& issue, const std::vector<at::Tensor>& outputs,
                       const at::Tensor& input);
  void check_list(const std::vector<at::Tensor>& list, const char* what) const;
  /// Error(InvalidArgument) unless `part` of a list has as many values as `own`, which it is of.
  static void check_own(const at::Tensor& part, const at::Tensor& own, const char* what);

  const int process_;  // that made it, not one forked from that
  GroupCalls calls_;
  StorePtr store_;
  c10::intrusive_ptr<BackendOptions> options_;
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> monitored_barriers_{0};
  std::mutex coalescing_mutex_;
  std::optional<std::vector<c10::intrusive_ptr<BackendWork>>> coalescing_;
};

// How BimetalBackend begins a call. Private to its sources.

template <typename Body>
BimetalBackend::WorkPtr BimetalBackend::start(::c10d::OpType type, const char* title,
                                              Milliseconds timeout, std::vector<at::Tensor> outputs,
                                              Body&& body) {
  BackendWork::Description description{.rank = rank_,
                                       .type = type,
                                       .title = title,
                                       .sequence = sequence_,
                                       .outputs = std::move(outputs)};
  Issue issue{.tensors = {}, .calls = {}, .deadline = Deadline::after(timeout_or_default(timeout))};
  guarded([&] { body(issue); });
  return finish_start(std::move(description), std::move(issue));
}

/// The one tensor of a list: torch passes lists for devices per process that are long gone.
inline at::Tensor& only(std::vector<at::Tensor>& tensors) {
  if (tensors.size() == 1) return tensors.front();
  throw BackendError(
      Error(ErrorCode::InvalidArgument, "one tensor is needed where a list of several was given"));
}

inline bool alike(const std::vector<at::Tensor>& tensors) {
  return std::ranges::all_of(
      tensors, [&](const at::Tensor& t) { return t.numel() == tensors.front().numel(); });
}

/// Elements of the fabric in each of `parts`, which `joined` holds one after the other.
inline std::vector<std::size_t> counts_of(const std::vector<at::Tensor>& parts,
                                          const at::Tensor& joined) {
  const std::size_t per_value =
      joined.numel() > 0 ? buffer_of(joined).count / static_cast<std::size_t>(joined.numel()) : 1;
  std::vector<std::size_t> counts;
  for (const auto& part : parts) {
    counts.push_back(static_cast<std::size_t>(part.numel()) * per_value);
  }
  return counts;
}

}  // namespace bimetal::c10d
