#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/c10d/backend_error.h"
#include "unit/c10d/backend_ranks.h"

namespace bimetal::testing {
namespace {

using ::c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;

constexpr int kRanks = 3;

at::Tensor all_reduced(const BackendPtr& backend, const at::Tensor& tensor, const ReduceOp& op) {
  Tensors list{tensor};
  ::c10d::AllreduceOptions options;
  options.reduceOp = op;
  backend->allreduce(list, options)->wait();
  return tensor;
}

TEST(BackendCollectives, AllReduceOfEveryType) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    for (const auto type :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kShort, at::kInt,
          at::kLong, at::kByte, at::kComplexFloat, at::kComplexDouble}) {
      const auto got =
          all_reduced(backend, at::full({5}, backend->getRank() + 1, type), ReduceOp::SUM);
      EXPECT_TRUE(at::equal(got, at::full({5}, 6, type))) << type;
    }
  });
}

TEST(BackendCollectives, AllReduceOfEveryOperation) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const auto reduced = [&](const ReduceOp& op) {
      return all_reduced(backend, at::full({2}, backend->getRank() + 1.0), op)[0].item<double>();
    };
    EXPECT_EQ(reduced(ReduceOp::SUM), 6);
    EXPECT_EQ(reduced(ReduceOp::AVG), 2);
    EXPECT_EQ(reduced(ReduceOp::MIN), 1);
    EXPECT_EQ(reduced(ReduceOp::MAX), 3);
    EXPECT_EQ(reduced(ReduceOp::PRODUCT), 6);
    EXPECT_EQ(reduced(::c10d::makePreMulSum(0.5)), 3);
    EXPECT_EQ(reduced(::c10d::makePreMulSum(at::tensor({2.0f}))), 12);
  });
}

TEST(BackendCollectives, ReductionsOfBoolMeanAnyAndAll) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const bool last = backend->getRank() == kRanks - 1;
    EXPECT_TRUE(all_reduced(backend, at::full({1}, last, at::kBool), ReduceOp::SUM).item<bool>());
    EXPECT_FALSE(all_reduced(backend, at::full({1}, last, at::kBool), ReduceOp::BAND).item<bool>());
  });
}

TEST(BackendCollectives, IntegersAreReducedByBits) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const int rank = backend->getRank();
    for (const auto type : {at::kByte, at::kInt, at::kLong}) {
      const auto mine = [&] { return at::tensor({8 | 1 << rank, 3 ^ rank, 7}).to(type).t(); };
      const auto expect = [&](const at::Tensor& got, const std::vector<std::int64_t>& values) {
        EXPECT_EQ(got.scalar_type(), type);
        EXPECT_TRUE(got.to(at::kLong).equal(at::tensor(values))) << got;
      };
      expect(all_reduced(backend, mine(), ReduceOp::BAND), {8, 0, 7});
      expect(all_reduced(backend, mine(), ReduceOp::BOR), {15, 3, 7});
      expect(all_reduced(backend, mine(), ReduceOp::BXOR), {8 ^ 7, 3 ^ 2 ^ 1, 7});
      std::vector<at::Tensor> list{mine()};
      ::c10d::ReduceOptions to_one;
      to_one.reduceOp = ReduceOp::BOR;
      to_one.rootRank = 1;
      backend->reduce(list, to_one)->wait();
      expect(list[0], rank == 1 ? std::vector<std::int64_t>{15, 3, 7}
                                : std::vector<std::int64_t>{8 | 1 << rank, 3 ^ rank, 7});
    }
    EXPECT_EQ(
        all_reduced(backend, at::full({1}, rank != 1, at::kBool), ReduceOp::BXOR).item<bool>(),
        false);
  });
  run_backends(2, [](const BackendPtr& backend) {
    const auto op = backend->getRank() == 0 ? ReduceOp::BAND : ReduceOp::BOR;
    EXPECT_THROW(all_reduced(backend, at::ones({2}, at::kInt), op), c10d::BackendError);
  });
}

TEST(BackendCollectives, NoTimeAtAllIsNotTheGroupsTimeout) {
  run_backends(2, [](const BackendPtr& backend) {
    if (backend->getRank() == 1) return;  // it never comes
    std::vector<at::Tensor> list{at::ones({2})};
    ::c10d::AllreduceOptions options;
    options.timeout = std::chrono::milliseconds(0);
    try {
      backend->allreduce(list, options)->wait();
      ADD_FAILURE() << "done without the other rank";
    } catch (const c10d::BackendError& error) {
      EXPECT_EQ(error.code(), ErrorCode::Timeout) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr("within 0 s"));
    }
  });
}

TEST(BackendCollectives, WhatCannotBeReducedIsRefusedByName) {
  run_backends(2, [](const BackendPtr& backend) {
    try {
      all_reduced(backend, at::ones({2}, at::kComplexFloat), ReduceOp::MAX);
      FAIL() << "no error";
    } catch (const c10d::BackendError& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unsupported);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("MAX"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("ComplexFloat"));
    }
    // The group is as good as before.
    EXPECT_EQ(all_reduced(backend, at::ones({1}), ReduceOp::SUM).item<float>(), 2);
  });
}

TEST(BackendCollectives, StridedTensorsAndLeavesThatRequireGradients) {
  run_backends(2, [](const BackendPtr& backend) {
    const auto whole = at::arange(6, at::kFloat).reshape({2, 3});
    const auto view = whole.t();  // not contiguous
    all_reduced(backend, view, ReduceOp::SUM);
    EXPECT_TRUE(at::equal(whole, at::arange(6, at::kFloat).reshape({2, 3}) * 2));
    auto leaf = at::ones({4, 2}).t().requires_grad_();
    all_reduced(backend, leaf, ReduceOp::SUM);
    EXPECT_TRUE(at::equal(leaf.detach(), at::full({2, 4}, 2.0)));
  });
}

TEST(BackendCollectives, InputsStayAsTheyAre) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const int rank = backend->getRank();
    Tensors reduced{at::full({4}, rank + 1.0)};
    ::c10d::ReduceOptions to_one;
    to_one.rootRank = 1;
    backend->reduce(reduced, to_one)->wait();
    EXPECT_TRUE(at::equal(reduced[0], at::full({4}, rank == 1 ? 6.0 : rank + 1.0)));

    auto input = at::arange(2 * kRanks, at::kDouble) + rank;
    const auto before = input.clone();
    auto output = at::empty({2}, at::kDouble);
    backend->_reduce_scatter_base(output, input, {})->wait();
    EXPECT_TRUE(at::equal(input, before));
    EXPECT_TRUE(at::equal(output, (at::arange(2, at::kDouble) + 2 * rank) * kRanks + 3));
  });
}

TEST(BackendCollectives, AllGatherOfUnlikeSizes) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const int rank = backend->getRank();
    Tensors input{at::full({rank + 1}, rank)};
    std::vector<Tensors> outputs(1);
    for (int r = 0; r < kRanks; ++r) outputs[0].push_back(at::empty({r + 1}, input[0].options()));
    backend->allgather(outputs, input, {})->wait();
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_TRUE(at::equal(outputs[0][static_cast<std::size_t>(r)], at::full({r + 1}, r)));
    }
  });
}

TEST(BackendCollectives, AllToAllWithUnequalSplits) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const int rank = backend->getRank();
    // Rank r sends j + 1 rows of complex pairs to rank j.
    auto input = at::full({6, 2}, rank, at::kComplexFloat);
    auto output = at::empty({(rank + 1) * kRanks, 2}, at::kComplexFloat);
    std::vector<std::int64_t> sent{1, 2, 3};
    std::vector<std::int64_t> received(kRanks, rank + 1);
    backend->alltoall_base(output, input, received, sent, {})->wait();
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_TRUE(at::equal(output.narrow(0, r * (rank + 1), rank + 1),
                            at::full({rank + 1, 2}, r, at::kComplexFloat)));
    }
    std::vector<std::int64_t> wrong{1, 1, 1};
    EXPECT_THROW(backend->alltoall_base(output, input, received, wrong, {}), c10d::BackendError);
  });
}

TEST(BackendCollectives, TheFutureHasTheResultAndTheWorkItsTime) {
  run_backends(2, [](const BackendPtr& backend) {
    Tensors list{at::ones({1 << 16})};
    const auto work = backend->allreduce(list, {});
    const auto future = work->getFuture();
    const auto twice = future->then(
        [](c10::ivalue::Future& done) { return c10::IValue(done.value().toTensorVector()[0] * 2); },
        c10::TensorType::get());
    twice->waitAndThrow();
    EXPECT_EQ(twice->value().toTensor()[7].item<float>(), 4);
    work->wait();
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
    EXPECT_GE(work->getDuration(), 0);
    EXPECT_EQ(work->getSequencenumber(), backend->getSequenceNumberForGroup());
  });
}

TEST(BackendCollectives, CallsInBetweenBecomeOneWork) {
  run_backends(2, [](const BackendPtr& backend) {
    const int other = 1 - backend->getRank();
    Tensors sent{at::full({3}, backend->getRank())};
    Tensors received{at::empty({3}, sent[0].options())};
    backend->startCoalescing();
    backend->recv(received, other, 7);
    backend->send(sent, other, 7);
    backend->endCoalescing()->wait();
    EXPECT_TRUE(at::equal(received[0], at::full({3}, other)));
    backend->startCoalescing();
    EXPECT_TRUE(backend->endCoalescing()->wait());
    EXPECT_THROW(backend->endCoalescing(), c10d::BackendError);
  });
}

}  // namespace
}  // namespace bimetal::testing
