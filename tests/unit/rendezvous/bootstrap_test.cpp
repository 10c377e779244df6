#include "bimetal/rendezvous/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::rendezvous {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(20s); }

TEST(Bootstrap, EveryRankGetsAMesh) {
  const net::Token token = net::Token::generate();
  StoreServer server({"127.0.0.1", 0}, token);
  constexpr int kSize = 3;
  std::vector<std::unique_ptr<net::Mesh>> meshes(kSize);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto store = connect_store(server.endpoint(), token, soon());
      BootstrapOptions options;
      options.token = token;
      options.host_name = "host" + std::to_string(rank);
      meshes[rank] = connect_mesh(*store, rank, kSize, options, soon());
    });
  }
  for (auto& rank : ranks) rank.join();
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(meshes[rank]->rank(), rank);
    EXPECT_EQ(meshes[rank]->size(), kSize);
    EXPECT_EQ(meshes[rank]->host_of(2), "host2");
  }
}

}  // namespace
}  // namespace bimetal::rendezvous
