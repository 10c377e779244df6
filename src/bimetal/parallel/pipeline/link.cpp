#include "bimetal/parallel/pipeline/link.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/parallel/tensor_buffer.h"

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
  comm::Group group;
  int peer = 0;
  MessageName name;
  torch::Device device{torch::kCPU};
  std::chrono::milliseconds timeout{};
  std::string awaited;  ///< for messages
  comm::Scheme scheme = comm::Scheme::none;
  double unit = 1;  ///< of shortened values

  Description description{};
  comm::Work described;

  std::mutex mutex;  ///< the description may come while somebody waits
  bool posted = false;
  bool nothing = false;
  task::Values values;
  std::vector<bool> with_gradients;
  task::Values codes;  ///< of those that come shortened
  std::vector<comm::Work> arriving;

  static void post(const std::shared_ptr<State>& state);
  void require_scheme(comm::Scheme sent) const;
  void wait_for(const comm::Work& work, Deadline deadline) const;
  torch::Tensor arrived(std::size_t i) const;
};

/// Receives the values as the description says. Once.
void Incoming::State::post(const std::shared_ptr<State>& state) {
  const std::lock_guard lock(state->mutex);
  if (state->posted) return;
  auto described = read_description(state->description);
  if (!described) {
    state->posted = state->nothing = true;
    return;
  }
  state->require_scheme(described->scheme);
  state->values = std::move(described->values);
  state->with_gradients = std::move(described->with_gradients);
  state->codes.resize(state->values.size());
  state->arriving.clear();
  for (std::size_t i = 0; i < state->values.size(); ++i) {
    auto room = state->values[i];
    if (!room.defined()) continue;
    const auto scheme = scheme_of_sent(state->scheme, state->name, room, state->with_gradients[i]);
    if (scheme != comm::Scheme::none) room = state->codes[i] = room_for_code(scheme, room);
    auto work =
        state->group.recv(tensor_buffer(room), state->peer,
                          tag_of(state->name, static_cast<int>(i)), Deadline::after(kPosted));
    state->arriving.push_back(keeping(std::move(work), room));
  }
  state->posted = true;
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
  if (!work.wait_until(deadline)) {
    throw Error(ErrorCode::Timeout,
                fmt::format("{} have not come within {} s: is that stage stuck, or far slower? "
                            "parallel.timeout_s sets how long to wait",
                            awaited, std::chrono::duration<double>(timeout).count()));
  }
  try {
    work.wait();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", awaited, error.what()), error.rank());
  }
}

std::optional<task::Values> Incoming::wait() {
  const auto deadline = Deadline::after(state_->timeout);
  state_->wait_for(state_->described, deadline);
  State::post(state_);
  if (state_->nothing) return std::nullopt;
  for (const auto& work : state_->arriving) state_->wait_for(work, deadline);
  task::Values values;
  for (std::size_t i = 0; i < state_->values.size(); ++i) {
    auto value = state_->arrived(i);
    if (value.defined()) value = value.to(state_->device);
    if (state_->with_gradients[i]) value.set_requires_grad(true);
    values.push_back(std::move(value));
  }
  return values;
}

Link::Link(const Mesh& mesh, const torch::Device& device, std::chrono::milliseconds timeout,
           const ActivationCompression& compression)
    : mesh_(mesh),
      group_(mesh.pipeline()),
      device_(device),
      timeout_(timeout),
      schemes_(schemes_of_peers(mesh, compression)) {}

// A power of 2, so that nothing is rounded by it; float16 loses what is below 2^-25.
void Link::begin_step(double loss_factor) {
  int exponent = 0;
  std::frexp(loss_factor, &exponent);
  gradient_unit_ = std::ldexp(1.0, exponent);
}

std::shared_ptr<Incoming::State> Link::await(int peer, const MessageName& name) const {
  auto state = std::make_shared<Incoming::State>();
  state->group = group_;
  state->peer = peer;
  state->name = name;
  state->device = device_;
  state->timeout = timeout_;
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
    if (error) return;
    try {
      Incoming::State::post(state);
    } catch (const std::exception&) {
      // Whoever waits posts once more, and gets the error.
    }
  });
  return Incoming(std::move(state));
}

Incoming Link::expect_like(int peer, const MessageName& name, const task::Values& like) {
  auto state = await(peer, name);
  state->description = describe(like, state->scheme);
  Incoming::State::post(state);
  state->with_gradients.assign(like.size(), false);
  return Incoming(std::move(state));
}

void Link::send(const Peers& peers, const MessageName& name, const task::Values& values) {
  if (peers.empty()) return;
  send_description(peers, name, describe(values, scheme_of(peers.front())));
  send_like(peers, name, values);
}

void Link::send_nothing(const Peers& peers, const MessageName& name) {
  send_description(peers, name, describe_nothing());
}

void Link::send_description(const Peers& peers, const MessageName& name, const Description& sent) {
  const auto description = std::make_shared<const Description>(sent);
  for (const int peer : peers) {
    sent_.push_back(keeping(group_.send(comm::buffer(std::span(*description)), peer,
                                        tag_of(name, kDescription), Deadline::after(kPosted)),
                            description));
  }
}

// Shortened once, whoever gets it: what is lost by that goes with the next one.
void Link::send_like(const Peers& peers, const MessageName& name, const task::Values& values) {
  for (std::size_t i = 0; i < values.size() && !peers.empty(); ++i) {
    if (!values[i].defined()) continue;
    auto host = on_host(values[i]);
    const auto scheme =
        scheme_of_sent(scheme_of(peers.front()), name, host, values[i].requires_grad());
    if (scheme != comm::Scheme::none) host = shortened(scheme, name, i, host);
    for (const int peer : peers) {
      bytes_sent_ += static_cast<std::int64_t>(host.nbytes());
      sent_.push_back(
          keeping(group_.send(tensor_buffer(host), peer, tag_of(name, static_cast<int>(i)),
                              Deadline::after(kPosted)),
                  host));
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
  const auto deadline = Deadline::after(timeout_);
  for (const auto& work : std::exchange(sent_, {})) {
    if (!work.wait_until(deadline)) {
      throw Error(
          ErrorCode::Timeout,
          fmt::format("{}: what it has sent to the stages beside it was not taken within "
                      "{} s: is one of them stuck? parallel.timeout_s sets how long to wait",
                      mesh_.own_name(), std::chrono::duration<double>(timeout_).count()));
    }
    work.wait();
  }
}

}  // namespace bimetal::parallel::pipeline
