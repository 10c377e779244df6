#include "bimetal/comm/algorithms/direct.h"

#include <algorithm>
#include <cstring>

#include "bimetal/comm/parts.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {

DirectExchange::DirectExchange(Channel& channel, std::span<std::byte> block,
                               const std::vector<std::size_t>& counts, std::size_t part_bytes,
                               std::span<std::byte> scratch, const Reduction& reduction)
    : channel_(channel), scratch_(scratch), reduction_(reduction) {
  for (const std::size_t count : counts) {
    const auto piece = block.first(count * size_of(reduction.dtype));
    block = block.subspan(piece.size());
    // No messages for a rank without a piece: empty ones would cost what short ones cost.
    pieces_.push_back(piece.empty() ? Parts() : parts_of(piece, part_bytes));
  }
}

// Part by part over all owners, so that all of them can begin at once.
void DirectExchange::begin() {
  post_contributions();
  const std::size_t longest = std::ranges::max(pieces_, {}, &Parts::size).size();
  for (std::size_t part = 0; part < longest; ++part) {
    for (int step = 1; step < channel_.size(); ++step) {
      const int to = channel_.neighbour(step);
      if (part < piece_of(to).size()) channel_.send_part(to, piece_of(to)[part]);
    }
  }
}

void DirectExchange::reduce() {
  post_results();
  for (std::size_t part = 0; part < own().size(); ++part) reduce_part(part);
}

void DirectExchange::finish() {
  for (const auto ticket : results_) channel_.wait(ticket);
}

void DirectExchange::post_contributions() {
  for (int from = 0; from < channel_.size(); ++from) {
    if (from == channel_.rank()) continue;
    auto& arriving = contributions_.emplace_back();
    for (const auto part : own()) {
      const auto room = scratch_.first(part.size());
      scratch_ = scratch_.subspan(part.size());
      arriving.push_back({room, channel_.receive(from, room)});
    }
  }
}

// A result lands on this rank's own contribution to it, which has left this memory by then.
void DirectExchange::post_results() {
  for (int step = 1; step < channel_.size(); ++step) {
    const int from = channel_.neighbour(step);
    for (const auto part : piece_of(from)) results_.push_back(channel_.receive(from, part));
  }
}

// In the order of the ranks, so that the bits of a run are those of the next.
void DirectExchange::reduce_part(std::size_t part) {
  const auto data = own()[part];
  for (const auto& from : contributions_) {
    channel_.wait(from[part].ticket);
    accumulate(data.data(), from[part].bytes.data(), data.size() / size_of(reduction_.dtype),
               reduction_.dtype, reduction_.op);
  }
  reduction_.finish(data);
  for (int step = 1; step < channel_.size(); ++step) {
    channel_.send_part(channel_.neighbour(step), data);
  }
}

namespace {

void wait_all(Channel& channel, const std::vector<Channel::Ticket>& tickets) {
  for (const auto ticket : tickets) channel.wait(ticket);
}

}  // namespace

void copy_own(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memmove(to.data(), from.data(), from.size());
}

void direct_gather(Channel& channel, std::span<const std::byte> own, const MutableSegments& output,
                   int root) {
  if (channel.rank() != root) {
    channel.send(root, own);
    channel.wait_sent();
    return;
  }
  std::vector<Channel::Ticket> tickets;
  for (int step = 1; step < channel.size(); ++step) {
    const int from = channel.neighbour(step);
    tickets.push_back(channel.receive(from, output[from]));
  }
  copy_own(own, output[root]);
  wait_all(channel, tickets);
}

void direct_scatter(Channel& channel, const ConstSegments& input, std::span<std::byte> own,
                    int root) {
  if (channel.rank() != root) {
    channel.wait(channel.receive(root, own));
    return;
  }
  for (int step = 1; step < channel.size(); ++step) {
    const int to = channel.neighbour(step);
    channel.send(to, input[to]);
  }
  copy_own(input[root], own);
  channel.wait_sent();
}

void direct_all_to_all(Channel& channel, const ConstSegments& input,
                       const MutableSegments& output) {
  std::vector<Channel::Ticket> tickets;
  for (int step = 1; step < channel.size(); ++step) {
    const int from = channel.neighbour(-step);
    tickets.push_back(channel.receive(from, output[from]));
  }
  for (int step = 1; step < channel.size(); ++step) {
    const int to = channel.neighbour(step);
    channel.send(to, input[to]);
  }
  copy_own(input[channel.rank()], output[channel.rank()]);
  wait_all(channel, tickets);
  channel.wait_sent();
}

}  // namespace bimetal::comm
