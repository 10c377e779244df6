// How pulled parameters are written and where they arrive.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_reduction.h"
#include "bimetal/parallel/server/client/server_link.h"
#include "bimetal/parallel/server/codec.h"

namespace bimetal::parallel::server {
namespace {

using comm::Scheme;

ShardPlan three_pieces() {
  return plan_shards(std::vector<std::int64_t>{20, 10}, std::vector<double>{1}, 10);
}

TEST(PullCodec, EncodesOncePerVersionAndKeepsWhatIsOnItsWay) {
  const auto plan = three_pieces();
  const std::vector<std::uint32_t> pieces{0, 1, 2};
  auto values = torch::linspace(-3, 3, 30);
  PullCodec codec;
  auto first = codec.encode(Scheme::float16, 1, values, plan, pieces);
  EXPECT_EQ(codec.encode(Scheme::float16, 1, values, plan, pieces), first);
  std::vector<float> decoded(10);
  comm::decode(Scheme::float16, first->piece(1), decoded);
  EXPECT_NEAR(decoded[0], values[10].item<float>(), 1e-3);
  const auto as_it_was = first->bytes;
  values.add_(1);
  const auto second = codec.encode(Scheme::float16, 2, values, plan, pieces);
  EXPECT_EQ(first->bytes, as_it_was);
  comm::decode(Scheme::float16, second->piece(1), decoded);
  EXPECT_NEAR(decoded[0], values[10].item<float>(), 1e-3);
  EXPECT_NE(codec.encode(Scheme::int8, 2, values, plan, pieces)->bytes.size(), as_it_was.size());
}

TEST(PullCodec, KnowsWhatSuitsValues) {
  for (const auto scheme : {Scheme::none, Scheme::float16, Scheme::bfloat16, Scheme::int8}) {
    EXPECT_NO_THROW(require_pull_scheme(scheme, torch::kFloat32));
  }
  EXPECT_NO_THROW(require_pull_scheme(Scheme::none, torch::kFloat64));
  EXPECT_THROW(require_pull_scheme(Scheme::float16, torch::kFloat64), Error);
  for (const auto scheme :
       {Scheme::int4, Scheme::sign, Scheme::topk, Scheme::powersgd, static_cast<Scheme>(77)}) {
    EXPECT_THROW(require_pull_scheme(scheme, torch::kFloat32), Error);
  }
}

/// A worker's two connections with the keepers of one shard, without a network.
class PulledPieces : public ::testing::Test {
 protected:
  PulledPieces() : plan_(three_pieces()), host_{torch::zeros({20}), torch::zeros({10})} {
    for (auto* set : {&set_, &next_}) {
      set->memory = host_;
      set->expect({{0, 1}, {2}});
      set->here.assign(plan_.pieces.size(), false);
    }
    for (auto& memory : next_.memory) memory = torch::zeros_like(memory);
    for (int server = 0; server < 2; ++server) {
      links_.push_back(std::make_unique<ServerLink>(
          server, 0, net::Endpoint{"127.0.0.1", 1}, plan_, arrivals_, [] { return true; },
          [] { return true; }));
    }
  }

  static net::FrameHeader header(std::uint32_t piece, std::uint64_t version,
                                 Scheme scheme = Scheme::none) {
    net::FrameHeader header;
    header.operation = static_cast<std::uint8_t>(MessageKind::piece);
    header.part = piece;
    header.sequence = version;
    header.compression = static_cast<std::uint8_t>(scheme);
    return header;
  }

  void arrive(int server, std::uint32_t piece, std::uint64_t version, float value) {
    auto& link = *links_[static_cast<std::size_t>(server)];
    const auto place = link.place(header(piece, version));
    ASSERT_EQ(place.size(), 40u);
    std::fill_n(reinterpret_cast<float*>(place.data()), 10, value);
    link.on_message(header(piece, version), place);
  }

  void all_sent(int server, std::uint64_t version) {
    net::FrameHeader pulled;
    pulled.operation = static_cast<std::uint8_t>(MessageKind::pulled);
    pulled.sequence = version;
    links_[static_cast<std::size_t>(server)]->on_message(pulled, {});
  }

  ShardPlan plan_;
  std::vector<torch::Tensor> host_;
  IncomingParameters set_, next_;
  Arrivals arrivals_;
  std::vector<std::unique_ptr<ServerLink>> links_;
};

// Forward may have begun with what came first.
TEST_F(PulledPieces, AreNotChangedByTheCopyOfAServerThatDied) {
  links_[0]->asked = {&set_};
  arrive(0, 0, 5, 1);
  arrive(0, 1, 5, 2);
  EXPECT_EQ(set_.missing, (std::vector<std::size_t>{0, 1}));
  links_[0]->asked.clear();
  links_[1]->asked = {&set_};
  for (std::uint32_t piece = 0; piece < 3; ++piece) arrive(1, piece, 7, 9);
  all_sent(1, 7);
  EXPECT_EQ(host_[0][0].item<float>(), 1);
  EXPECT_EQ(host_[0][19].item<float>(), 2);
  EXPECT_EQ(host_[1][0].item<float>(), 9);
  EXPECT_EQ(set_.missing, (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(set_.shards_here, 1);
  EXPECT_EQ(set_.oldest, 5u);
}

TEST_F(PulledPieces, AreTakenOnlyWhenAskedForAndAsAskedFor) {
  EXPECT_THROW(links_[0]->place(header(0, 5)), Error) << "nobody has asked";
  links_[0]->asked = {&set_};
  EXPECT_THROW(links_[0]->place(header(3, 5)), Error);
  EXPECT_THROW(links_[0]->place(header(0, 5, Scheme::int8)), Error);
  arrive(0, 0, 5, 1);
  EXPECT_THROW(all_sent(0, 5), Error) << "two are missing";
}

// Asked for while the first were on their way: what comes belongs to them until they are whole.
TEST_F(PulledPieces, OfTheNextLeaseGoElsewhere) {
  links_[0]->asked = {&set_, &next_};
  for (std::uint32_t piece = 0; piece < 3; ++piece) arrive(0, piece, 5, 1);
  all_sent(0, 5);
  EXPECT_EQ(set_.shards_here, 1);
  for (std::uint32_t piece = 0; piece < 3; ++piece) arrive(0, piece, 7, 2);
  EXPECT_EQ(next_.shards_here, 0);
  all_sent(0, 7);
  EXPECT_EQ(next_.shards_here, 1);
  EXPECT_EQ(host_[0].max().item<float>(), 1);
  EXPECT_EQ(host_[1].max().item<float>(), 1);
  EXPECT_EQ(next_.memory[0].min().item<float>(), 2);
  EXPECT_EQ(set_.newest, 5u);
  EXPECT_EQ(next_.oldest, 7u);
  EXPECT_THROW(links_[0]->place(header(0, 7)), Error) << "nothing more was asked for";
  EXPECT_THROW(all_sent(0, 7), Error);
}

}  // namespace
}  // namespace bimetal::parallel::server
