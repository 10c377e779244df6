// Three ranks, of which rank 2 reaches rank 0 over a bad network only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/net/tcp/tcp_mesh.h"
#include "support/tcp_proxy.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::Group;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Direction = TcpProxy::Direction;
using Ending = TcpProxy::Ending;
using ::testing::HasSubstr;

constexpr int kSize = 3;

class BadNetwork : public ::testing::TestWithParam<net::Encryption> {
 protected:
  BadNetwork() {
    net::TcpMeshOptions options;
    options.encryption = GetParam();
    std::vector<std::unique_ptr<net::TcpMeshBuilder>> builders;
    std::vector<std::vector<net::Endpoint>> endpoints;
    for (int rank = 0; rank < kSize; ++rank) {
      builders.push_back(std::make_unique<net::TcpMeshBuilder>(rank, kSize, options));
      endpoints.push_back(builders.back()->listening());
    }
    proxy_.emplace(endpoints[0].front());
    std::array<std::unique_ptr<net::Mesh>, kSize> meshes;
    on_ranks([&](int rank) {
      auto seen = endpoints;
      if (rank == 2) seen[0] = {proxy_->endpoint()};
      meshes[rank] = std::move(*builders[rank]).connect(seen, Deadline::after(seconds(60)));
    });
    comm::GroupOptions over_tcp;
    over_tcp.transport = comm::Transport::tcp;
    groups_.resize(kSize);
    on_ranks(
        [&](int rank) { groups_[rank] = comm::make_group(std::move(meshes[rank]), over_tcp); });
  }
  // The proxy passes the goodbyes on: it goes last.
  ~BadNetwork() override {
    on_ranks([&](int rank) { groups_[rank].close(Deadline::after(milliseconds(100))); });
    groups_.clear();
  }

  static void on_ranks(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kSize; ++rank) threads.emplace_back(body, rank);
    for (auto& thread : threads) thread.join();
  }

  /// All-reduces on all ranks until `disturb`, which runs beside them, has broken something; what
  /// each rank's calls then ended in.
  std::vector<Error> errors_after(const std::function<void()>& disturb,
                                  milliseconds timeout = seconds(60)) {
    std::vector<Error> errors(kSize, Error(ErrorCode::Internal, "no error"));
    std::atomic<int> rounds = 0;
    std::atomic<bool> over = false;
    std::thread disturbing([&] {
      while (rounds < 3 * kSize && !over) std::this_thread::sleep_for(milliseconds(1));
      disturb();
    });
    on_ranks([&](int rank) {
      std::vector<float> data(50'000, 1);
      try {
        for (;;) {
          groups_[rank]
              .all_reduce(buffer(data), comm::ReduceOp::max, Deadline::after(timeout))
              .wait();
          ++rounds;
        }
      } catch (const Error& error) {
        errors[rank] = error;
      }
      over = true;
    });
    disturbing.join();
    return errors;
  }

  /// Flips one bit of what rank 2 sends, `ahead` bytes after the next that passes: counted from
  /// there, since many may pass until the filter is in place.
  void damage(std::uint64_t ahead) {
    proxy_->filter([ahead, at = std::optional<std::uint64_t>()](
                       Direction direction, std::uint64_t offset, std::span<char> bytes) mutable {
      if (direction != Direction::to_server) return;
      if (!at) at = offset + ahead;
      if (*at >= offset && *at < offset + bytes.size()) bytes[*at - offset] ^= 4;
    });
  }

  /// Rank 0 notices and hangs up. The others hear that from it, or notice that it has hung up.
  static void expect_damage(const std::vector<Error>& errors) {
    EXPECT_EQ(errors[0].code(), ErrorCode::CorruptData) << errors[0].what();
    EXPECT_EQ(errors[0].rank(), 2) << errors[0].what();
    for (int rank = 1; rank < kSize; ++rank) {
      const Error& error = errors[static_cast<std::size_t>(rank)];
      const bool lost = error.code() == ErrorCode::PeerLost && error.rank() == 0;
      const bool told = error.code() == ErrorCode::CorruptData && error.rank() == 2;
      EXPECT_TRUE(lost || told) << error.what();
    }
  }

  bool encrypted() const { return GetParam() == net::Encryption::on; }

  std::optional<TcpProxy> proxy_;
  std::vector<Group> groups_;
};

// The figures by which ranks decide what is trained next, and on whom.
TEST_P(BadNetwork, AFigureAlteredOnTheWayIsNoResult) {
  std::vector<Group> parts(kSize);
  on_ranks([&](int rank) { parts[rank] = groups_[rank].subgroup({0, 1, 2}); });
  constexpr double kTold = 0.0123456789;
  std::vector<Error> errors(kSize, Error(ErrorCode::Internal, "no error"));
  const auto tell = [&](int rank) {
    const std::vector<double> mine = {1.0 * rank, rank == 2 ? kTold : 1};
    std::vector<double> all(2 * kSize);
    parts[rank].all_gather(buffer(mine), buffer(all), Deadline::after(seconds(60))).wait();
    EXPECT_EQ(all, (std::vector<double>{0, 1, 1, 1, 2, kTold})) << "on rank " << rank;
  };
  on_ranks(tell);
  proxy_->alter({reinterpret_cast<const char*>(&kTold), sizeof(kTold)});
  if (encrypted()) {
    on_ranks(tell);  // the proxy does not find it
    return;
  }
  on_ranks([&](int rank) {
    try {
      for (;;) tell(rank);
    } catch (const Error& error) {
      errors[rank] = error;
    }
  });
  expect_damage(errors);
}

TEST_P(BadNetwork, ASlowPathOnlyTakesTime) {
  proxy_->delay(milliseconds(20));
  on_ranks([&](int rank) {
    std::vector<float> data(100'000, static_cast<float>(rank));
    groups_[rank].all_reduce(buffer(data)).wait();
    EXPECT_EQ(data[99'999], 0 + 1 + 2);
  });
}

TEST_P(BadNetwork, AResetPathIsALostPeerOnEveryRank) {
  for (const Error& error : errors_after([&] { proxy_->cut(Ending::reset); })) {
    EXPECT_EQ(error.code(), ErrorCode::PeerLost) << error.what();
    EXPECT_TRUE(error.rank() == 0 || error.rank() == 2) << error.what();
  }
}

TEST_P(BadNetwork, AClosedPathIsALostPeerOnEveryRank) {
  for (const Error& error : errors_after([&] { proxy_->cut(Ending::close); })) {
    EXPECT_EQ(error.code(), ErrorCode::PeerLost) << error.what();
    EXPECT_TRUE(error.rank() == 0 || error.rank() == 2) << error.what();
  }
}

// Rank 0's side of the path stays as it is, and silent. It hears of the loss by way of rank 1.
TEST_P(BadNetwork, AHalfOpenPathIsALostPeerOnEveryRank) {
  for (const Error& error : errors_after([&] { proxy_->cut(Ending::half_open); })) {
    EXPECT_EQ(error.code(), ErrorCode::PeerLost) << error.what();
    EXPECT_EQ(error.rank(), 0) << error.what();
  }
}

// Everything is acknowledged, and nothing arrives: as with a stopped process.
TEST_P(BadNetwork, ASilentPathEndsByTheDeadline) {
  for (const Error& error : errors_after([&] { proxy_->hold(true); }, seconds(2))) {
    EXPECT_EQ(error.code(), ErrorCode::Timeout) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("all_reduce(max) of 50000 float32"));
  }
}

TEST_P(BadNetwork, APathThatComesBackInTimeIsNoFailure) {
  on_ranks([&](int rank) {
    std::vector<float> data(50'000, 1);
    groups_[rank].barrier().wait();
    if (rank == 1) {
      proxy_->hold(true);
      std::this_thread::sleep_for(milliseconds(1500));
      proxy_->hold(false);
    }
    groups_[rank].all_reduce(buffer(data)).wait();
    EXPECT_EQ(data[0], kSize);
  });
}

TEST_P(BadNetwork, DamagedBytesAreNoticedWhereAnythingGuardsThem) {
  // Heartbeats and headers, whose every byte is guarded on a plain connection, too.
  on_ranks([&](int rank) { groups_[rank].barrier().wait(); });
  std::this_thread::sleep_for(milliseconds(50));
  damage(encrypted() ? 100 : 40);
  expect_damage(errors_after([] {}));
}

TEST_P(BadNetwork, DamagedPayloadIsNoticedWhereTheConnectionIsEncrypted) {
  if (!encrypted()) GTEST_SKIP() << "plain payloads are guarded by TCP alone";
  expect_damage(errors_after([&] { damage(30'000); }));
}

INSTANTIATE_TEST_SUITE_P(Connections, BadNetwork,
                         ::testing::Values(net::Encryption::off, net::Encryption::on),
                         [](const auto& info) {
                           return info.param == net::Encryption::on ? "Encrypted" : "Plain";
                         });

}  // namespace
}  // namespace bimetal::testing
