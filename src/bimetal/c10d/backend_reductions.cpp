// The collectives that compute.

#include <utility>

#include "bimetal/c10d/backend.h"
#include "bimetal/c10d/host_tensors.h"
#include "bimetal/c10d/reductions.h"

namespace bimetal::c10d {

using ::c10d::OpType;

namespace {

FabricCall reducing(const at::Tensor& host, comm::ReduceOp op) {
  return [data = buffer_of(host), op](comm::Group& group, Deadline by) {
    return group.all_reduce(data, op, by);
  };
}

FabricCall scattering(const at::Tensor& whole, const at::Tensor& part, comm::ReduceOp op) {
  return [whole = buffer_of(whole), part = buffer_of(part), op](comm::Group& group, Deadline by) {
    return group.reduce_scatter(whole, part, op, by);
  };
}

FabricCall scattering(const at::Tensor& whole, const at::Tensor& part,
                      std::vector<std::size_t> counts, comm::ReduceOp op) {
  return [whole = buffer_of(whole), part = buffer_of(part), counts = std::move(counts), op](
             comm::Group& group, Deadline by) {
    return group.reduce_scatter(whole, part, counts, op, by);
  };
}

}  // namespace

void BimetalBackend::all_reduce_one(Issue& issue, const at::Tensor& tensor,
                                    const ::c10d::ReduceOp& op) {
  if (tensor.layout() == at::kSparse) {
    auto [call, finish] = sparse_reduction(tensor, op);
    issue.calls.push_back(std::move(call));
    issue.finish.push_back(std::move(finish));
    return;
  }
  if (is_bitwise(op, tensor.scalar_type())) {
    const auto host = issue.tensors.lend(tensor, Use::update);
    auto [call, finish] = bitwise_reduction(host, op, rank_, size_, -1);
    issue.calls.push_back(std::move(call));
    issue.finish.push_back(std::move(finish));
    return;
  }
  const auto reduction = reduction_for(op, tensor.scalar_type());
  const auto host = issue.tensors.lend(tensor, Use::update);
  reduction.prepare(host);
  issue.calls.push_back(reducing(host, reduction.op));
}

BimetalBackend::WorkPtr BimetalBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                  const ::c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = only(tensors);
  return start(OpType::ALLREDUCE, "bimetal:all_reduce", opts.timeout, tensors,
               [&](Issue& issue) { all_reduce_one(issue, tensor, opts.reduceOp); });
}

BimetalBackend::WorkPtr BimetalBackend::allreduce_coalesced(
    std::vector<at::Tensor>& tensors, const ::c10d::AllreduceCoalescedOptions& opts) {
  return start(OpType::ALLREDUCE_COALESCED, "bimetal:all_reduce_coalesced", opts.timeout, tensors,
               [&](Issue& issue) {
                 for (const auto& tensor : tensors) all_reduce_one(issue, tensor, opts.reduceOp);
               });
}

BimetalBackend::WorkPtr BimetalBackend::reduce(std::vector<at::Tensor>& tensors,
                                               const ::c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = only(tensors);
  const auto root = static_cast<int>(opts.rootRank);
  return start(OpType::REDUCE, "bimetal:reduce", opts.timeout, tensors, [&](Issue& issue) {
    if (is_bitwise(opts.reduceOp, tensor.scalar_type())) {
      const auto lent = issue.tensors.lend(tensor, rank_ == root ? Use::update : Use::read);
      auto [call, finish] = bitwise_reduction(lent, opts.reduceOp, rank_, size_, root);
      issue.calls.push_back(std::move(call));
      issue.finish.push_back(std::move(finish));
      return;
    }
    const auto reduction = reduction_for(opts.reduceOp, tensor.scalar_type());
    const auto host = issue.tensors.lend(tensor, rank_ == root ? Use::update : Use::scratch);
    reduction.prepare(host);
    issue.calls.push_back(
        [data = buffer_of(host), root, op = reduction.op](comm::Group& group, Deadline by) {
          return group.reduce(data, root, op, by);
        });
  });
}

BimetalBackend::WorkPtr BimetalBackend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                       std::vector<std::vector<at::Tensor>>& inputs,
                                                       const ::c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = only(outputs);
  return start(
      OpType::REDUCE_SCATTER, "bimetal:reduce_scatter", opts.timeout, outputs, [&](Issue& issue) {
        const auto& parts = inputs.at(0);
        check_list(parts, "inputs");
        const auto reduction = reduction_for(opts.reduceOp, output.scalar_type());
        const auto whole = issue.tensors.join(parts);
        reduction.prepare(whole);
        const auto part = issue.tensors.lend(output, Use::write);
        if (alike(parts)) {
          issue.calls.push_back(scattering(whole, part, reduction.op));
          return;
        }
        check_own(parts[static_cast<std::size_t>(rank_)], output, "this rank's input");
        issue.calls.push_back(scattering(whole, part, counts_of(parts, whole), reduction.op));
      });
}

BimetalBackend::WorkPtr BimetalBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const ::c10d::ReduceScatterOptions& opts) {
  std::vector<at::Tensor> outputs{output};
  std::vector<at::Tensor> inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

BimetalBackend::WorkPtr BimetalBackend::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const ::c10d::ReduceScatterOptions& opts) {
  return start(OpType::_REDUCE_SCATTER_BASE, "bimetal:reduce_scatter_tensor", opts.timeout, outputs,
               [&](Issue& issue) {
                 for (std::size_t i = 0; i < outputs.size(); ++i) {
                   const auto reduction = reduction_for(opts.reduceOp, outputs[i].scalar_type());
                   const auto whole = issue.tensors.lend(inputs.at(i), Use::scratch);
                   reduction.prepare(whole);
                   const auto part = issue.tensors.lend(outputs[i], Use::write);
                   issue.calls.push_back(scattering(whole, part, reduction.op));
                 }
               });
}

}  // namespace bimetal::c10d
