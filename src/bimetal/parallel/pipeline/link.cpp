#include "bimetal/parallel/pipeline/link.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/schedule/schedule.h"

namespace bimetal::parallel::pipeline {
namespace {

torch::Tensor on_host(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU).contiguous();
}

/// In the memory of `like`, where that is there.
torch::Tensor zeros_on(const torch::Device& device, const torch::Tensor& like) {
  if (like.device().type() == device.type() && like.is_contiguous()) return like.detach().zero_();
  return torch::zeros(like.sizes(), torch::TensorOptions(like.scalar_type()).device(device));
}

/// By which the ranks of a pipeline reach each other's devices that have values for each other.
std::shared_ptr<c10d::CardToCard> connect(const Mesh& mesh, const torch::Device& device,
                                          const Patience& patience,
                                          const c10d::VendorLibrary& vendor, int chunks) {
  if (!vendor) return nullptr;
  const auto& shape = mesh.shape();
  const auto talk = [&](int lower, int higher) {
    const auto one = place_of(shape, mesh.rank_of_peer(lower));
    const auto other = place_of(shape, mesh.rank_of_peer(higher));
    const int apart = other.stage - one.stage;
    const bool neighbours = apart == 1 || (chunks > 1 && apart == shape.stages - 1);
    return neighbours && parts_talk(shape, one, other);
  };
  return c10d::connect_cards(mesh.pipeline(), device, vendor, talk, patience.timeout);
}

}  // namespace

Link::Link(const Mesh& mesh, const torch::Device& device, const Patience& patience,
           const ActivationCompression& compression, const c10d::VendorLibrary& vendor, int chunks)
    : mesh_(mesh),
      group_(mesh.pipeline()),
      device_(device),
      patience_(patience),
      schemes_(schemes_of_peers(mesh, compression)),
      cards_(connect(mesh, device, patience, vendor, chunks)) {}

// A power of 2, so that nothing is rounded by it; float16 loses values below 2^-25.
void Link::begin_step(double loss_factor) {
  int exponent = 0;
  std::frexp(loss_factor, &exponent);
  gradient_unit_ = std::ldexp(1.0, exponent);
}

std::shared_ptr<Incoming::State> Link::await(int peer, const MessageName& name) const {
  auto state = std::make_shared<Incoming::State>();
  state->mesh = &mesh_;
  state->group = group_;
  state->peer = peer;
  state->name = name;
  state->device = device_;
  state->patience = patience_;
  state->scheme = scheme_of(peer);
  state->cards = cards_.get();
  if (!name.forward) state->unit = gradient_unit_;
  state->awaited = fmt::format("{}: the {} of micro-batch {} from {}", mesh_.own_name(),
                               name.forward ? "activations" : "gradients", name.micro_batch,
                               mesh_.name_of_peer(peer));
  return state;
}

Incoming Link::expect(int peer, const MessageName& name) {
  auto state = await(peer, name);
  state->described = group_.recv(comm::buffer(std::span(state->description)), peer,
                                 tag_of(name, kDescription), Deadline::after(comm::kPosted));
  state->described.on_done([state](std::exception_ptr error) {
    if (!error) Incoming::State::post_soon(state);
  });
  return Incoming::State::waited_for(std::move(state));
}

Incoming Link::expect_like(int peer, const MessageName& name, const task::Values& like) {
  auto state = await(peer, name);
  state->description = describe(like, state->scheme);
  state->leaves = false;
  Incoming::State::try_to_post(state);
  return Incoming::State::waited_for(std::move(state));
}

void Link::send(const Peers& peers, const MessageName& name, const task::Values& values) {
  if (peers.empty()) return;
  auto description =
      std::make_shared<const Description>(describe(values, scheme_of(peers.front())));
  const auto made = prepared(peers, name, values);
  send_description(peers, name, std::move(description));
  send_prepared(peers, name, made);
}

void Link::send_nothing(const Peers& peers, const MessageName& name) {
  send_description(peers, name, std::make_shared<const Description>(describe_nothing()));
}

void Link::send_description(const Peers& peers, const MessageName& name,
                            std::shared_ptr<const Description> description) {
  step_ = name.step;
  for (const int peer : peers) {
    auto work = group_.send(comm::buffer(std::span(*description)), peer, tag_of(name, kDescription),
                            Deadline::after(comm::kPosted));
    sent_.push_back({peer, keeping(std::move(work), description)});
  }
}

void Link::send_like(const Peers& peers, const MessageName& name, const task::Values& values) {
  if (peers.empty()) return;
  send_prepared(peers, name, prepared(peers, name, values));
}

void Link::send_zeros_like(const Peers& peers, const MessageName& name, const task::Values& like) {
  if (peers.empty()) return;
  std::vector<Prepared> zeros(like.size());
  for (std::size_t i = 0; i < like.size(); ++i) {
    const auto& value = like[i];
    if (!value.defined()) continue;
    const auto scheme = scheme_of_sent(scheme_of(peers.front()), name, value, true);
    const auto [by_host, by_card] = ways_of(peers, value, scheme);
    if (by_card) zeros[i].card = zeros_on(device_, value);
    if (!by_host) continue;
    if (scheme != comm::Scheme::none) {
      zeros[i].host = room_for_code(scheme, value).zero_();
    } else {
      zeros[i].host = zeros_on(torch::kCPU, value);
    }
  }
  send_prepared(peers, name, zeros);
}

Link::Ways Link::ways_of(const Peers& peers, const torch::Tensor& value,
                         comm::Scheme scheme) const {
  Ways ways;
  for (const int peer : peers) {
    (goes_by_card(cards_.get(), peer, value, scheme) ? ways.by_card : ways.by_host) = true;
  }
  return ways;
}

std::vector<Link::Prepared> Link::prepared(const Peers& peers, const MessageName& name,
                                           const task::Values& values) {
  std::vector<Prepared> made(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& value = values[i];
    if (!value.defined()) continue;
    const auto scheme =
        scheme_of_sent(scheme_of(peers.front()), name, value, value.requires_grad());
    const auto [by_host, by_card] = ways_of(peers, value, scheme);
    if (by_card) made[i].card = value.detach().to(device_).contiguous();
    if (!by_host) continue;
    made[i].host = on_host(value);
    if (scheme != comm::Scheme::none) made[i].host = shortened(scheme, name, i, made[i].host);
  }
  return made;
}

void Link::send_prepared(const Peers& peers, const MessageName& name,
                         const std::vector<Prepared>& values) {
  step_ = name.step;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& [host, card] = values[i];
    const auto tag = tag_of(name, static_cast<int>(i));
    for (const int peer : peers) {
      const bool by_card = card.defined() && cards_->reaches(peer);
      if (!by_card && !host.defined()) continue;
      const auto& value = by_card ? card : host;
      bytes_sent_ += static_cast<std::int64_t>(value.nbytes());
      auto work =
          by_card ? cards_->send(value, peer, tag)
                  : group_.send(tensor_buffer(value), peer, tag, Deadline::after(comm::kPosted));
      sent_.push_back({peer, keeping(std::move(work), value)});
    }
  }
}

torch::Tensor Link::shortened(comm::Scheme scheme, const MessageName& name, std::size_t value,
                              const torch::Tensor& host) {
  const auto floats = host.to(torch::kFloat32);
  if (name.forward) return encode_tensor(scheme, floats);
  return lost_.encode(scheme, {name.piece, value}, floats.mul(1 / gradient_unit_));
}

void Link::flush() {
  const auto deadline = Deadline::after(patience_.timeout);
  for (const auto& [peer, work] : std::exchange(sent_, {})) {
    const auto what = [&, to = peer] {
      return fmt::format("{}: what it has sent to {}", mesh_.own_name(), mesh_.name_of_peer(to));
    };
    wait_for_peer({mesh_, peer, step_}, patience_, work, deadline,
                  [&] { return fmt::format("{} was not taken", what()); });
    try {
      work.wait();
    } catch (const Error& error) {
      throw retold(error, what(), mesh_.rank_of_peer(peer));
    }
  }
}

}  // namespace bimetal::parallel::pipeline
