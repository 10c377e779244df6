#include "bimetal/progress/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "bimetal/base/error.h"
#include "support/temporary_folder.h"

namespace bimetal::progress {
namespace {

using Json = nlohmann::ordered_json;

Report example() {
  Report report{.world_size = 2,
                .steps = 118,
                .elapsed_s = 31.5,
                .samples_per_s = 1900.0,
                .efficiency = 0.97,
                .train_loss = 0.31,
                .bytes_sent = 5'000'000'000,
                .interrupted = true};
  report.workers.push_back({0, "attic", "cpu", "", 0.8, 48000, 25.0, 3.0, 0.5, 1520.0});
  report.workers.push_back({1, "cellar", "cuda:0", "float16", 0.2, 12000, 24.0, 4.0, 1.5, 380.0});
  report.history.push_back({10, 2.5, 1.9, 1800.0, 0.9, {410, 102}});
  report.evaluations.push_back({118, 31.5, {{"accuracy", 0.905}}});
  return report;
}

TEST(Report, HoldsEveryFieldUnderItsName) {
  const Json json = Json::parse(to_json(example()));
  const Json expected = Json::parse(R"json({
    "world_size": 2, "steps": 118, "elapsed_s": 31.5,
    "counts": "samples", "samples_per_s": 1900.0,
    "efficiency": 0.97,
    "alone_from": "each worker's own compute time in this run, beside the others; not a run by itself",
    "train_loss": 0.31, "test_accuracy": 0.905, "bytes_sent": 5000000000,
    "interrupted": true,
    "workers": [
      {"rank": 0, "host": "attic", "device": "cpu", "share": 0.8, "samples": 48000,
       "compute_s": 25.0, "communicate_s": 3.0, "wait_s": 0.5, "samples_per_s_alone": 1520.0},
      {"rank": 1, "host": "cellar", "device": "cuda:0", "share": 0.2, "samples": 12000,
       "compute_s": 24.0, "communicate_s": 4.0, "wait_s": 1.5, "samples_per_s_alone": 380.0,
       "precision": "float16"}],
    "history": [{"step": 10, "elapsed_s": 2.5, "loss": 1.9, "samples_per_s": 1800.0,
                 "efficiency": 0.9, "shares": [410, 102]}],
    "evaluations": [{"step": 118, "elapsed_s": 31.5, "test_accuracy": 0.905}],
    "fastest_alone": {"rank": 0, "samples_per_s_alone": 1520.0, "job_relative": 1.25,
                      "time": "it computed for 79 % of the time and waited for 2 %; 19 % went into neither (fetching batches, watching, the system)"}
  })json");
  EXPECT_EQ(json, expected);  // ordered: the order of the keys counts, too
}

TEST(Report, SetsADiskBesideAPlainCopy) {
  auto report = example();
  report.workers[1].offload = {.folder = "/mnt/nvme",
                               .states = DiskReport{4096, 3000, 2, 3000, 1.5, 0.25},
                               .parameters = DiskReport{2048, 500, 0.5, 800, 0, 0.125},
                               .copy = DiskReport{1000, 1000, 0.25, 1000, 0.5, 0}};
  const auto workers = Json::parse(to_json(report)).at("workers");
  EXPECT_FALSE(workers[0].contains("offload"));
  EXPECT_EQ(workers[1].at("offload"), Json::parse(R"json({
    "folder": "/mnt/nvme",
    "states": {"kept_bytes": 4096.0, "read_bytes": 3000.0, "read_s": 2.0,
               "read_bytes_per_s": 1500.0, "written_bytes": 3000.0, "write_s": 1.5,
               "written_bytes_per_s": 2000.0, "wait_s": 0.25},
    "parameters": {"kept_bytes": 2048.0, "read_bytes": 500.0, "read_s": 0.5,
                   "read_bytes_per_s": 1000.0, "written_bytes": 800.0, "write_s": null,
                   "written_bytes_per_s": null, "wait_s": 0.125},
    "copy": {"bytes": 1000.0, "read_bytes_per_s": 4000.0, "written_bytes_per_s": 2000.0}
  })json"));
  report.workers[1].offload->copy.reset();
  EXPECT_TRUE(Json::parse(to_json(report)).at("workers")[1].at("offload").at("copy").is_null());
}

TEST(Report, TellsValidationFromTest) {
  auto report = example();
  report.evaluations.insert(report.evaluations.begin(),
                            {{59, 15, {{"accuracy", 0.8}}, kValidationData},
                             {118, 31, {{"accuracy", 0.7}}, kValidationData}});
  report.best = {59, 0.5, {{"accuracy", 0.8}}, "runs/a/best/step-00000059"};
  const Json json = Json::parse(to_json(report));
  EXPECT_EQ(json["test_accuracy"], 0.905);
  EXPECT_EQ(json["validation_accuracy"], 0.7);
  EXPECT_EQ(json["best"], Json::parse(R"json({"step": 59, "validation_accuracy": 0.8,
    "validation_loss": 0.5, "checkpoint": "runs/a/best/step-00000059"})json"));
  EXPECT_EQ(json["evaluations"][0], Json::parse(R"json({"step": 59, "elapsed_s": 15.0,
    "validation_accuracy": 0.8})json"));
  report.best->checkpoint.clear();
  EXPECT_TRUE(Json::parse(to_json(report))["best"]["checkpoint"].is_null());
}

TEST(Report, HoldsPlannedMemoryBesideWhatItWas) {
  auto report = example();
  report.workers[0].memory = {.peak = 900,
                              .planned = 880,
                              .program = 100,
                              .parameters = 200,
                              .gradients = 150,
                              .optimizer = 300,
                              .activations = 80,
                              .buffers = 50};
  report.workers[1].memory.peak = 700;
  const Json workers = Json::parse(to_json(report))["workers"];
  EXPECT_EQ(workers[0]["memory"], Json::parse(R"json({
    "peak_bytes": 900.0, "planned_bytes": 880.0,
    "planned": {"program": 100.0, "parameters": 200.0, "gradients": 150.0, "optimizer": 300.0,
                "activations": 80.0, "buffers": 50.0, "kept": 0.0}})json"));
  EXPECT_EQ(workers[1]["memory"],
            Json::parse(R"json({"peak_bytes": 700.0, "planned_bytes": null})json"));
}

TEST(Report, HoldsWhatTheBalancerSaw) {
  auto report = example();
  report.balance =
      BalanceRecord{.policy = "auto", .global_batch = 512, .probes = {{0.01, 0.5}, {}}};
  report.balance->steps.push_back({{500, 12}, {0.25, 0.5}, {false, true}, {0, 0}, {0, 0}});
  report.balance->steps.push_back({{512, 0}, {0.25, 0}, {false, false}, {0, 40}, {0, 0.125}});
  const Json json = Json::parse(to_json(report));
  const Json expected = Json::parse(R"({
    "policy": "auto", "global_batch": 512,
    "probes": [{"alpha_s": 0.01, "beta_s": 0.5}, {"alpha_s": 0.0, "beta_s": 0.0}],
    "complete": true,
    "steps": [
      {"batch": [500, 12], "compute_s": [0.25, 0.5], "out_of_memory": [false, true]},
      {"batch": [512, 0], "compute_s": [0.25, 0.0],
       "shadow_batch": [0, 40], "shadow_s": [0.0, 0.125]}]
  })");
  EXPECT_EQ(json["balance"], expected);
}

TEST(Report, SaysNullWhereThereIsNoNumber) {
  Report report;
  report.train_loss = std::numeric_limits<double>::infinity();
  const Json json = Json::parse(to_json(report));
  EXPECT_TRUE(json["test_accuracy"].is_null());
  EXPECT_TRUE(json["train_loss"].is_null());
  EXPECT_EQ(json["workers"], Json::array());
}

TEST(Report, EachMetricHasItsNameAndTheAccuracyItsPlace) {
  auto report = example();
  report.evaluations.push_back({236, 63.0, {{"accuracy", 0.91}, {"perplexity", 12.5}}});
  const Json json = Json::parse(to_json(report));
  EXPECT_EQ(json["test_accuracy"], 0.91);
  EXPECT_EQ(json["test_perplexity"], 12.5);
  EXPECT_EQ(json["evaluations"][1]["test_perplexity"], 12.5);
  EXPECT_FALSE(json["evaluations"][0].contains("test_perplexity"));
  report.evaluations = {{118, 31.5, {{"perplexity", std::numeric_limits<double>::infinity()}}}};
  const Json other = Json::parse(to_json(report));
  EXPECT_TRUE(other["test_perplexity"].is_null());
  EXPECT_FALSE(other.contains("test_accuracy"));
}

TEST(Report, SurvivesAStrangeHostName) {
  Report report;
  report.workers.push_back({.host = "a\xff\"b"});
  EXPECT_EQ(Json::parse(to_json(report))["workers"][0]["host"], "a\xef\xbf\xbd\"b");
}

TEST(Report, IsWrittenInOnePiece) {
  const test::TemporaryFolder folder;
  write_report(Report(), folder / "report.json");
  write_report(example(), folder / "report.json");
  EXPECT_EQ(test::contents_of(folder / "report.json"), to_json(example()));
  EXPECT_EQ(test::names_in(folder.path()), std::set<std::string>{"report.json"});
}

TEST(Report, NamesPathAndCauseWhenItCannotBeWritten) {
  const auto path = test::TemporaryFolder() / "gone/report.json";
  try {
    write_report(Report(), path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::System);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(path.string() + ": No such file"));
  }
}

}  // namespace
}  // namespace bimetal::progress
