#include "bimetal/comm/call.h"

#include <gtest/gtest.h>

#include "bimetal/comm/mailbox/inbox.h"

namespace bimetal::comm {
namespace {

net::FrameHeader reduction(std::uint64_t sequence, std::uint64_t count) {
  return Call{.operation = Operation::all_reduce,
              .dtype = DType::float32,
              .reduce_op = ReduceOp::sum,
              .count = count,
              .sequence = sequence}
      .header_to(0, 1);
}

TEST(Call, BytesFromAStrangerAreDescribedToo) {
  auto header = reduction(7, 10);
  header.operation = header.dtype = header.reduce_op = 99;
  EXPECT_EQ(describe(header), "unknown operation(unknown reduction) of 10 unknown type");
}

// Values that may decide something are sealed. Long floating-point ones are left to TCP.
TEST(Call, BytesAndIntegersAreSealed) {
  for (const auto dtype : {DType::uint8, DType::int8, DType::int16, DType::int32, DType::int64}) {
    EXPECT_TRUE(Call{.dtype = dtype}.header_to(0, 1).sealed) << to_string(dtype);
  }
  for (const auto dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
    EXPECT_FALSE(Call{.dtype = dtype}.header_to(0, 1).sealed) << to_string(dtype);
  }
}

TEST(Call, OfAnotherEpochIsAnotherCall) {
  Call call{.operation = Operation::barrier, .epoch = 3};
  const auto now = call.header_to(0, 1);
  call.epoch = 2;
  const auto before = call.header_to(0, 1);
  EXPECT_EQ(now.epoch, 3u);
  EXPECT_FALSE(same_call(now, before));
  EXPECT_EQ(mismatch(1, before, 0, now).message,
            "rank 1 called barrier in membership epoch 2, but rank 0 called barrier in 3");
}

TEST(CallLog, KnowsWhatIsPastAndWhatIsToCome) {
  using Standing = CallLog::Standing;
  CallLog log;
  EXPECT_EQ(log.standing(0), Standing::future);
  for (std::uint64_t sequence = 0; sequence < 3; ++sequence) log.open({.sequence = sequence});
  EXPECT_EQ(log.standing(2), Standing::running);
  log.finish(1);
  EXPECT_EQ(log.standing(0), Standing::running);
  EXPECT_EQ(log.standing(1), Standing::finished);
  EXPECT_EQ(log.call(1).sequence, 1u);
  EXPECT_EQ(log.standing(3), Standing::future);
}

TEST(CallLog, ForgetsOnlyWhatIsFinishedAndOld) {
  using Standing = CallLog::Standing;
  CallLog log;
  const std::uint64_t calls = 3 * CallLog::kRemembered;
  for (std::uint64_t sequence = 0; sequence < calls; ++sequence) {
    log.open({.sequence = sequence});
    if (sequence != 1) log.finish(sequence);
  }
  // The first unfinished call is kept, with all that came after it.
  EXPECT_EQ(log.standing(0), Standing::forgotten);
  EXPECT_EQ(log.standing(1), Standing::running);
  EXPECT_EQ(log.call(2).sequence, 2u);
  log.finish(1);
  EXPECT_EQ(log.standing(1), Standing::forgotten);
  EXPECT_EQ(log.standing(calls - CallLog::kRemembered), Standing::finished);
}

}  // namespace
}  // namespace bimetal::comm
