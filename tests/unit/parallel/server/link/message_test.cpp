#include "bimetal/parallel/server/link/message.h"

#include <gtest/gtest.h>

#include <random>

#include "bimetal/base/wire.h"
#include "bimetal/parallel/server/events.h"

namespace bimetal::parallel::server {
namespace {

StepEvent some_step() {
  StepEvent step;
  step.step = {4, 1, 32, true};
  step.loss_sum = 2.5;
  step.weight = 31;
  step.shares = {{2, 20}};
  auto& worker = step.workers.emplace_back();
  worker.number = 2;
  worker.host = "mac";
  worker.here = false;
  worker.lost = true;
  worker.samples = 5;
  return step;
}

TEST(ServerMessage, BodiesComeBack) {
  Join join{Role::worker, 3, "mac", "mps", "1.0", 12.5, 0.5, {"train.seed = 1", "w [3] float32"}};
  const auto joined = decode_join(encode(join));
  EXPECT_EQ(joined.number, 3);
  EXPECT_EQ(joined.facts, join.facts);
  EXPECT_EQ(joined.samples_per_s, 12.5);
  const auto lease = decode_lease(encode(Lease{7, Work::evaluate, 1, 2, 3, 4, 5, 1.5}));
  EXPECT_EQ(lease.id, 7u);
  EXPECT_EQ(lease.work, Work::evaluate);
  EXPECT_EQ(lease.denominator, 4);
  EXPECT_EQ(lease.version, 5u);
  EXPECT_EQ(lease.steps_ahead, 1.5);
  const Position after{3, 1, 32, {{1, 40, 8}}};
  const auto apply = decode_apply(encode(Apply{0.25, 0.5, {9, 8}, after}));
  EXPECT_EQ(apply.learning_rate_scale, 0.25);
  EXPECT_EQ(apply.part, 0.5);
  EXPECT_EQ(apply.leases, (std::vector<std::uint64_t>{9, 8}));
  EXPECT_EQ(apply.after, after);
  const auto step = some_step();
  const auto recorded = decode_step_record(encode(step));
  EXPECT_EQ(recorded.step.number, 4);
  EXPECT_TRUE(recorded.step.ends_epoch);
  EXPECT_EQ(recorded.shares, step.shares);
  EXPECT_EQ(recorded.workers.at(0).host, "mac");
  EXPECT_FALSE(recorded.workers.at(0).here);
  EXPECT_TRUE(recorded.workers.at(0).lost);
  EXPECT_EQ(recorded.workers.at(0).samples, 5);
  const auto error = decode_refused(encode(Error(ErrorCode::CallMismatch, "another model", 4)));
  EXPECT_EQ(error.code(), ErrorCode::CallMismatch);
  EXPECT_EQ(error.rank(), 4);
  EXPECT_STREQ(error.what(), "another model");
  EXPECT_EQ(decode_done(encode(Done{.version = 6, .loss_sum = 1.5})).version, 6u);
  EXPECT_EQ(decode_welcome(encode(Welcome{2, 11})).version, 11u);
  const auto said = decode_said(encode(Said{{{1.5, "warning", "slow"}, {2, "output", "é"}}}));
  ASSERT_EQ(said.lines.size(), 2u);
  EXPECT_EQ(said.lines[0].at, 1.5);
  EXPECT_EQ(said.lines[0].kind, "warning");
  EXPECT_EQ(said.lines[1].text, "é");
}

TEST(ServerMessage, AMadeUpCountAllocatesNothing) {
  WireWriter apply;
  apply.f64(1);
  apply.u32(0xffffffff);
  EXPECT_THROW(decode_apply(apply.bytes()), Error);
  EXPECT_THROW(decode_lease(encode(Lease{.count = 0})), Error);
  EXPECT_THROW(decode_lease(encode(Lease{.offset = -1, .count = 1})), Error);
  EXPECT_THROW(decode_said(encode(Said{{{0, "output", std::string(2000, 'x')}}})), Error);
}

using Decode = void (*)(const Body&);

template <auto decode>
void decode_as(const Body& body) {
  decode(body);
}

// Cut short it is refused; altered bytes end in CorruptData or in other values.
TEST(ServerMessage, DamagedBodiesAreRefused) {
  const Join join{Role::server, 1, "host", "cpu", "1.0", 0, 0, {"a", "b"}};
  const std::vector<std::pair<Body, Decode>> bodies{
      {encode(join), decode_as<decode_join>},
      {encode(Lease{.count = 1}), decode_as<decode_lease>},
      {encode(Done{}), decode_as<decode_done>},
      {encode(Apply{1, 1, {1, 2}, {}}), decode_as<decode_apply>},
      {encode(some_step()), decode_as<decode_step_record>},
      {encode(Welcome{}), decode_as<decode_welcome>},
      {encode(Said{{{0, "output", "text"}}}), decode_as<decode_said>},
      {encode(Error(ErrorCode::NotFinite, "why")), decode_as<decode_refused>}};
  std::mt19937 random(1);
  for (const auto& [whole, decode] : bodies) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_THROW(decode(Body(whole.begin(), whole.begin() + static_cast<long>(size))), Error);
    }
    for (int i = 0; i < 500; ++i) {
      Body altered = whole;
      altered[random() % altered.size()] = static_cast<std::byte>(random());
      try {
        decode(altered);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::CorruptData);
      }
    }
  }
}

}  // namespace
}  // namespace bimetal::parallel::server
