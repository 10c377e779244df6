// Each call as bytes: its arguments checked, its fingerprint, and the algorithm that carries it.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "bimetal/comm/algorithms/direct.h"
#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/algorithms/tree.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/group/arguments.h"
#include "bimetal/comm/group/group_impl.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {
namespace {

std::span<std::byte> bytes_of(const Buffer& b) {
  return {static_cast<std::byte*>(b.data), b.bytes()};
}
std::span<const std::byte> bytes_of(const ConstBuffer& b) {
  return {static_cast<const std::byte*>(b.data), b.bytes()};
}

Operands in_place(const Buffer& data) {
  return {bytes_of(data), bytes_of(data)};
}

// Cuts `bytes` into pieces of counts[i] elements.
template <typename Byte>
std::vector<std::span<Byte>> cut(std::span<Byte> bytes, std::span<const std::size_t> counts,
                                 DType dtype) {
  std::vector<std::span<Byte>> pieces;
  for (const std::size_t count : counts) {
    pieces.push_back(bytes.first(count * size_of(dtype)));
    bytes = bytes.subspan(pieces.back().size());
  }
  return pieces;
}

// The rest of an average, after the sum.
void finish_reduction(std::span<std::byte> data, DType dtype, ReduceOp op, int size) {
  if (op == ReduceOp::avg) divide(data.data(), data.size() / size_of(dtype), dtype, size);
}

using Counts = std::vector<std::size_t>;

auto gather_all(ConstBuffer input, Buffer output, Counts counts) {
  return [input, output, counts = std::move(counts)](Channel& channel) {
    const auto segments = cut(bytes_of(output), counts, output.dtype);
    copy_own(bytes_of(input), segments[channel.rank()]);
    if (doubling_suits(segments)) {
      channel.note_algorithm("recursive doubling");
      return doubling_all_gather(channel, segments);
    }
    channel.note_algorithm("ring");
    ring_all_gather(channel, segments);
  };
}

auto reduce_by_ring(Buffer input, Buffer output, Counts counts, ReduceOp op) {
  return [input, output, counts = std::move(counts), op](Channel& channel) {
    const auto segments = cut(bytes_of(input), counts, input.dtype);
    channel.note_algorithm("ring");
    ring_reduce_scatter(channel, segments, {input.dtype, op, channel.size()});
    copy_own(segments[channel.rank()], bytes_of(output));
  };
}

}  // namespace

Work Group::all_reduce(Buffer data, ReduceOp op, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_buffer(data, "data");
  check_reduce_op(op);
  const Call call{.operation = Operation::all_reduce,
                  .dtype = data.dtype,
                  .reduce_op = op,
                  .count = data.count,
                  .algorithm = group.all_reducer().asked()};
  return group.run(call, in_place(data), deadline, [data, op, &group](Channel& channel) {
    group.all_reducer().run(channel, bytes_of(data), {data.dtype, op, channel.size()});
  });
}

Work Group::broadcast(Buffer data, int root, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_buffer(data, "data");
  check_rank(root, size(), "root");
  const Call call{
      .operation = Operation::broadcast, .dtype = data.dtype, .count = data.count, .root = root};
  return group.run(call, in_place(data), deadline, [data, root](Channel& channel) {
    if (chain_suits(data.bytes(), channel.size())) {
      channel.note_algorithm("chain");
      return chain_broadcast(channel, bytes_of(data), root);
    }
    channel.note_algorithm("tree");
    tree_broadcast(channel, bytes_of(data), root);
  });
}

Work Group::reduce(Buffer data, int root, ReduceOp op, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_buffer(data, "data");
  check_reduce_op(op);
  check_rank(root, size(), "root");
  const Call call{.operation = Operation::reduce,
                  .dtype = data.dtype,
                  .reduce_op = op,
                  .count = data.count,
                  .root = root};
  return group.run(call, in_place(data), deadline, [data, root, op](Channel& channel) {
    if (chain_suits(data.bytes(), channel.size())) {
      channel.note_algorithm("chain");
      return chain_reduce(channel, bytes_of(data), root, {data.dtype, op, channel.size()});
    }
    channel.note_algorithm("tree");
    tree_reduce(channel, bytes_of(data), root, data.dtype, op);
    if (channel.rank() == root) finish_reduction(bytes_of(data), data.dtype, op, channel.size());
  });
}

Work Group::all_gather(ConstBuffer input, Buffer output, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_whole_and_part(output, "output", input, "input", size());
  const Call call{.operation = Operation::all_gather, .dtype = input.dtype, .count = input.count};
  return group.run(call, {bytes_of(input), bytes_of(output)}, deadline,
                   gather_all(input, output, Counts(size(), input.count)));
}

Work Group::all_gather(ConstBuffer input, Buffer output, std::span<const std::size_t> counts,
                       std::optional<Deadline> deadline) {
  auto& group = impl();
  check_whole_and_own(counts, output, "output", input, "input", rank(), size());
  const Call call{.operation = Operation::all_gather,
                  .dtype = input.dtype,
                  .count = output.count,
                  .part_counts = {counts.begin(), counts.end()}};
  return group.run(call, {bytes_of(input), bytes_of(output)}, deadline,
                   gather_all(input, output, call.part_counts));
}

Work Group::all_gather_bytes(std::span<const std::byte> input, std::shared_ptr<Gathered> output,
                             std::optional<Deadline> deadline) {
  const Call call{.operation = Operation::all_gather_bytes};
  return impl().run(call, deadline, [input, output = std::move(output)](Channel& channel) {
    channel.note_algorithm("ring");
    ring_all_gather_bytes(channel, input, *output);
  });
}

Work Group::reduce_scatter(Buffer input, Buffer output, ReduceOp op,
                           std::optional<Deadline> deadline) {
  auto& group = impl();
  check_whole_and_part(input, "input", output, "output", size());
  check_reduce_op(op);
  const Call call{.operation = Operation::reduce_scatter,
                  .dtype = input.dtype,
                  .reduce_op = op,
                  .count = output.count};
  return group.run(call, {bytes_of(input), bytes_of(output)}, deadline,
                   reduce_by_ring(input, output, Counts(size(), output.count), op));
}

Work Group::reduce_scatter(Buffer input, Buffer output, std::span<const std::size_t> counts,
                           ReduceOp op, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_whole_and_own(counts, input, "input", output, "output", rank(), size());
  check_reduce_op(op);
  const Call call{.operation = Operation::reduce_scatter,
                  .dtype = input.dtype,
                  .reduce_op = op,
                  .count = input.count,
                  .part_counts = {counts.begin(), counts.end()}};
  return group.run(call, {bytes_of(input), bytes_of(output)}, deadline,
                   reduce_by_ring(input, output, call.part_counts, op));
}

Work Group::scatter(ConstBuffer input, Buffer output, int root, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_rank(root, size(), "root");
  check_buffer(output, "output");
  if (rank() == root) check_whole_and_part(input, "input", output, "output", size());
  const Call call{
      .operation = Operation::scatter, .dtype = output.dtype, .count = output.count, .root = root};
  return group.run(call, {bytes_of(input), bytes_of(output)}, deadline,
                   [input, output, root](Channel& channel) {
                     ConstSegments segments;
                     if (channel.rank() == root) {
                       const std::vector<std::size_t> counts(channel.size(), output.count);
                       segments = cut(bytes_of(input), counts, input.dtype);
                     }
                     channel.note_algorithm("direct");
                     direct_scatter(channel, segments, bytes_of(output), root);
                   });
}

Work Group::gather(ConstBuffer input, Buffer output, int root, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_rank(root, size(), "root");
  check_buffer(input, "input");
  if (rank() == root) check_whole_and_part(output, "output", input, "input", size());
  const Call call{
      .operation = Operation::gather, .dtype = input.dtype, .count = input.count, .root = root};
  return group.run(call, {bytes_of(input), bytes_of(output)}, deadline,
                   [input, output, root](Channel& channel) {
                     Segments segments;
                     if (channel.rank() == root) {
                       const std::vector<std::size_t> counts(channel.size(), input.count);
                       segments = cut(bytes_of(output), counts, output.dtype);
                     }
                     channel.note_algorithm("direct");
                     direct_gather(channel, bytes_of(input), segments, root);
                   });
}

Work Group::all_to_all(ConstBuffer input, std::span<const std::size_t> send_counts, Buffer output,
                       std::span<const std::size_t> recv_counts, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_counts(send_counts, input, "input", size());
  check_counts(recv_counts, output, "output", size());
  if (input.dtype != output.dtype) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("input is {}, but output is {}", to_string(input.dtype),
                            to_string(output.dtype)));
  }
  if (send_counts[rank()] != recv_counts[rank()]) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} sends itself {} elements but expects {}", rank(),
                            send_counts[rank()], recv_counts[rank()]));
  }
  const Call call{.operation = Operation::all_to_all,
                  .dtype = input.dtype,
                  .send_counts = {send_counts.begin(), send_counts.end()},
                  .recv_counts = {recv_counts.begin(), recv_counts.end()}};
  const auto inputs = cut(bytes_of(input), send_counts, input.dtype);
  const auto outputs = cut(bytes_of(output), recv_counts, output.dtype);
  return group.run(call, {bytes_of(input), bytes_of(output)}, deadline,
                   [inputs, outputs](Channel& channel) {
                     channel.note_algorithm("direct");
                     direct_all_to_all(channel, inputs, outputs);
                   });
}

Work Group::send(ConstBuffer data, int peer, std::uint64_t tag, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_buffer(data, "data");
  check_peer(peer, rank(), size());
  const Call call{
      .operation = Operation::send_recv, .dtype = data.dtype, .count = data.count, .sequence = tag};
  return group.send(call, data, peer, deadline);
}

Work Group::recv(Buffer data, int peer, std::uint64_t tag, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_buffer(data, "data");
  check_peer(peer, rank(), size());
  const Call call{
      .operation = Operation::send_recv, .dtype = data.dtype, .count = data.count, .sequence = tag};
  return group.recv(call, data, peer, deadline);
}

Work Group::recv_from_anybody(Buffer data, std::uint64_t tag, std::optional<Deadline> deadline) {
  auto& group = impl();
  check_buffer(data, "data");
  if (size() == 1) {
    throw Error(ErrorCode::InvalidArgument,
                "there is nobody to receive from: this rank is alone in its group");
  }
  const Call call{
      .operation = Operation::send_recv, .dtype = data.dtype, .count = data.count, .sequence = tag};
  return group.recv(call, data, -1, deadline);
}

Work Group::barrier(std::optional<Deadline> deadline) {
  return impl().run(Call{.operation = Operation::barrier}, {}, deadline, [](Channel& channel) {
    channel.note_algorithm("dissemination");
    dissemination_barrier(channel);
  });
}

}  // namespace bimetal::comm
