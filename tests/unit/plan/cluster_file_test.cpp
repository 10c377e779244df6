#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "bimetal/plan/mesh/cluster.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTwoHosts = R"([model]
layers = 2
width = 64
context = 32
vocabulary = 100
global_batch = 8
optimizer = "sgd"

[[host]]
name = "pc"
count = 2
uplink = "1Gbit/s"
latency = "0.5ms"
inside = "16GB/s"
  [[host.device]]
  name = "gpu"
  count = 2
  teraflops = 10
  memory = "8GiB"

[[host]]
name = "mac"
  [[host.device]]
  teraflops = 2.5
  memory = "24GB"
)";

std::string flaw_of(const std::string& text) {
  try {
    parse_cluster(text, "cluster.toml");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ClusterFile, DescribesHostsDevicesAndAModel) {
  const auto cluster = parse_cluster(kTwoHosts, "cluster.toml");
  ASSERT_EQ(cluster.devices.size(), 5u);
  EXPECT_EQ(cluster.devices[0].name, "pc.0/gpu.0");
  EXPECT_EQ(cluster.devices[3].name, "pc.1/gpu.1");
  EXPECT_DOUBLE_EQ(cluster.devices[0].slower, 0.1);
  EXPECT_DOUBLE_EQ(cluster.devices[4].memory_bytes, 24e9);
  ASSERT_EQ(cluster.network.hosts.size(), 3u);
  EXPECT_DOUBLE_EQ(cluster.network.hosts[1].uplink.bytes_per_s, 125e6);
  EXPECT_DOUBLE_EQ(cluster.network.hosts[1].uplink.latency_s, 5e-4);
  EXPECT_DOUBLE_EQ(cluster.network.hosts[1].inside.bytes_per_s, 16e9);
  ASSERT_TRUE(cluster.model);
  EXPECT_EQ(cluster.model->units.size(), 4u);
  EXPECT_DOUBLE_EQ(cluster.model->state_bytes, 4);
  EXPECT_EQ(cluster.global_batch, 8);
}

TEST(ClusterFile, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(flaw_of("[[host]]\nnmae = \"x\"\n"), HasSubstr("cluster.toml:2: unknown key 'nmae'"));
  EXPECT_THAT(flaw_of("x = [\n"), HasSubstr("cluster.toml:"));
  EXPECT_THAT(flaw_of("[model]\nlayers = 2\n"), HasSubstr("needs [[host]]"));
  EXPECT_THAT(flaw_of("[[host]]\nname = \"x\"\n"), HasSubstr("needs [[device]]"));
  EXPECT_THAT(
      flaw_of("[[host]]\nuplink = \"fast\"\n[[host.device]]\nteraflops = 1\nmemory = \"1GiB\""),
      HasSubstr("such as \"1Gbit/s\""));
  EXPECT_THAT(flaw_of("[[host]]\n[[host.device]]\nmemory = \"1GiB\""), HasSubstr("'teraflops'"));
  EXPECT_THAT(flaw_of("[[host]]\n[[host.device]]\nteraflops = 1"), HasSubstr("'memory'"));
}

TEST(TransformerFacts, CountTheParametersOfGpt2) {
  const auto facts = transformer_facts({});
  EXPECT_EQ(facts.elements(), 124'439'808);  // as Hugging Face's "gpt2"
  EXPECT_EQ(facts.units.size(), 14u);
}

TEST(Timeline, HasABoxForEachActionAndEscapesNames) {
  namespace schedule = parallel::schedule;
  const auto run = schedule::simulate(
      schedule::schedules(schedule::Kind::one_f_one_b, {.stages = 2, .micro_batches = 3}),
      std::vector<schedule::PieceCost>(2));
  const auto svg = timeline_svg("a <step>", {"0: a & b", "1: c"}, run);
  std::size_t boxes = 0;
  for (auto at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) {
    ++boxes;
  }
  EXPECT_EQ(boxes, 2u * 2 * 3);
  EXPECT_THAT(svg, HasSubstr("a &lt;step&gt;"));
  EXPECT_THAT(svg, HasSubstr("0: a &amp; b"));
  EXPECT_THAT(svg, Not(HasSubstr("later chunks")));
  EXPECT_THROW(timeline_svg("", {"one"}, run), Error);
}

}  // namespace
}  // namespace bimetal::plan
