#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/job/job_keys.h"
#include "job_texts.h"

namespace bimetal::job {
namespace {

using ::testing::HasSubstr;

TEST(MeshKeys, CutsAreUnitsInTheirOrder) {
  EXPECT_EQ(parse("[mesh]\ncuts = [2, 5]").mesh.cuts, (std::vector<std::int64_t>{2, 5}));
  EXPECT_TRUE(parse("[mesh]\ncuts = [2]", {"mesh.cuts=[]"}).mesh.cuts.empty());
  EXPECT_THAT(error_of("[mesh]\ncuts = [2, 2]"), HasSubstr("found 2 after 2"));
  EXPECT_THAT(error_of("[mesh]\ncuts = [0]"), HasSubstr("above 0"));
  EXPECT_THAT(error_of("[mesh]\ncuts = 3"), HasSubstr("an array of whole numbers"));
  EXPECT_TRUE(parse("", {"mesh.tensor_weights=[]"}).mesh.tensor_weights.empty());
  EXPECT_EQ(parse("", {"mesh.tensor_weights=speed"}).mesh.tensor_parts, "speed");
  EXPECT_THAT(error_of("[mesh]\ntensor_weights = [0]"), HasSubstr("above 0"));
  const std::string two = "[mesh]\nreplicas = [1, 2]";
  EXPECT_EQ(parse(two).mesh.stage_replicas, (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(parse(two, {"mesh.replicas=2"}).mesh.stage_replicas.empty());
  EXPECT_THAT(error_of("[mesh]\nreplicas = [0, 1]"), HasSubstr("at least 1 like [1, 2]"));
  const std::string parts = "[mesh]\ntensor = [1, 2]";
  EXPECT_EQ(parse(parts).mesh.stage_tensor, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(parse(parts).mesh.tensor, 2);
  EXPECT_TRUE(parse(parts, {"mesh.tensor=auto"}).mesh.stage_tensor.empty());
  EXPECT_EQ(parse(parts, {"mesh.tensor=auto"}).mesh.tensor, kAutoTensor);
  EXPECT_EQ(parse("[mesh]\nreplicas = 2", {"mesh.replicas=auto"}).mesh.replicas, kAutoReplicas);
  EXPECT_EQ(parse("[mesh]\nreplicas = 0").mesh.replicas, kAutoReplicas);
  EXPECT_TRUE(
      parse("[mesh]\nreplicas = [1, 2]", {"mesh.replicas=auto"}).mesh.stage_replicas.empty());
  EXPECT_THAT(error_of("[mesh]\nreplicas = 'all'"), HasSubstr("\"auto\" or a whole number"));
  EXPECT_THAT(error_of("[mesh]\ntensor = [2, 'auto']"), HasSubstr("at least 1 like [1, 2]"));
}

TEST(MeshKeys, NumbersAreOfRanksThatAJobMayHave) {
  for (const char* key : {"stages", "tensor", "replicas"}) {
    EXPECT_THAT(error_of(std::string("[mesh]\n") + key + " = 4294967296"),
                HasSubstr("at most 1048576, found 4294967296"));
  }
  for (const char* key : {"tensor", "replicas"}) {
    EXPECT_THAT(error_of(std::string("[mesh]\n") + key + " = [4294967296, 4294967296]"),
                HasSubstr("at most 1048576, found 4294967296"));
  }
  EXPECT_EQ(parse("[mesh]\ntensor = [1, 1048576]").mesh.tensor, kMostRanks);
}

// mesh = "auto" stands for the whole section, in the file and after --set.
TEST(MeshKeys, AWordMayStandForTheMesh) {
  const auto job = parse("mesh = 'auto'\n[train]\nepochs = 3");
  EXPECT_EQ(job.train.epochs, 3);
  EXPECT_EQ(job.mesh,
            parse("[mesh]\nstages = 'auto'\ntensor = 'auto'\ntensor_weights = 'speed'").mesh);
  EXPECT_TRUE(is_open(job.mesh));
  for (const char* text : {"mesh=auto", "mesh=\"auto\""})
    EXPECT_EQ(parse("", {text}).mesh, job.mesh);
  EXPECT_EQ(parse("mesh = 'auto'", {"mesh.tensor=2"}).mesh.tensor, 2);
  EXPECT_EQ(parse(to_toml(job)).mesh, job.mesh);
  EXPECT_EQ(error_of("mesh = 'auto '"),
            "job.toml:1: [mesh] is a section, or the word \"auto\", not \"auto \"");
  EXPECT_THAT(error_of("", {"mesh=fast"}), HasSubstr("--set mesh=fast: [mesh] is a section"));
  EXPECT_THAT(error_of("train = 'auto'"), HasSubstr("expected a section, found a string"));
  EXPECT_THAT(error_of("[mesh]\ntensor = 'some'"),
              HasSubstr("expected \"auto\" or a whole number"));
}

// An open mesh is chosen with its schedule, unless a schedule is named.
TEST(MeshKeys, OpenMeshesHaveAnOpenSchedule) {
  EXPECT_EQ(parse("mesh = 'auto'").mesh.schedule, kAutoSchedule);
  EXPECT_EQ(parse("", {"mesh.stages=auto"}).mesh.schedule, kAutoSchedule);
  EXPECT_EQ(parse("[mesh]\nstages = 'auto'\nschedule = '1f1b'").mesh.schedule, "1f1b");
  EXPECT_EQ(parse("mesh = 'auto'", {"mesh.schedule=gpipe"}).mesh.schedule, "gpipe");
  EXPECT_EQ(parse("[mesh]\nstages = 2").mesh.schedule, "1f1b");
  EXPECT_EQ(parse("mesh = 'auto'", {"mesh.stages=2", "mesh.tensor=1"}).mesh.schedule, "1f1b");
}

}  // namespace
}  // namespace bimetal::job
