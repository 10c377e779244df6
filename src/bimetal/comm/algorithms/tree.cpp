#include "bimetal/comm/algorithms/tree.h"

#include <optional>
#include <vector>

#include "bimetal/comm/parts.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {
namespace {

// Counting ranks from the root, a rank's parent is its number without the lowest set bit, and its
// children are its number with one lower bit set.
struct TreePlace {
  std::optional<int> parent;
  std::vector<int> children;  // nearest first
};

TreePlace place_in_tree(const Channel& channel, int root) {
  const int size = channel.size();
  const int number = (channel.rank() - root + size) % size;
  const auto rank_of = [&](int n) { return (n + root) % size; };
  TreePlace place;
  for (int bit = 1; bit < size; bit *= 2) {
    if (number & bit) {
      place.parent = rank_of(number ^ bit);
      break;
    }
    if ((number | bit) < size) place.children.push_back(rank_of(number | bit));
  }
  return place;
}

}  // namespace

void tree_broadcast(Channel& channel, std::span<std::byte> data, int root) {
  const auto [parent, children] = place_in_tree(channel, root);
  const auto parts = parts_of(data);
  std::vector<Channel::Ticket> tickets;
  if (parent) {
    for (const auto part : parts) tickets.push_back(channel.receive(*parent, part));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parent) channel.wait(tickets[i]);
    // The farthest child has the most ranks below it: it goes first.
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      channel.send(*child, parts[i]);
    }
  }
  channel.wait_sent();
}

void tree_reduce(Channel& channel, std::span<std::byte> data, int root, DType dtype, ReduceOp op) {
  const auto [parent, children] = place_in_tree(channel, root);
  const auto parts = parts_of(data);
  std::vector<std::vector<std::span<std::byte>>> incoming;
  std::vector<std::vector<Channel::Ticket>> tickets(children.size());
  for (std::size_t c = 0; c < children.size(); ++c) {
    incoming.push_back(parts_of(channel.scratch(data.size())));
    for (const auto part : incoming[c]) tickets[c].push_back(channel.receive(children[c], part));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t c = 0; c < children.size(); ++c) {
      channel.wait(tickets[c][i]);
      accumulate(parts[i].data(), incoming[c][i].data(), parts[i].size() / size_of(dtype), dtype,
                 op);
    }
    if (parent) channel.send(*parent, parts[i]);
  }
  channel.wait_sent();
}

void tree_all_reduce(Channel& channel, std::span<std::byte> data, const Reduction& reduction) {
  tree_reduce(channel, data, 0, reduction.dtype, reduction.op);
  if (channel.rank() == 0) reduction.finish(data);
  tree_broadcast(channel, data, 0);
}

}  // namespace bimetal::comm
