// A mesh in which not all ranks are connected from the start. In these worlds of eight ranks, those
// three or five apart on the ring are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <future>
#include <list>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/dial.h"
#include "unit/net/mesh_harness.h"

namespace bimetal::net {
namespace {

using namespace std::chrono_literals;
using namespace net::testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kSize = 8;
const Token kToken = Token::from_text("the token of this job");

TcpMeshOptions large() {
  TcpMeshOptions options;
  options.job_id = "job";
  options.token = kToken;
  options.complete_up_to = 1;
  return options;
}

/// The outcome of one frame; its text outlives it.
struct Sending {
  std::string text;
  std::promise<std::exception_ptr> done{};
};

class LargeWorld : public ::testing::Test {
 protected:
  void SetUp() override { connect(large()); }

  void connect(const TcpMeshOptions& options) {
    close();
    endpoints_.clear();
    std::vector<std::unique_ptr<TcpMeshBuilder>> builders;
    for (int rank = 0; rank < kSize; ++rank) {
      builders.push_back(std::make_unique<TcpMeshBuilder>(rank, kSize, options));
      endpoints_.push_back(builders.back()->listening());
    }
    std::vector<std::future<std::unique_ptr<Mesh>>> connecting;
    for (auto& builder : builders) {
      connecting.push_back(std::async(std::launch::async, [&builder, this] {
        return std::move(*builder).connect(endpoints_, soon());
      }));
    }
    for (auto& mesh : connecting) meshes_.push_back(mesh.get());
    for (int rank = 0; rank < kSize; ++rank) meshes_[index(rank)]->start(recorders_[rank]);
  }

  void TearDown() override { close(); }

  void close() {
    std::vector<std::thread> closing;
    for (auto& mesh : meshes_) {
      if (mesh) closing.emplace_back([&mesh] { mesh->close(soon()); });
    }
    for (auto& thread : closing) thread.join();
    meshes_.clear();
  }

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  Mesh& mesh(int rank) { return *meshes_[index(rank)]; }

  std::future<std::exception_ptr> send(int from, int to, const std::string& text,
                                       std::uint64_t sequence = 0) {
    auto& sending = sendings_.emplace_back(Sending{text});
    mesh(from).send(to, data_header(sequence), bytes_of(sending.text),
                    [&](std::exception_ptr error) { sending.done.set_value(std::move(error)); });
    return sending.done.get_future();
  }

  /// The answer to `rank` when it connects with rank 0 like that.
  Error refusal(const Token& token, const std::string& job, int rank, int to = 0) {
    Hello hello;
    hello.from_rank = rank;
    hello.to_rank = to;
    hello.job = digest_of_job(job);
    asio::io_context io;
    Error result(ErrorCode::Internal, "let in");
    DialRequest request{endpoints_[0], "rank 0", token, hello, soon(), {}, {}};
    asio::co_spawn(
        io, [&]() -> asio::awaitable<void> { co_await dial(std::move(request)); },
        [&](const std::exception_ptr& failure) {
          if (failure) result = to_error(failure);
        });
    io.run();
    return result;
  }

  std::array<Recorder, kSize> recorders_;  // outlive the meshes
  std::list<Sending> sendings_;
  std::vector<std::vector<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
};

TEST_F(LargeWorld, ThoseNearOnTheRingAreConnectedAtFirst) {
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_FALSE(mesh(rank).complete());
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer == rank) continue;
      const int steps = (peer - rank + kSize) % kSize;
      EXPECT_EQ(mesh(rank).is_open(peer), steps != 3 && steps != 5) << rank << " and " << peer;
    }
  }
}

// Rank 0 has to ask rank 3 for a call, rank 5 calls rank 0 by itself; and both sides at a time.
TEST_F(LargeWorld, OthersConnectWhenOneSendsAndKeepTheOrder) {
  constexpr std::size_t kFrames = 20;
  for (const auto& [a, b] : {std::pair(0, 3), std::pair(5, 0), std::pair(4, 7)}) {
    std::vector<std::future<std::exception_ptr>> sent;
    for (std::size_t i = 0; i < kFrames; ++i) {
      sent.push_back(send(a, b, "from a", i));
      if (a == 4) sent.push_back(send(b, a, "from b", i));
    }
    for (auto& one : sent) EXPECT_EQ(one.get(), nullptr);
    for (const int to : a == 4 ? std::vector{a, b} : std::vector{b}) {
      auto& recorder = recorders_[index(to)];
      ASSERT_TRUE(recorder.wait_for(kFrames));
      const auto arrivals = recorder.arrivals();
      for (std::size_t i = 0; i < kFrames; ++i) {
        EXPECT_EQ(arrivals[arrivals.size() - kFrames + i].header.sequence, i);
      }
    }
    EXPECT_TRUE(mesh(a).is_open(b));
  }
  for (const auto& recorder : recorders_) {
    for (int peer = 0; peer < kSize; ++peer) EXPECT_FALSE(recorder.has_lost(peer));
  }
}

TEST_F(LargeWorld, EncryptedOnesToo) {
  auto options = large();
  options.encryption = Encryption::on;
  connect(options);
  EXPECT_EQ(send(0, 3, "asks to be called").get(), nullptr);
  EXPECT_EQ(send(5, 0, "calls").get(), nullptr);
  EXPECT_TRUE(recorders_[3].wait_for(1));
  EXPECT_TRUE(recorders_[0].wait_for(1));
  EXPECT_EQ(refusal(kToken, "job", 3).code(), ErrorCode::InvalidArgument);  // it wants a plain one
}

// As a killed process: ranks that were never connected with it know of it, too, by the same words.
TEST_F(LargeWorld, ALossIsKnownToAllThoughNotAllAreConnected) {
  meshes_[3].reset();
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == 3) continue;
    const auto loss = recorders_[index(rank)].wait_for_loss(3);
    ASSERT_TRUE(loss) << "on rank " << rank;
    EXPECT_EQ(loss->code(), ErrorCode::PeerLost);
    EXPECT_EQ(loss->rank(), 3);
    EXPECT_THAT(loss->what(), AllOf(HasSubstr("rank 3 (127.0.0.1"), HasSubstr("is gone")));
  }
  for (const int rank : {0, 6}) {
    EXPECT_NE(send(rank, 3, "too late").get(), nullptr);
    EXPECT_EQ(recorders_[index(rank)].losses(3), 1);
  }
}

// Ranks 1 and 2 part, and rank 2 tells that it has lost rank 1. Rank 6, which is not connected with
// rank 1, looks and finds it alive.
TEST_F(LargeWorld, ARankThatLivesIsNotLostByWhatOthersTell) {
  mesh(1).drop(2);
  ASSERT_TRUE(recorders_[2].wait_for_loss(1));
  for (int i = 0; i < 1000 && !mesh(6).is_open(1); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(mesh(6).is_open(1));
  EXPECT_EQ(send(6, 1, "there you are").get(), nullptr);
  EXPECT_FALSE(recorders_[6].has_lost(1));
}

TEST_F(LargeWorld, TheFirstUseOfAPeerThatHasLeftIsAnErrorThatNamesIt) {
  mesh(3).close(soon());
  meshes_[3].reset();
  EXPECT_FALSE(recorders_[0].has_lost(3));
  const auto error = send(0, 3, "too late").get();
  ASSERT_TRUE(error);
  EXPECT_THAT(to_error(error).what(), HasSubstr("rank 3 (127.0.0.1"));
  EXPECT_NE(send(1, 3, "still sent to one that has said goodbye").get(), nullptr);
  mesh(6).open(3);  // who waits for it
  for (const int rank : {0, 6}) {
    const auto loss = recorders_[index(rank)].wait_for_loss(3);
    ASSERT_TRUE(loss);
    EXPECT_EQ(loss->code(), ErrorCode::PeerLost);
    EXPECT_EQ(loss->rank(), 3);
    EXPECT_THAT(loss->what(), HasSubstr("left the job"));
  }
  EXPECT_FALSE(recorders_[5].has_lost(3));  // of which rank 1 tells nobody
}

TEST_F(LargeWorld, StrangersAreRefusedAfterTheStartAsBefore) {
  const Error wrong_token = refusal(Token::from_text("another token of that length"), "job", 5);
  EXPECT_EQ(wrong_token.code(), ErrorCode::Unauthorized);
  EXPECT_THAT(wrong_token.what(), HasSubstr("token was refused"));
  const Error other_job = refusal(kToken, "other job", 5);
  EXPECT_EQ(other_job.code(), ErrorCode::Unauthorized);
  EXPECT_THAT(other_job.what(), HasSubstr("another job"));
  // Rank 4 is connected; there is no rank 8; this is not rank 1; nobody is rank 0 but itself.
  for (const auto& [from, to] :
       {std::pair(4, 0), std::pair(8, 0), std::pair(5, 1), std::pair(0, 0)}) {
    EXPECT_EQ(refusal(kToken, "job", from, to).code(), ErrorCode::InvalidArgument);
  }
  EXPECT_EQ(send(5, 0, "still welcome").get(), nullptr);
  EXPECT_TRUE(recorders_[0].wait_for(1));
}

// A client that has a place and is let in, but says nothing, does not take it.
TEST_F(LargeWorld, AConnectionThatItsMakerGivesUpIsNoLoss) {
  EXPECT_STREQ(refusal(kToken, "job", 5).what(), "let in");  // and its socket is closed
  auto early = send(0, 5, "waits for the real one");
  EXPECT_EQ(send(5, 0, "the real one").get(), nullptr);
  EXPECT_EQ(early.get(), nullptr);
  EXPECT_TRUE(recorders_[5].wait_for(1));
  EXPECT_FALSE(recorders_[0].has_lost(5));
}

TEST_F(LargeWorld, WhatWaitsForAConnectionIsSentBeforeTheMeshCloses) {
  auto sent = send(0, 3, "last words");
  mesh(0).close(soon());
  EXPECT_EQ(sent.get(), nullptr);
  EXPECT_TRUE(recorders_[3].wait_for(1));
  EXPECT_FALSE(recorders_[3].has_lost(0));
  auto never = send(1, 4, "nobody has time for it");
  mesh(1).close(Deadline::after(0s));
  never.get();  // ends, one way or the other
}

}  // namespace
}  // namespace bimetal::net
