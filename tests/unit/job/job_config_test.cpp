#include "bimetal/job/job_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/job/job_keys.h"
#include "job_texts.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace bimetal::job {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(JobConfig, AnEmptyFileIsTheDefaults) {
  EXPECT_EQ(parse(""), JobConfig());
}

TEST(JobConfig, ReadsEveryKind) {
  const JobConfig job = parse(R"(
    data.path = "/data"            # a dotted key is the same as one in a section
    [train]
    epochs = 3
    seed = 9223372036854775807
    learning_rate = 1              # a whole number where a number is asked for
    dtype = "float64"
    evaluate = false
    [parallel]
    balance = [3, 0.5]
    [cluster]
    workers = ["cpu:threads=1", "cuda:0"]
  )");
  EXPECT_EQ(job.data.path, "/data");
  EXPECT_EQ(job.train.epochs, 3);
  EXPECT_EQ(job.train.seed, 9223372036854775807u);
  EXPECT_EQ(job.train.learning_rate, 1.0);
  EXPECT_EQ(job.train.dtype, "float64");
  EXPECT_FALSE(job.train.evaluate);
  EXPECT_EQ(job.parallel.balance, balance::Policy::Fixed);
  EXPECT_EQ(job.parallel.weights, (std::vector<double>{3, 0.5}));
  EXPECT_EQ(job.cluster.workers, (std::vector<std::string>{"cpu:threads=1", "cuda:0"}));
}

TEST(JobConfig, TheMonitorsAddressIsChecked) {
  EXPECT_EQ(parse("", {"monitor.listen=[::1]:0"}).monitor.listen, "[::1]:0");
  EXPECT_EQ(parse("monitor.listen = \"127.0.0.1:9100\"", {"monitor.listen="}).monitor.listen, "");
  EXPECT_THAT(error_of("[monitor]\nlisten = \"127.0.0.1\""),
              AllOf(HasSubstr("job.toml:2"), HasSubstr("127.0.0.1"), HasSubstr("port")));
}

TEST(JobConfig, PasswordsInAnOverridesUrlAreNotShown) {
  for (const char* text :
       {"dta.path=https://anna:pa55@host/a?sig=beef", "data.pth=s3://pa55@bucket",
        "data.path=\"https://anna:pa55@host/a?sig=beef"}) {
    EXPECT_THAT(error_of("", {text}), AllOf(HasSubstr("--set d"), HasSubstr("***@"),
                                            Not(HasSubstr("pa55")), Not(HasSubstr("beef"))));
  }
  EXPECT_EQ(parse("", {"data.path=https://a:b@c/d?e"}).data.path, "https://a:b@c/d?e");
}

TEST(JobConfig, KnowsTheKeysThatScriptsRelyOn) {
  const auto names = job_key_names();
  std::istringstream kept(
      "train.epochs train.steps train.global_batch train.seed train.dtype train.learning_rate "
      "train.momentum train.optimizer parallel.balance checkpoint.dir checkpoint.every_steps "
      "data.name data.path model.name mesh.stages mesh.replicas mesh.tensor mesh.cuts "
      "mesh.tensor_weights mesh.schedule");
  for (std::string key; kept >> key;) EXPECT_THAT(names, ::testing::Contains(key));
}

TEST(JobConfig, NamesLineAndNearestKey) {
  EXPECT_EQ(error_of("[train]\nepoch = 3\n"),
            "job.toml:2: unknown key 'epoch' in [train]; did you mean 'epochs'?");
  EXPECT_EQ(error_of("\n[trian]\nepochs = 3\n"),
            "job.toml:2: unknown section [trian]; did you mean [train]?");
}

TEST(JobConfig, TellsWhereAMisplacedKeyBelongs) {
  EXPECT_EQ(error_of("[data]\nepochs = 3\n"),
            "job.toml:2: unknown key 'epochs' in [data]; it belongs in [train]");
  EXPECT_EQ(error_of("epochs = 3\n"), "job.toml:1: 'epochs' stands outside its section [train]");
  EXPECT_EQ(error_of("train = 3\n"),
            "job.toml:1: expected a section, found a whole number named 'train'");
}

TEST(JobConfig, ReportsTheFirstMistakeFirst) {
  EXPECT_THAT(error_of("[train]\nsteps = 'many'\nepochs = 'few'\n[data]\nname = 1"),
              HasSubstr("job.toml:2: 'steps'"));
}

TEST(JobConfig, RefusesWrongTypes) {
  EXPECT_EQ(error_of("[train]\nepochs = 'three'"),
            "job.toml:2: 'epochs' in [train]: expected a whole number, found a string");
  EXPECT_THAT(error_of("[train]\nepochs = 3.0"), HasSubstr("found a floating-point number"));
  EXPECT_THAT(error_of("[train]\nlearning_rate = '1'"),
              HasSubstr("expected a number, found a str"));
  EXPECT_THAT(error_of("[train]\nevaluate = 1"),
              HasSubstr("expected true or false, found a whole"));
  EXPECT_THAT(error_of("[data]\nname = 5"), HasSubstr("expected a string, found a whole number"));
  EXPECT_THAT(error_of("[data]\nname = 1979-05-27"), HasSubstr("found a date"));
  EXPECT_THAT(error_of("[cluster]\nworkers = 'cpu'"), HasSubstr("an array of strings"));
  EXPECT_THAT(error_of("[fabric]\ntransport = 'rdma'"), HasSubstr("\"shm\" or \"mpi\""));
  EXPECT_THAT(error_of("[cluster]\nworkers = ['cpu', 1]"), HasSubstr("a whole number in it"));
  EXPECT_THAT(error_of("[parallel]\nbalance = 3"), HasSubstr("expected \"auto\", \"equal\" or"));
  EXPECT_THAT(error_of("[parallel]\nbalance = ['a']"), HasSubstr("found a string in it"));
}

TEST(JobConfig, RefusesValuesOutOfRange) {
  EXPECT_EQ(error_of("[train]\nepochs = 0"),
            "job.toml:2: 'epochs' in [train]: expected a whole number of at least 1, found 0");
  EXPECT_EQ(error_of("[train]\nmomentum = 1.0"),
            "job.toml:2: 'momentum' in [train]: expected a number of at least 0 and less than 1, "
            "found 1");
  EXPECT_THAT(error_of("[train]\nlearning_rate = 0"),
              HasSubstr("a number greater than 0, found 0"));
  for (const char* value : {"nan", "inf", "-inf", "-1"}) {
    EXPECT_THAT(error_of(fmt::format("[train]\nlearning_rate = {}", value)), HasSubstr("found"));
  }
  EXPECT_THAT(error_of("[train]\nseed = -1"), HasSubstr("at least 0"));
  EXPECT_THAT(error_of("[train]\nglobal_batch = 0"), HasSubstr("at least 1"));
  EXPECT_THAT(error_of("[train]\nbeta2 = 1.0"), HasSubstr("less than 1"));
  EXPECT_THAT(error_of("[train]\nmin_learning_rate_ratio = 1.5"), HasSubstr("at most 1"));
  EXPECT_THAT(error_of("[train]\nschedule = 'line'"), HasSubstr("\"linear\" or \"cosine\""));
  EXPECT_THAT(error_of("[train]\noptimizer = 'lion'"), HasSubstr("\"lars\" or \"lamb\""));
  EXPECT_THAT(error_of("[checkpoint]\nkeep = 0"), HasSubstr("at least 1"));
  EXPECT_THAT(error_of("[parallel]\ntimeout_s = 1e300"), HasSubstr("at most"));
  EXPECT_THAT(error_of("[compression]\ntopk_density = 2"), HasSubstr("at most 1"));
  EXPECT_THAT(error_of("[compression]\ngradients = 'zip'"), HasSubstr("\"powersgd\" or \"sign\""));
  EXPECT_EQ(error_of("[train]\ndtype = 'float16'"),
            "job.toml:2: 'dtype' in [train]: expected \"float32\" or \"float64\", found "
            "\"float16\"");
}

TEST(JobConfig, RecomputeTakesAWordOrANumber) {
  const auto recompute = [](const std::string& value) {
    return parse("[train]\nrecompute = " + value).train.recompute;
  };
  EXPECT_EQ(recompute("'sqrt'"), "sqrt");
  EXPECT_EQ(recompute("3"), "3");
  EXPECT_EQ(parse("", {"train.recompute=auto"}).train.recompute, "auto");
  EXPECT_EQ(parse("", {"train.recompute=2"}).train.recompute, "2");
  EXPECT_EQ(
      error_of("[train]\nrecompute = 'every'"),
      "job.toml:2: 'recompute' in [train]: expected \"none\", \"all\", \"sqrt\", \"auto\" or a "
      "whole number of at least 1, found \"every\"");
  EXPECT_THAT(error_of("[train]\nrecompute = 0"), HasSubstr("at least 1, found 0"));
  EXPECT_THAT(error_of("[train]\nrecompute = true"), HasSubstr("found a boolean"));
}

TEST(JobConfig, ImagesAreNormalisedByNumbersOfTheirChannels) {
  const auto data = parse("[data]\nmean = [0.5, 0, 1]", {"data.stddev=[0.25]"}).data;
  EXPECT_EQ(data.mean, (std::vector<double>{0.5, 0, 1}));
  EXPECT_EQ(data.stddev, std::vector<double>{0.25});
  EXPECT_THAT(error_of("[data]\nstddev = [1, 0]"), HasSubstr("greater than 0, found 0 in it"));
  EXPECT_THAT(error_of("[data]\nmean = 0.5"), HasSubstr("an array of numbers"));
  EXPECT_THAT(error_of("[data]\nmean = ['a']"), HasSubstr("a number, found a string in it"));
}

TEST(JobConfig, RefusesSharesThatNobodyCanTake) {
  for (const char* shares : {"[]", "[0, 0]", "[1, -1]", "[1, nan]", "[inf]", "'half'"}) {
    EXPECT_THAT(error_of(fmt::format("[parallel]\nbalance = {}", shares)),
                HasSubstr("'balance' in [parallel]: expected"));
  }
}

TEST(JobConfig, RefusesWorkersThatCannotBe) {
  EXPECT_THAT(
      error_of("[cluster]\nworkers = ['cpu', 'cpu:thread=1']"),
      HasSubstr("job.toml:2: 'workers' in [cluster]: worker \"cpu:thread=1\": unknown key"));
}

TEST(JobConfig, GivesTheLineOfASyntaxError) {
  EXPECT_THAT(error_of("[train]\nepochs = 3\nsteps = = 4"), HasSubstr("job.toml:3: "));
  EXPECT_THAT(error_of("[train]\nepochs = 3\nepochs = 4"), HasSubstr("job.toml:3: "));
  EXPECT_THAT(error_of("[train]\nepochs = \xff"), HasSubstr("job.toml:2: "));
}

TEST(JobOverride, WinsOverTheFile) {
  const JobConfig job =
      parse("[train]\nepochs = 3",
            {"train.epochs=5", "train.dtype=float64", "parallel.balance=[3, 1]",
             "train.learning_rate=1e-3", "cluster.workers=[\"cpu\"]", "train.epochs=6"});
  EXPECT_EQ(job.train.epochs, 6);
  EXPECT_EQ(job.train.dtype, "float64");
  EXPECT_EQ(job.parallel.weights, (std::vector<double>{3, 1}));
  EXPECT_EQ(job.train.learning_rate, 1e-3);
  EXPECT_EQ(job.cluster.workers, std::vector<std::string>{"cpu"});
  EXPECT_EQ(parse("[parallel]\nbalance = [1]", {"parallel.balance=equal"}).parallel.weights,
            std::vector<double>{});
}

TEST(JobOverride, TakesBareWordsForTextLiterally) {
  const auto path = [](const std::string& value) {
    return parse("", {"data.path=" + value}).data.path;
  };
  EXPECT_EQ(path("/a b/c#d"), "/a b/c#d");
  EXPECT_EQ(path("2024-05-27"), "2024-05-27");
  EXPECT_EQ(path("C:\\data"), "C:\\data");
  EXPECT_EQ(path("a=b.c"), "a=b.c");
  EXPECT_EQ(path("1\n[train]"), "1\n[train]");
  EXPECT_EQ(path("\"quoted\""), "quoted");
  EXPECT_EQ(path(""), "");
}

TEST(JobOverride, IsCheckedLikeTheFile) {
  EXPECT_EQ(error_of("", {"train.epoch=3"}),
            "--set train.epoch=3: unknown key 'epoch' in [train]; did you mean 'epochs'?");
  EXPECT_EQ(error_of("", {"tran.epochs=3"}),
            "--set tran.epochs=3: unknown section [tran]; did you mean [train]?");
  EXPECT_EQ(
      error_of("", {"train.epochs=many"}),
      "--set train.epochs=many: 'epochs' in [train]: expected a whole number, found a string");
  EXPECT_THAT(error_of("", {"train.epochs=0"}), HasSubstr("of at least 1, found 0"));
  EXPECT_THAT(error_of("", {"parallel.balance=[3,"}), HasSubstr("--set parallel.balance=[3,: "));
  for (const char* text : {"train.epochs", "epochs=3", "=3", "", "x=train.epochs"}) {
    EXPECT_EQ(error_of("", {text}), fmt::format("--set {}: expected section.key=value", text));
  }
}

TEST(JobConfig, SurvivesTheTripThroughToml) {
  EXPECT_EQ(parse(to_toml(JobConfig())), JobConfig());
  JobConfig job;
  job.model.name = "mlp";
  job.model.hidden = 4632;
  job.data.mean = {1.0 / 3, 1};
  job.data.path = "C:\\a \"b\"\n\t\x7f€";
  job.train.seed = 9223372036854775807u;
  job.train.learning_rate = 0.1 + 0.2;
  job.train.weight_decay = 1e-300;
  job.train.recompute = "4";
  job.train.evaluate = false;
  job.parallel.balance = balance::Policy::Fixed;
  job.parallel.weights = {1.0 / 3, 1e20, 0};
  job.cluster.workers = {"cpu:threads=1,speed=0.25", "auto"};
  job.fabric.transport = "mpi";
  job.mesh = {.stages = 3,
              .cuts = {1, 4},
              .tensor_weights = {2, 1.5},
              .sequence_parallel = true,
              .schedule = "gpipe"};
  EXPECT_EQ(parse(to_toml(job)), job) << to_toml(job);
  job.parallel.balance = balance::Policy::Equal;
  job.parallel.weights.clear();
  job.train.recompute = "all";
  job.mesh.stages = kAutoStages;
  job.mesh.stage_replicas = {1, 2};
  job.mesh.stage_tensor = {3, 1};
  job.mesh.tensor = 3;
  EXPECT_EQ(parse(to_toml(job)), job);
}

TEST(JobConfig, JsonTellsNumbersFromWholeNumbers) {
  JobConfig job;
  job.model.name = "a \"b\"";
  job.train.learning_rate = 1;
  job.train.weight_decay = 1e-20;
  job.parallel.balance = balance::Policy::Fixed;
  job.parallel.weights = {3, 1};
  const auto json = nlohmann::json::parse(job::to_json(job));
  EXPECT_EQ(json["model"]["name"], "a \"b\"");
  EXPECT_TRUE(json["train"]["epochs"].is_number_integer());
  EXPECT_TRUE(json["train"]["learning_rate"].is_number_float());
  EXPECT_EQ(json["train"]["learning_rate"], 1.0);
  EXPECT_EQ(json["train"]["weight_decay"], 1e-20);
  EXPECT_TRUE(json["train"]["evaluate"].is_boolean());
  EXPECT_EQ(json["parallel"]["balance"], (std::vector<double>{3, 1}));
  EXPECT_EQ(json["checkpoint"]["dir"], "");
}

TEST(JobConfig, LoadsFilesAndNamesThem) {
  const test::TemporaryFolder folder;
  const auto file = folder / "my job.toml";
  test::put_contents(file, "[train]\nepochs = 7\n");
  EXPECT_EQ(load_job(file, {"train.steps=2"}).train.epochs, 7);
  EXPECT_EQ(load_job(file).checkpoint.dir, "runs/" + file.stem().string());
  EXPECT_EQ(load_job(file, {"checkpoint.dir="}).checkpoint.dir, "") << "whoever wants none says so";
  test::put_contents(file, "[train]\nepochs = x\n");
  for (const auto& [path, problem] :
       {std::pair(file, ":2: "),
        std::pair(folder.path(), ": cannot read the job file: Is a directory"),
        std::pair(folder / "none.toml", ": cannot read the job file: No such file")}) {
    expect_error(ErrorCode::InvalidArgument, {path.string() + problem},
                 [&path = path] { load_job(path); });
  }
}

// The documentation has a table for each section, with a row "| `key` | type | `default` |".
TEST(JobConfig, IsDocumentedKeyByKey) {
  const std::string docs = test::contents_of(BIMETAL_SOURCE_DIR "/docs/job_file.md");
  for (const std::string& name : job_key_names()) {
    const auto dot = name.find('.');
    const auto heading = docs.find("### [" + name.substr(0, dot) + "]");
    ASSERT_NE(heading, std::string::npos) << name;
    const auto section = docs.substr(heading, docs.find("\n##", heading + 1) - heading);
    EXPECT_THAT(section, HasSubstr("\n| `" + name.substr(dot + 1) + "` |")) << name;
  }
}

TEST(JobConfig, TheExampleIsValid) {
  const JobConfig job = load_job(BIMETAL_SOURCE_DIR "/examples/fashion_mnist.toml");
  EXPECT_EQ(job.data.name, "fashion-mnist");
  EXPECT_EQ(job.cluster.workers.size(), 2u);
}

}  // namespace
}  // namespace bimetal::job
