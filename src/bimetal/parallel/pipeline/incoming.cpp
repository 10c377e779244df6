#include "bimetal/parallel/pipeline/incoming.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/comm/exchange.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/schedule/schedule.h"

namespace bimetal::parallel::pipeline {

std::uint64_t tag_of(const MessageName& name, int part) {
  auto tag = static_cast<std::uint64_t>(name.step);
  tag = tag << 12 | static_cast<std::uint64_t>(name.piece);
  static_assert(schedule::kMostMicroBatches == 1 << 16);
  tag = tag << 16 | static_cast<std::uint64_t>(name.micro_batch);
  tag = tag << 1 | static_cast<std::uint64_t>(name.forward);
  return tag << 6 | static_cast<std::uint64_t>(part);
}

comm::Scheme scheme_of_sent(comm::Scheme scheme, const MessageName& name,
                            const torch::Tensor& value, bool requires_grad) {
  if (name.forward && !requires_grad) return comm::Scheme::none;
  return scheme_of_value(scheme, value);
}

bool goes_by_card(const c10d::CardToCard* cards, int peer, const torch::Tensor& value,
                  comm::Scheme scheme) {
  return cards && scheme == comm::Scheme::none && value.numel() > 0 && cards->reaches(peer);
}

Error retold(const Error& error, const std::string& what, int rank) {
  const bool unnamed = !error.rank() && error.code() == ErrorCode::Timeout;
  return Error(error.code(), fmt::format("{}: {}", what, error.what()),
               unnamed ? std::optional(rank) : error.rank());
}

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
    auto& value = described->values[i];
    if (!value.defined()) continue;
    const auto scheme =
        scheme_of_sent(state->scheme, state->name, value, described->with_gradients[i]);
    value = state->room_for(value, scheme);
    if (scheme != comm::Scheme::none) codes[i] = room_for_code(scheme, value);
  }
  state->values = std::move(described->values);
  state->with_gradients = std::move(described->with_gradients);
  state->codes = std::move(codes);
  state->arriving.clear();
  for (std::size_t i = 0; i < state->values.size(); ++i) {
    const auto& room = state->codes[i].defined() ? state->codes[i] : state->values[i];
    if (!room.defined()) continue;
    const auto tag = tag_of(state->name, static_cast<int>(i));
    auto work = state->comes_by_card(i) ? state->cards->recv(room, state->peer, tag)
                                        : state->group.recv(tensor_buffer(room), state->peer, tag,
                                                            Deadline::after(comm::kPosted));
    state->arriving.push_back(keeping(std::move(work), room));
  }
  state->posted = true;
}

torch::Tensor Incoming::State::room_for(const torch::Tensor& value, comm::Scheme of_sent) const {
  if (goes_by_card(cards, peer, value, of_sent)) {
    return cards->room(value.sizes(), value.scalar_type());
  }
  return torch::empty(value.sizes(), value.scalar_type());
}

/// Of what room_for() has made room for.
bool Incoming::State::comes_by_card(std::size_t i) const {
  const auto scheme = codes[i].defined() ? this->scheme : comm::Scheme::none;
  return goes_by_card(cards, peer, values[i], scheme);
}

/// When the description has come: on a thread that may wait for the device's memory.
void Incoming::State::post_soon(const std::shared_ptr<State>& state) {
  {
    const std::lock_guard lock(state->mutex);
    if (state->cards && state->cards->reaches(state->peer)) {
      return state->cards->soon(state->peer, [state] { try_to_post(state); });
    }
  }
  try_to_post(state);
}

void Incoming::State::try_to_post(const std::shared_ptr<State>& state) noexcept {
  try {
    post(state);
  } catch (...) {
    // The next wait posts once more, and gets the error.
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
                     state->cards = nullptr;
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
    throw retold(error, awaited, mesh->rank_of_peer(peer));
  }
}

std::optional<task::Values> Incoming::wait() {
  if (!State::arrive(state_)) return std::nullopt;
  task::Values values;
  for (std::size_t i = 0; i < state_->values.size(); ++i) {
    auto value = state_->arrived(i);
    if (value.defined() && state_->comes_by_card(i)) state_->cards->hand_over(value);
    if (value.defined()) value = value.to(state_->device);
    if (state_->leaves && state_->with_gradients[i]) value.set_requires_grad(true);
    values.push_back(std::move(value));
  }
  return values;
}

std::optional<task::Values> Incoming::wait_on_host() {
  if (!State::arrive(state_)) return std::nullopt;
  for (std::size_t i = 0; i < state_->values.size(); ++i) {
    auto& value = state_->values[i];
    if (value.defined() && !value.is_cpu())
      value = torch::empty(value.sizes(), value.scalar_type());
    if (state_->leaves && state_->with_gradients[i]) value.set_requires_grad(true);
  }
  return state_->values;
}

}  // namespace bimetal::parallel::pipeline
