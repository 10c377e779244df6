#include "bimetal/parallel/server/link/message.h"

#include <fmt/format.h>

#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::parallel::server {
namespace {

constexpr std::uint32_t kMaxFacts = 65536;

template <typename Enum>
Enum checked(std::uint8_t value, Enum last, const char* what) {
  if (value >= 1 && value <= static_cast<std::uint8_t>(last)) return static_cast<Enum>(value);
  throw Error(ErrorCode::CorruptData, fmt::format("unknown {} {} in a message", what, value));
}

/// Each element takes at least `bytes_each`, so that a made-up count allocates nothing.
std::size_t checked_count(const WireReader& in, std::uint32_t count, std::size_t bytes_each) {
  if (count <= in.remaining() / bytes_each) return count;
  throw Error(ErrorCode::CorruptData,
              fmt::format("a message announces {} elements but is too short for them", count));
}

}  // namespace

std::string_view to_string(Role role) noexcept {
  switch (role) {
    case Role::server: return "server";
    case Role::reader: return "reader";
    case Role::worker: break;
  }
  return "worker";
}

Body encode(const Join& join) {
  WireWriter out;
  out.u8(static_cast<std::uint8_t>(join.role));
  out.i32(join.number);
  out.string(join.host);
  out.string(join.device);
  out.string(join.release);
  out.f64(join.samples_per_s);
  out.f64(join.step_seconds);
  out.u32(static_cast<std::uint32_t>(join.facts.size()));
  for (const auto& fact : join.facts) out.string(fact);
  return std::move(out).take();
}

Join decode_join(std::span<const std::byte> body) {
  WireReader in(body);
  Join join;
  join.role = checked(in.u8(), Role::reader, "role");
  join.number = in.i32();
  join.host = in.string();
  join.device = in.string();
  join.release = in.string();
  join.samples_per_s = in.f64();
  join.step_seconds = in.f64();
  const auto facts = in.u32();
  if (facts > kMaxFacts) throw Error(ErrorCode::CorruptData, "a join lists too many facts");
  join.facts.resize(checked_count(in, facts, 4));
  for (auto& fact : join.facts) fact = in.string();
  in.expect_end();
  return join;
}

Body encode(const Welcome& welcome) {
  WireWriter out;
  out.i32(welcome.number);
  out.u64(welcome.version);
  return std::move(out).take();
}

Welcome decode_welcome(std::span<const std::byte> body) {
  WireReader in(body);
  Welcome welcome;
  welcome.number = in.i32();
  welcome.version = in.u64();
  in.expect_end();
  return welcome;
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
  WireWriter out;
  out.u64(lease.id);
  out.u8(static_cast<std::uint8_t>(lease.work));
  out.i64(lease.epoch);
  out.i64(lease.offset);
  out.i64(lease.count);
  out.i64(lease.denominator);
  out.u64(lease.version);
  out.f64(lease.steps_ahead);
  return std::move(out).take();
}

Lease decode_lease(std::span<const std::byte> body) {
  WireReader in(body);
  Lease lease;
  lease.id = in.u64();
  lease.work = checked(in.u8(), Work::evaluate, "kind of work");
  lease.epoch = in.i64();
  lease.offset = in.i64();
  lease.count = in.i64();
  lease.denominator = in.i64();
  lease.version = in.u64();
  lease.steps_ahead = in.f64();
  in.expect_end();
  if (lease.epoch < 0 || lease.offset < 0 || lease.count < 1 || lease.denominator < 1 ||
      !(lease.steps_ahead >= 0)) {
    throw Error(ErrorCode::CorruptData, "a lease of no samples");
  }
  return lease;
}

Body encode(const Done& done) {
  WireWriter out;
  out.u64(done.version);
  out.f64(done.loss_sum);
  out.u32(static_cast<std::uint32_t>(done.metrics.size()));
  for (const auto metric : done.metrics) out.f64(metric);
  out.i64(done.weight);
  out.f64(done.compute_seconds);
  out.f64(done.communicate_seconds);
  out.f64(done.wait_seconds);
  out.u64(done.bytes_sent);
  return std::move(out).take();
}

Done decode_done(std::span<const std::byte> body) {
  WireReader in(body);
  Done done;
  done.version = in.u64();
  done.loss_sum = in.f64();
  const auto metrics = in.u32();
  done.metrics.resize(checked_count(in, metrics, 8));
  for (auto& metric : done.metrics) metric = in.f64();
  done.weight = in.i64();
  done.compute_seconds = in.f64();
  done.communicate_seconds = in.f64();
  done.wait_seconds = in.f64();
  done.bytes_sent = in.u64();
  in.expect_end();
  return done;
}

Body encode(const Apply& apply) {
  WireWriter out;
  out.f64(apply.learning_rate_scale);
  out.f64(apply.part);
  out.u32(static_cast<std::uint32_t>(apply.leases.size()));
  for (const auto lease : apply.leases) out.u64(lease);
  out.i64(apply.after.steps_done);
  out.i64(apply.after.epoch);
  out.i64(apply.after.offset);
  out.u32(static_cast<std::uint32_t>(apply.after.visited.size()));
  for (const auto& run : apply.after.visited) {
    out.i64(run.epoch);
    out.i64(run.offset);
    out.i64(run.count);
  }
  return std::move(out).take();
}

Apply decode_apply(std::span<const std::byte> body) {
  WireReader in(body);
  Apply apply;
  apply.learning_rate_scale = in.f64();
  apply.part = in.f64();
  if (!(apply.part > 0 && apply.part <= 1)) {
    throw Error(ErrorCode::CorruptData, "an update of no part of a step");
  }
  const auto leases = in.u32();
  apply.leases.resize(checked_count(in, leases, 8));
  for (auto& lease : apply.leases) lease = in.u64();
  apply.after.steps_done = in.i64();
  apply.after.epoch = in.i64();
  apply.after.offset = in.i64();
  const auto visited = in.u32();
  apply.after.visited.resize(checked_count(in, visited, 24));
  for (auto& run : apply.after.visited) {
    run.epoch = in.i64();
    run.offset = in.i64();
    run.count = in.i64();
  }
  in.expect_end();
  return apply;
}

}  // namespace bimetal::parallel::server
