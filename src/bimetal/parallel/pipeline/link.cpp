#include "bimetal/parallel/pipeline/link.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <cmath>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/schedule/schedule.h"

namespace bimetal::parallel::pipeline {
namespace {

// What is posted ahead may be long in coming: who waits for it says how long that may take.
constexpr std::chrono::hours kPosted{24 * 7};

constexpr int kDescription = 63;  // parts of a message; values count from 0

std::uint64_t tag_of(const MessageName& name, int part) {
  auto tag = static_cast<std::uint64_t>(name.step);
  tag = tag << 12 | static_cast<std::uint64_t>(name.piece);
  static_assert(schedule::kMostMicroBatches == 1 << 16);
  tag = tag << 16 | static_cast<std::uint64_t>(name.micro_batch);
  tag = tag << 1 | static_cast<std::uint64_t>(name.forward);
  return tag << 6 | static_cast<std::uint64_t>(part);
}

torch::Tensor on_host(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kCPU).contiguous();
}

/// By which scheme a value of this message goes over a link of `scheme`. What no gradient flows
/// through may be a mask, of which nothing may be lost.
comm::Scheme scheme_of_sent(comm::Scheme scheme, const MessageName& name,
                            const torch::Tensor& value, bool requires_grad) {
  if (name.forward && !requires_grad) return comm::Scheme::none;
  return scheme_of_value(scheme, value);
}

/// Keeps tensors alive until the operation that uses them is done.
template <typename Kept>
comm::Work keeping(comm::Work work, Kept kept) {
  work.on_done([kept = std::move(kept)](std::exception_ptr) {});
  return work;
}

}  // namespace

struct Incoming::State {
  const Mesh* mesh = nullptr;
  comm::Group group;
  int peer = 0;
  MessageName name;
  torch::Device device{torch::kCPU};
  Patience patience;
  std::string awaited;  ///< for messages
  comm::Scheme scheme = comm::Scheme::none;
  double unit = 1;  ///< of shortened values

  Description description{};
  comm::Work described;

  std::mutex mutex;  ///< the description may come while somebody waits
  bool posted = false;
  bool nothing = false;
  bool leaves = true;  ///< those that require gradients; else they are gradients themselves
  task::Values values;
  std::vector<bool> with_gradients;
  task::Values codes;  ///< of those that come shortened
  std::vector<comm::Work> arriving;

  static void post(const std::shared_ptr<State>& state);
  static void try_to_post(const std::shared_ptr<State>& state) noexcept;
  static bool arrive(const std::shared_ptr<State>& state);
  static Incoming waited_for(std::shared_ptr<State> state);
  void require_scheme(comm::Scheme sent) const;
  void wait_for(const comm::Work& work, Deadline deadline) const;
  torch::Tensor arrived(std::size_t i) const;
};

/// Receives the values as the description says. Once; all memory is there before the first receive,
/// so that after a failure it can be tried again.
void Incoming::State::post(const std::shared_ptr<State>& state) {
  const std::lock_guard lock(state->mutex);
  if (state->posted) return;
  auto described = read_description(state->description);
  if (!described) {
    state->posted = state->nothing = true;
    return;
  }
  state->require_scheme(described->scheme);
  task::Values codes(described->values.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto& value = described->values[i];
    if (!value.defined()) continue;
    const auto scheme =
        scheme_of_sent(state->scheme, state->name, value, described->with_gradients[i]);
    if (scheme != comm::Scheme::none) codes[i] = room_for_code(scheme, value);
  }
  state->values = std::move(described->values);
  state->with_gradients = std::move(described->with_gradients);
  state->codes = std::move(codes);
  state->arriving.clear();
  for (std::size_t i = 0; i < state->values.size(); ++i) {
    const auto& room = state->codes[i].defined() ? state->codes[i] : state->values[i];
    if (!room.defined()) continue;
    auto work =
        state->group.recv(tensor_buffer(room), state->peer,
                          tag_of(state->name, static_cast<int>(i)), Deadline::after(kPosted));
    state->arriving.push_back(keeping(std::move(work), room));
  }
  state->posted = true;
}

void Incoming::State::try_to_post(const std::shared_ptr<State>& state) noexcept {
  try {
    post(state);
  } catch (...) {
    // Whoever waits posts once more, and gets the error.
  }
}

/// Once nobody waits for it any more nothing is received: a callback that still comes, on the
/// group's own thread, must not be the group's last owner, which joins that thread.
Incoming Incoming::State::waited_for(std::shared_ptr<State> state) {
  auto* const waiting = state.get();
  return Incoming({waiting, [state = std::move(state)](State*) {
                     comm::Group group;  // goes behind the lock, which the callback may wait for
                     const std::lock_guard lock(state->mutex);
                     state->posted = state->nothing = true;
                     group = std::exchange(state->group, {});
                   }});
}

/// Blocks until they are here. False if there are none.
bool Incoming::State::arrive(const std::shared_ptr<State>& state) {
  const auto deadline = Deadline::after(state->patience.timeout);
  state->wait_for(state->described, deadline);
  post(state);
  if (state->nothing) return false;
  for (const auto& work : state->arriving) state->wait_for(work, deadline);
  return true;
}

void Incoming::State::require_scheme(comm::Scheme sent) const {
  if (sent == scheme) return;
  throw Error(ErrorCode::CallMismatch,
              fmt::format("{} come with compression.activations = \"{}\", and are awaited with "
                          "\"{}\": give every rank the same, and the same compression.links",
                          awaited, to_string(sent), to_string(scheme)));
}

torch::Tensor Incoming::State::arrived(std::size_t i) const {
  const auto& value = values[i];
  if (!codes[i].defined()) return value;
  auto floats = decode_tensor(scheme, codes[i], value);
  if (unit != 1) floats.mul_(unit);
  return floats.to(value.scalar_type());
}

void Incoming::State::wait_for(const comm::Work& work, Deadline deadline) const {
  wait_for_peer({*mesh, peer, name.step}, patience, work, deadline,
                [&] { return fmt::format("{} have not come", awaited); });
  try {
    work.wait();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", awaited, error.what()), error.rank());
  }
}

std::optional<task::Values> Incoming::wait() {
  if (!State::arrive(state_)) return std::nullopt;
  task::Values values;
  for (std::size_t i = 0; i < state_->values.size(); ++i) {
    auto value = state_->arrived(i);
    if (value.defined()) value = value.to(state_->device);
    if (state_->leaves && state_->with_gradients[i]) value.set_requires_grad(true);
    values.push_back(std::move(value));
  }
  return values;
}

std::optional<task::Values> Incoming::wait_on_host() {
  if (!State::arrive(state_)) return std::nullopt;
  for (std::size_t i = 0; i < state_->values.size(); ++i) {
    if (state_->leaves && state_->with_gradients[i]) state_->values[i].set_requires_grad(true);
  }
  return state_->values;
}

Link::Link(const Mesh& mesh, const torch::Device& device, const Patience& patience,
           const ActivationCompression& compression)
    : mesh_(mesh),
      group_(mesh.pipeline()),
      device_(device),
      patience_(patience),
      schemes_(schemes_of_peers(mesh, compression)) {}

// A power of 2, so that nothing is rounded by it; float16 loses what is below 2^-25.
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
  if (!name.forward) state->unit = gradient_unit_;
  state->awaited = fmt::format("{}: the {} of micro-batch {} from {}", mesh_.own_name(),
                               name.forward ? "activations" : "gradients", name.micro_batch,
                               mesh_.name_of_peer(peer));
  return state;
}

Incoming Link::expect(int peer, const MessageName& name) {
  auto state = await(peer, name);
  state->described = group_.recv(comm::buffer(std::span(state->description)), peer,
                                 tag_of(name, kDescription), Deadline::after(kPosted));
  state->described.on_done([state](std::exception_ptr error) {
    if (!error) Incoming::State::try_to_post(state);
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
  const auto hosts = prepared(peers, name, values);
  send_description(peers, name, std::move(description));
  send_prepared(peers, name, hosts);
}

void Link::send_nothing(const Peers& peers, const MessageName& name) {
  send_description(peers, name, std::make_shared<const Description>(describe_nothing()));
}

void Link::send_description(const Peers& peers, const MessageName& name,
                            std::shared_ptr<const Description> description) {
  step_ = name.step;
  for (const int peer : peers) {
    auto work = group_.send(comm::buffer(std::span(*description)), peer, tag_of(name, kDescription),
                            Deadline::after(kPosted));
    sent_.push_back({peer, keeping(std::move(work), description)});
  }
}

void Link::send_like(const Peers& peers, const MessageName& name, const task::Values& values) {
  if (peers.empty()) return;
  send_prepared(peers, name, prepared(peers, name, values));
}

void Link::send_zeros_like(const Peers& peers, const MessageName& name, const task::Values& like) {
  if (peers.empty()) return;
  std::vector<torch::Tensor> zeros(like.size());
  for (std::size_t i = 0; i < like.size(); ++i) {
    const auto& value = like[i];
    if (!value.defined()) continue;
    const auto scheme = scheme_of_sent(scheme_of(peers.front()), name, value, true);
    if (scheme != comm::Scheme::none) {
      zeros[i] = room_for_code(scheme, value).zero_();
    } else if (value.is_cpu() && value.is_contiguous()) {
      zeros[i] = value.detach().zero_();
    } else {
      zeros[i] = torch::zeros(value.sizes(), value.scalar_type());
    }
  }
  send_prepared(peers, name, zeros);
}

std::vector<torch::Tensor> Link::prepared(const Peers& peers, const MessageName& name,
                                          const task::Values& values) {
  std::vector<torch::Tensor> hosts(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].defined()) continue;
    hosts[i] = on_host(values[i]);
    const auto scheme =
        scheme_of_sent(scheme_of(peers.front()), name, hosts[i], values[i].requires_grad());
    if (scheme != comm::Scheme::none) hosts[i] = shortened(scheme, name, i, hosts[i]);
  }
  return hosts;
}

void Link::send_prepared(const Peers& peers, const MessageName& name,
                         const std::vector<torch::Tensor>& hosts) {
  step_ = name.step;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const auto& host = hosts[i];
    if (!host.defined()) continue;
    for (const int peer : peers) {
      bytes_sent_ += static_cast<std::int64_t>(host.nbytes());
      auto work = group_.send(tensor_buffer(host), peer, tag_of(name, static_cast<int>(i)),
                              Deadline::after(kPosted));
      sent_.push_back({peer, keeping(std::move(work), host)});
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
      throw Error(error.code(), fmt::format("{}: {}", what(), error.what()), error.rank());
    }
  }
}

}  // namespace bimetal::parallel::pipeline
