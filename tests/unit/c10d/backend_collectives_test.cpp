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

TEST(BackendCollectives, ReductionsOfBoolMeanAnyAndAll) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const bool last = backend->getRank() == kRanks - 1;
    EXPECT_TRUE(all_reduced(backend, at::full({1}, last, at::kBool), ReduceOp::SUM).item<bool>());
    EXPECT_FALSE(all_reduced(backend, at::full({1}, last, at::kBool), ReduceOp::BAND).item<bool>());
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

// Of what collectives give tests/python/test_collectives.py has a row for each type, operation
// and form; here is what Python cannot ask for.
TEST(BackendCollectives, SplitsThatDoNotFitAreRefused) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const int rank = backend->getRank();
    auto input = at::full({6, 2}, rank, at::kComplexFloat);
    auto output = at::empty({(rank + 1) * kRanks, 2}, at::kComplexFloat);
    std::vector<std::int64_t> received(kRanks, rank + 1);
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
