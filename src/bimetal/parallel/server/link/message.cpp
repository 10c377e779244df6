#include "bimetal/parallel/server/link/message.h"

#include <algorithm>
#include <utility>

#include "bimetal/base/wire_fields.h"

namespace bimetal::parallel::server {

std::string_view to_string(Role role) noexcept {
  switch (role) {
    case Role::server: return "server";
    case Role::reader: return "reader";
    case Role::worker: break;
  }
  return "worker";
}

template <typename Wire>
void fields(Wire& wire, Join& join) {
  wire.within(Role::worker, join.role, Role::reader);
  wire(join.number, join.host, join.device, join.release, join.samples_per_s, join.step_seconds,
       join.facts);
}

template <typename Wire>
void fields(Wire& wire, Welcome& welcome) {
  wire(welcome.number, welcome.version);
}

template <typename Wire>
void fields(Wire& wire, Lease& lease) {
  wire(lease.id);
  wire.within(Work::train, lease.work, Work::evaluate);
  wire(lease.epoch, lease.offset, lease.count, lease.denominator, lease.version, lease.steps_ahead);
}

template <typename Wire>
void fields(Wire& wire, Done& done) {
  wire(done.version, done.loss_sum, done.metrics, done.weight, done.compute_seconds,
       done.communicate_seconds, done.wait_seconds, done.bytes_sent);
}

template <typename Wire>
void fields(Wire& wire, SampleRun& run) {
  wire(run.epoch, run.offset, run.count);
}

template <typename Wire>
void fields(Wire& wire, Apply& apply) {
  auto& after = apply.after;
  wire(apply.learning_rate_scale, apply.part, apply.leases, after.steps_done, after.epoch,
       after.offset, after.visited);
}

template <typename Wire>
void fields(Wire& wire, Said& said) {
  wire(said.lines);
}

Body encode(const Join& join) {
  return write_fields(join);
}
Join decode_join(std::span<const std::byte> body) {
  return read_fields<Join>(body);
}

Body encode(const Welcome& welcome) {
  return write_fields(welcome);
}
Welcome decode_welcome(std::span<const std::byte> body) {
  return read_fields<Welcome>(body);
}

Body encode(const Error& error) {
  WireWriter out;
  write_error(out, error, kMaxBodyBytes / 2);
  return std::move(out).take();
}
Error decode_refused(std::span<const std::byte> body) {
  return read_error(body);
}

Body encode(const Lease& lease) {
  return write_fields(lease);
}
Lease decode_lease(std::span<const std::byte> body) {
  const auto lease = read_fields<Lease>(body);
  if (lease.epoch < 0 || lease.offset < 0 || lease.count < 1 || lease.denominator < 1 ||
      !(lease.steps_ahead >= 0)) {
    throw Error(ErrorCode::CorruptData, "a lease of no samples");
  }
  return lease;
}

Body encode(const Done& done) {
  return write_fields(done);
}
Done decode_done(std::span<const std::byte> body) {
  return read_fields<Done>(body);
}

Body encode(const Apply& apply) {
  return write_fields(apply);
}
Apply decode_apply(std::span<const std::byte> body) {
  auto apply = read_fields<Apply>(body);
  if (apply.part > 0 && apply.part <= 1) return apply;
  throw Error(ErrorCode::CorruptData, "an update of no part of a step");
}

Body encode(const Said& said) {
  return write_fields(said);
}
Said decode_said(std::span<const std::byte> body) {
  constexpr std::size_t kMost = 2 * progress::RankLog::kMostOfLine;
  auto said = read_fields<Said>(body);
  const auto fits = [](const auto& line) { return line.kind.size() + line.text.size() <= kMost; };
  if (std::ranges::all_of(said.lines, fits)) return said;
  throw Error(ErrorCode::CorruptData, "a line of a log that is longer than they are");
}

}  // namespace bimetal::parallel::server
