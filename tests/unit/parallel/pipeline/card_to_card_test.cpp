// Tensors from card to card, with a c10d::Backend over the fabric in the place of NCCL, which is as
// strict about the order of calls: on the CPU and on a simulated device.
#include "bimetal/c10d/card_to_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/pipeline/stage_model.h"
#include "support/errors.h"
#include "support/simulated_device.h"
#include "support/thread_ranks.h"
#include "support/vendor_stand_in.h"

namespace bimetal::parallel::pipeline {
namespace {

using namespace std::chrono_literals;
using bimetal::testing::library_of;
using bimetal::testing::run_ranks;
using bimetal::testing::SimulatedDevice;
using bimetal::testing::Stuck;
using c10d::CardToCard;
using c10d::Vendor;
using c10d::VendorLibrary;
using ::testing::HasSubstr;

std::vector<torch::Device> devices() {
  return {torch::Device(torch::kCPU), SimulatedDevice::install()};
}

std::shared_ptr<CardToCard> connect_all_pairs(comm::Group group, const torch::Device& device,
                                              const VendorLibrary& library,
                                              std::chrono::milliseconds timeout = 60s) {
  return c10d::connect_cards(
      std::move(group), device, library, [](int, int) { return true; }, timeout);
}

// What three ranks send each other, both ways, is neither sent nor awaited in the same order.
TEST(CardToCard, TransfersMeetInWhateverOrderTheyAreAskedFor) {
  for (const auto& device : devices()) {
    run_ranks(3, [&](int rank, comm::Group group) {
      const auto cards = connect_all_pairs(group, device, library_of(rank));
      ASSERT_TRUE(cards);
      struct Call {
        int peer;
        bool sends;
        int number;
      };
      std::vector<Call> calls;
      for (int number = 0; number < 20; ++number) {
        for (int peer = 0; peer < 3; ++peer) {
          if (peer == rank) continue;
          calls.push_back({peer, true, number});
          calls.push_back({peer, false, number});
        }
      }
      std::ranges::shuffle(calls, std::mt19937(static_cast<unsigned>(7 + rank)));
      const auto value = [&](int from, int to, int number) {
        return torch::full({number + 1, 3}, 100.0 * from + 10 * to + number, torch::kFloat64);
      };
      const auto tag = [](int from, int to, int number) {
        return static_cast<std::uint64_t>(1000 * from + 100 * to + number);
      };
      std::vector<comm::Work> works;
      std::vector<std::pair<torch::Tensor, torch::Tensor>> received;
      for (const auto& [peer, sends, number] : calls) {
        if (sends) {
          works.push_back(
              cards->send(value(rank, peer, number).to(device), peer, tag(rank, peer, number)));
          continue;
        }
        const auto room = cards->room({number + 1, 3}, torch::kFloat64);
        EXPECT_EQ(room.device().type(), device.type());
        works.push_back(cards->recv(room, peer, tag(peer, rank, number)));
        received.emplace_back(room, value(peer, rank, number));
      }
      comm::wait_for_all(works);
      for (const auto& [here, expected] : received) {
        cards->hand_over(here);
        EXPECT_TRUE(torch::equal(here.to(torch::kCPU), expected));
      }
      group.barrier().wait();
    });
  }
}

TEST(CardToCard, JoinsThoseThatTalkAndHaveAVendorLibraryInCommon) {
  const std::vector<Vendor> vendors = {Vendor::nccl, Vendor::nccl, Vendor::nccl, Vendor::none};
  run_ranks(4, [&](int rank, comm::Group group) {
    const auto neighbours = [](int lower, int higher) { return higher == lower + 1; };
    const auto cards = c10d::connect_cards(
        group, torch::kCPU, library_of(rank, vendors[static_cast<std::size_t>(rank)]), neighbours,
        60s);
    EXPECT_EQ(cards != nullptr, rank < 3);
    for (int peer = 0; cards && peer < 4; ++peer) {
      EXPECT_EQ(cards->reaches(peer), peer < 3 && std::abs(peer - rank) == 1) << rank << peer;
    }
    const auto alone = library_of(0, Vendor::nccl);  // one card for all
    EXPECT_FALSE(c10d::connect_cards(group, torch::kCPU, alone, neighbours, 60s));
  });
}

/// Rank 0 gets from rank 1 what never comes. `use`: of the work, on either rank.
void with_stuck(Stuck::How how, std::chrono::milliseconds timeout,
                const std::function<void(int rank, const comm::Work& work, const Stuck& stuck,
                                         std::shared_ptr<CardToCard>& cards)>& use) {
  run_ranks(2, [&](int rank, comm::Group group) {
    c10::intrusive_ptr<Stuck> stuck;
    VendorLibrary library = library_of(rank);
    library.connect = [&](const comm::Group& members) {
      stuck = c10::make_intrusive<Stuck>(members, how);
      return stuck;
    };
    auto cards = connect_all_pairs(group, torch::kCPU, library, timeout);
    const auto work = rank == 0 ? cards->recv(cards->room({4}, torch::kFloat32), 1, 5)
                                : cards->send(torch::ones({4}), 0, 5);
    use(rank, work, *stuck, cards);
    cards.reset();
    EXPECT_TRUE(stuck->was_aborted());
  });
}

TEST(CardToCard, ATransferThatHangsEndsByItsDeadlineAndIsGivenUp) {
  std::atomic<int> timeouts = 0;
  with_stuck(Stuck::How::later, 300ms, [&](int, const comm::Work& work, const auto&, auto&) {
    const auto error = error_of([&] { work.wait(); });
    ASSERT_TRUE(error);
    if (error->code() == ErrorCode::Timeout) ++timeouts;
    EXPECT_THAT(error->what(), HasSubstr("has not ended within 0.3 s"));
  });
  EXPECT_GE(timeouts, 1);  // the other one may hear of it
}

TEST(CardToCard, WhatTheVendorLibraryRefusesIsToldOnBothSides) {
  with_stuck(Stuck::How::refusing, 60s, [&](int, const comm::Work& work, const auto&, auto&) {
    const auto error = error_of([&] { work.wait(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("no such card"));
  });
}

TEST(CardToCard, ARankThatLeavesInATransferIsNamed) {
  with_stuck(Stuck::How::later, 60s,
             [&](int rank, const comm::Work& work, const Stuck& stuck, auto& cards) {
               while (!stuck.was_called()) std::this_thread::sleep_for(1ms);
               if (rank == 1) return cards.reset();  // and its group goes
               const auto error = error_of([&] { work.wait(); });
               ASSERT_TRUE(error);
               EXPECT_THAT(error->what(), HasSubstr("rank 1 closed the group"));
             });
}

TEST(CardToCard, ACallThatHangsIsGivenUpAtTheEnd) {
  with_stuck(Stuck::How::in_the_call, 60s,
             [&](int, const comm::Work& work, const Stuck& stuck, auto& cards) {
               while (!stuck.was_called()) std::this_thread::sleep_for(1ms);
               cards.reset();
               EXPECT_TRUE(work.done());
               EXPECT_THROW(work.wait(), Error);
             });
}

TEST(CardToCard, UnlikeLengthsAreFoundOut) {
  run_ranks(2, [&](int rank, comm::Group group) {
    const auto cards = connect_all_pairs(group, torch::kCPU, library_of(rank));
    const auto work = rank == 0 ? cards->recv(cards->room({4}, torch::kFloat32), 1, 5)
                                : cards->send(torch::ones({5}), 0, 5);
    const auto error = error_of([&] { work.wait(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("16 bytes meet 20 bytes"));
  });
}

// Stages.

constexpr std::int64_t kSamples = 3, kWidth = 5;

struct Way {
  schedule::Kind kind;
  int stages = 2, chunks = 1, micro_batches = 5;
  std::vector<int> uneven = {};
  Vendor last = Vendor::nccl;  ///< of the last rank; others have NCCL

  int ranks() const {
    int all = stages;
    if (!uneven.empty()) all = std::accumulate(uneven.begin(), uneven.end(), 0);
    return all;
  }
};

torch::Tensor weight_of(int piece) {
  const auto numbers = torch::arange(kWidth * kWidth, torch::kFloat64).view({kWidth, kWidth});
  return (numbers * (piece + 2)).sin().requires_grad_();
}

torch::Tensor samples_of(int micro_batch) {
  const auto numbers = torch::arange(kSamples * kWidth, torch::kFloat64).view({kSamples, kWidth});
  return (numbers + 100 * micro_batch).cos();
}

/// Hands on a mask, too, through which no gradient flows, and nothing in one place.
task::Values forward_of(const torch::Tensor& weight, const task::Values& inputs) {
  const auto& hidden = inputs.front();
  const auto mask = (hidden.detach() > -0.9).to(torch::kUInt8);
  const auto before = inputs.size() > 1 ? inputs[1] : mask;
  return {hidden.matmul(weight).tanh() * before, mask, torch::Tensor(), hidden.mean()};
}

torch::Tensor loss_of(const task::Values& outputs) {
  return outputs[0].square().sum() + outputs[3];
}

/// By piece: gradients of a step on one device.
std::vector<torch::Tensor> gradients_alone(const Way& way) {
  std::vector<torch::Tensor> weights;
  for (int piece = 0; piece < way.stages * way.chunks; ++piece) weights.push_back(weight_of(piece));
  for (int i = 0; i < way.micro_batches; ++i) {
    task::Values values = {samples_of(i)};
    for (const auto& weight : weights) values = forward_of(weight, values);
    (loss_of(values) / static_cast<double>(kSamples * way.micro_batches)).backward();
  }
  std::vector<torch::Tensor> gradients;
  for (const auto& weight : weights) gradients.push_back(weight.grad());
  return gradients;
}

/// Trains `steps` steps, of which the last one's gradients must be those of one device.
void run_stages(const Way& way, const torch::Device& device, bool by_cards, int steps = 2) {
  const auto expected = gradients_alone(way);
  run_ranks(way.ranks(), [&](int rank, comm::Group group) {
    const MeshShape shape{way.stages, way.uneven.empty() ? 1 : 0, 1, way.uneven};
    const auto mesh = std::make_shared<const Mesh>(std::move(group), shape);
    std::vector<torch::Tensor> weights;
    task::ModelState own;
    for (int chunk = 0; chunk < way.chunks; ++chunk) {
      const int piece = schedule::piece_of(mesh->place().stage, chunk, way.stages);
      weights.push_back(weight_of(piece).detach().to(device).requires_grad_());
      own.parameters.push_back({"weight" + std::to_string(chunk), weights.back()});
    }
    std::vector<torch::Tensor> samples;
    for (int i = 0; i < way.micro_batches; ++i) samples.push_back(samples_of(i).to(device));
    StageWork work;
    work.inputs = [&](int micro_batch) {
      return task::Values{samples[static_cast<std::size_t>(micro_batch)]};
    };
    work.forward = [&](int chunk, int, const task::Values& inputs) {
      for (const auto& value : inputs) {
        EXPECT_TRUE(!value.defined() || value.device().type() == device.type());
      }
      return forward_of(weights[static_cast<std::size_t>(chunk)], inputs);
    };
    work.loss_sum = [](int, const task::Values& outputs) { return loss_of(outputs); };
    const auto store = std::make_shared<ReplicatedModel>(own, mesh->replicas());
    Sync sync(store, {std::make_shared<StageSums>(mesh, store, std::vector<Tied>(), 60s)});
    RunnerOptions options{.kind = way.kind, .chunks = way.chunks, .device = device};
    options.timeout = 60s;
    if (by_cards) {
      options.vendor = library_of(rank, rank + 1 == way.ranks() ? way.last : Vendor::nccl);
    }
    Runner runner(*mesh, options);
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(way.micro_batches), kSamples);
    for (int step = 0; step < steps; ++step) {
      sync.begin_step(kSamples * way.micro_batches);
      const auto result = runner.run(schedule::Deal(mesh->widths(), sizes), work, *store);
      sync.sum_gradients();
      EXPECT_FALSE(result.incomplete);
    }
    for (int chunk = 0; chunk < way.chunks; ++chunk) {
      const int piece = schedule::piece_of(mesh->place().stage, chunk, way.stages);
      const auto gradient = weights[static_cast<std::size_t>(chunk)].grad().to(torch::kCPU);
      const auto off = gradient - expected[static_cast<std::size_t>(piece)];
      EXPECT_LE(off.abs().max().item<double>(), 1e-12) << "piece " << piece;
    }
    auto world = mesh->world();
    world.barrier().wait();
  });
}

TEST(StagesByCards, EveryScheduleComputesWhatOneDeviceWould) {
  using schedule::Kind;
  const std::vector<Way> ways = {
      {Kind::gpipe, 3},
      {Kind::one_f_one_b, 2},
      {Kind::one_f_one_b, 4, 1, 9},
      {Kind::zero_bubble, 3, 1, 6},
      {Kind::interleaved, 2, 3, 6},
      {Kind::interleaved, 3, 2, 6},
      {Kind::one_f_one_b, 2, 1, 7, {1, 2}},
      {Kind::zero_bubble, 3, 1, 8, {2, 1, 2}},
      {Kind::one_f_one_b, 3, 1, 5, {}, Vendor::none},
  };
  for (const auto& device : devices()) {
    for (const auto& way : ways) {
      SCOPED_TRACE(::testing::Message() << device << " " << static_cast<int>(way.kind) << " "
                                        << way.stages << " " << way.chunks);
      run_stages(way, device, /*by_cards=*/true);
    }
  }
}

/// For what the hosts of all ranks wait in a step.
std::map<std::string, double> waits_of_a_step(const Way& way, bool by_cards) {
  const auto device = SimulatedDevice::install();
  std::vector<std::map<std::string, double>> waits;
  for (const int steps : {2, 4}) {
    SimulatedDevice::take_waits();
    run_stages(way, device, by_cards, steps);
    auto& found = waits.emplace_back();
    for (const auto& wait : SimulatedDevice::take_waits()) ++found[wait];
  }
  std::map<std::string, double> in_a_step;
  for (const auto& [what, times] : waits[1]) {
    const double more = (times - waits[0][what]) / 2;
    if (more > 0) in_a_step[what] = more;
  }
  return in_a_step;
}

// What is left: the last stage reads the losses, and the others wait for their own end.
TEST(StagesByCards, NothingBetweenStagesIsCopiedToTheHostOrWaitedForThere) {
  const Way way{schedule::Kind::one_f_one_b, 3, 1, 4};
  const std::map<std::string, double> once = {{"a copy to the host", 1}, {"the device", 2}};
  EXPECT_EQ(waits_of_a_step(way, true), once);
  // Over two cuts three values forward, and back the gradients of those that depend on weights.
  const double carried = 4 * ((3 + 1) + (3 + 2));
  EXPECT_EQ(waits_of_a_step(way, false),
            (std::map<std::string, double>{{"a copy to the host", 1 + carried},
                                           {"a copy from the host", carried},
                                           {"the device", 2}}));
}

}  // namespace
}  // namespace bimetal::parallel::pipeline
