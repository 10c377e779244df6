// The collectives that move values without looking at them.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/c10d/backend.h"

namespace bimetal::c10d {
namespace {

using ::c10d::OpType;

/// Elements of the fabric for each rank's part of `tensor`, from rows for each rank.
std::vector<std::size_t> counts_of(const at::Tensor& host, const std::vector<std::int64_t>& rows,
                                   int size, const char* what) {
  const std::size_t whole = buffer_of(host).count;
  if (rows.empty()) {
    if (host.dim() > 0 && host.size(0) % size != 0) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{} has {} rows, which {} ranks cannot share equally", what,
                              host.size(0), size));
    }
    return std::vector<std::size_t>(static_cast<std::size_t>(size),
                                    whole / static_cast<std::size_t>(size));
  }
  std::int64_t total = 0;
  for (const auto count : rows) total += count;
  const std::int64_t have = host.dim() > 0 ? host.size(0) : 1;
  if (rows.size() != static_cast<std::size_t>(size) || total != have ||
      std::ranges::any_of(rows, [](auto count) { return count < 0; })) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} splits for {} of {} rows do not fit {} ranks: one for each is "
                            "needed, and together all rows",
                            rows.size(), what, have, size));
  }
  const std::size_t per_row = have > 0 ? whole / static_cast<std::size_t>(have) : 0;
  std::vector<std::size_t> counts;
  for (const auto count : rows) counts.push_back(static_cast<std::size_t>(count) * per_row);
  return counts;
}

FabricCall gathering(const at::Tensor& own, const at::Tensor& all) {
  return [own = buffer_of(own), all = buffer_of(all)](comm::Group& group, Deadline by) {
    return group.all_gather(own, all, by);
  };
}

FabricCall gathering(const at::Tensor& own, const at::Tensor& all,
                     std::vector<std::size_t> counts) {
  return [own = buffer_of(own), all = buffer_of(all), counts = std::move(counts)](
             comm::Group& group, Deadline by) { return group.all_gather(own, all, counts, by); };
}

FabricCall gathering_at(int root, const at::Tensor& own, comm::Buffer all) {
  return [own = buffer_of(own), all, root](comm::Group& group, Deadline by) {
    return group.gather(own, all, root, by);
  };
}

FabricCall exchanging(const at::Tensor& from, std::vector<std::size_t> send_counts,
                      const at::Tensor& to, std::vector<std::size_t> recv_counts) {
  return [from = buffer_of(from), to = buffer_of(to), send_counts = std::move(send_counts),
          recv_counts = std::move(recv_counts)](comm::Group& group, Deadline by) {
    return group.all_to_all(from, send_counts, to, recv_counts, by);
  };
}

}  // namespace

void BimetalBackend::check_list(const std::vector<at::Tensor>& list, const char* what) const {
  if (list.size() == static_cast<std::size_t>(size_)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} {} were given, but the group has {} ranks, each of which needs one",
                          list.size(), what, size_));
}

void BimetalBackend::check_own(const at::Tensor& part, const at::Tensor& own, const char* what) {
  if (part.numel() == own.numel()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} has {} values where {} are needed", what, part.numel(), own.numel()));
}

BimetalBackend::WorkPtr BimetalBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                  const ::c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = only(tensors);
  const auto root = static_cast<int>(opts.rootRank);
  return start(OpType::BROADCAST, "bimetal:broadcast", opts.timeout, tensors, [&](Issue& issue) {
    const auto host = issue.tensors.lend(tensor, rank_ == root ? Use::read : Use::write);
    if (rank_ != root) issue.tensors.show(tensor);
    issue.calls.push_back([data = buffer_of(host), root](comm::Group& group, Deadline by) {
      return group.broadcast(data, root, by);
    });
  });
}

void BimetalBackend::all_gather_list(Issue& issue, const std::vector<at::Tensor>& outputs,
                                     const at::Tensor& input) {
  check_list(outputs, "outputs");
  const auto own = issue.tensors.lend(input, Use::read);
  const auto all = issue.tensors.divide(outputs);
  if (alike(outputs)) {
    issue.calls.push_back(gathering(own, all));
    return;
  }
  check_own(outputs[static_cast<std::size_t>(rank_)], input, "this rank's output");
  issue.calls.push_back(gathering(own, all, counts_of(outputs, all)));
}

BimetalBackend::WorkPtr BimetalBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const ::c10d::AllgatherOptions& opts) {
  const at::Tensor& input = only(inputs);
  return start(OpType::ALLGATHER, "bimetal:all_gather", opts.timeout, outputs.at(0),
               [&](Issue& issue) { all_gather_list(issue, outputs.at(0), input); });
}

BimetalBackend::WorkPtr BimetalBackend::allgather_coalesced(
    std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
    const ::c10d::AllgatherOptions& opts) {
  std::vector<at::Tensor> flat;
  for (const auto& row : outputs) flat.insert(flat.end(), row.begin(), row.end());
  return start(OpType::ALLGATHER_COALESCED, "bimetal:all_gather_coalesced", opts.timeout, flat,
               [&](Issue& issue) {
                 for (std::size_t i = 0; i < inputs.size(); ++i) {
                   std::vector<at::Tensor> of_input;
                   for (const auto& row : outputs) of_input.push_back(row.at(i));
                   all_gather_list(issue, of_input, inputs[i]);
                 }
               });
}

BimetalBackend::WorkPtr BimetalBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const ::c10d::AllgatherOptions& opts) {
  std::vector<at::Tensor> outputs{output};
  std::vector<at::Tensor> inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

BimetalBackend::WorkPtr BimetalBackend::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const ::c10d::AllgatherOptions& opts) {
  return start(OpType::_ALLGATHER_BASE, "bimetal:all_gather_into_tensor", opts.timeout, outputs,
               [&](Issue& issue) {
                 for (std::size_t i = 0; i < outputs.size(); ++i) {
                   const auto own = issue.tensors.lend(inputs.at(i), Use::read);
                   const auto all = issue.tensors.lend(outputs[i], Use::write);
                   issue.calls.push_back(gathering(own, all));
                 }
               });
}

BimetalBackend::WorkPtr BimetalBackend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                               std::vector<at::Tensor>& inputs,
                                               const ::c10d::GatherOptions& opts) {
  const at::Tensor& input = only(inputs);
  const auto root = static_cast<int>(opts.rootRank);
  auto results = rank_ == root && !outputs.empty() ? outputs[0] : std::vector<at::Tensor>();
  return start(OpType::GATHER, "bimetal:gather", opts.timeout, results, [&](Issue& issue) {
    comm::Buffer all;
    if (rank_ == root) {
      check_list(results, "outputs");
      all = buffer_of(issue.tensors.divide(results));
    }
    issue.calls.push_back(gathering_at(root, issue.tensors.lend(input, Use::read), all));
  });
}

BimetalBackend::WorkPtr BimetalBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                                      const ::c10d::GatherOptions& opts) {
  const auto root = static_cast<int>(opts.rootRank);
  std::vector<at::Tensor> results;
  if (rank_ == root) results.push_back(output);
  return start(OpType::GATHER, "bimetal:gather_single", opts.timeout, results, [&](Issue& issue) {
    comm::Buffer all;
    if (rank_ == root) all = buffer_of(issue.tensors.lend(output, Use::write));
    issue.calls.push_back(gathering_at(root, issue.tensors.lend(input, Use::read), all));
  });
}

BimetalBackend::WorkPtr BimetalBackend::scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const ::c10d::ScatterOptions& opts) {
  const at::Tensor& output = only(outputs);
  const auto root = static_cast<int>(opts.rootRank);
  return start(OpType::SCATTER, "bimetal:scatter", opts.timeout, outputs, [&](Issue& issue) {
    comm::Buffer all;
    if (rank_ == root) {
      const auto parts = inputs.empty() ? std::vector<at::Tensor>() : inputs[0];
      check_list(parts, "inputs");
      all = buffer_of(issue.tensors.join(parts));
    }
    const auto own = issue.tensors.lend(output, Use::write);
    issue.calls.push_back([all, own = buffer_of(own), root](comm::Group& group, Deadline by) {
      return group.scatter(all, own, root, by);
    });
  });
}

BimetalBackend::WorkPtr BimetalBackend::alltoall(std::vector<at::Tensor>& outputs,
                                                 std::vector<at::Tensor>& inputs,
                                                 const ::c10d::AllToAllOptions& opts) {
  return start(OpType::ALLTOALL, "bimetal:all_to_all", opts.timeout, outputs, [&](Issue& issue) {
    check_list(inputs, "inputs");
    check_list(outputs, "outputs");
    const auto from = issue.tensors.join(inputs);
    const auto to = issue.tensors.divide(outputs);
    issue.calls.push_back(exchanging(from, counts_of(inputs, from), to, counts_of(outputs, to)));
  });
}

BimetalBackend::WorkPtr BimetalBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<std::int64_t>& output_splits,
                                                      std::vector<std::int64_t>& input_splits,
                                                      const ::c10d::AllToAllOptions& opts) {
  return start(
      OpType::ALLTOALL_BASE, "bimetal:all_to_all_single", opts.timeout, {output},
      [&](Issue& issue) {
        const auto from = issue.tensors.lend(input, Use::read);
        const auto to = issue.tensors.lend(output, Use::write);
        issue.calls.push_back(exchanging(from, counts_of(from, input_splits, size_, "the input"),
                                         to, counts_of(to, output_splits, size_, "the output")));
      });
}

BimetalBackend::WorkPtr BimetalBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  const at::Tensor& tensor = only(tensors);
  return start(OpType::SEND, "bimetal:send", ::c10d::kUnsetTimeout, {}, [&](Issue& issue) {
    const auto host = issue.tensors.lend(tensor, Use::read);
    issue.calls.push_back([data = buffer_of(host), to, tag](comm::Group& group, Deadline by) {
      return group.send(data, to, static_cast<std::uint64_t>(tag), by);
    });
  });
}

BimetalBackend::WorkPtr BimetalBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  const at::Tensor& tensor = only(tensors);
  return start(OpType::RECV, "bimetal:recv", ::c10d::kUnsetTimeout, tensors, [&](Issue& issue) {
    const auto host = issue.tensors.lend(tensor, Use::write);
    issue.tensors.show(tensor);
    issue.calls.push_back([data = buffer_of(host), from, tag](comm::Group& group, Deadline by) {
      return group.recv(data, from, static_cast<std::uint64_t>(tag), by);
    });
  });
}

BimetalBackend::WorkPtr BimetalBackend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  const at::Tensor& tensor = only(tensors);
  return start(
      OpType::RECVANYSOURCE, "bimetal:recvAnySource", ::c10d::kUnsetTimeout, tensors,
      [&](Issue& issue) {
        const auto host = issue.tensors.lend(tensor, Use::write);
        issue.tensors.show(tensor);
        issue.calls.push_back([data = buffer_of(host), tag](comm::Group& group, Deadline by) {
          return group.recv_from_anybody(data, static_cast<std::uint64_t>(tag), by);
        });
      });
}

}  // namespace bimetal::c10d
