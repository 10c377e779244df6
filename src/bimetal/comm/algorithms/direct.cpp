#include "bimetal/comm/algorithms/direct.h"

#include <cstring>

namespace bimetal::comm {
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
