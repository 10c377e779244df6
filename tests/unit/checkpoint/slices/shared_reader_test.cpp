// A checkpoint that cannot be read: every rank says why, whichever has looked.

#include "bimetal/checkpoint/slices/shared_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/serialize.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/comm/exchange.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"
#include "unit/checkpoint/small_net.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using OnRank = std::function<void(int rank, comm::Group group)>;

/// The error of three ranks, all of them in the same words.
std::string refusal_of_all(const OnRank& read) {
  std::vector<std::string> said(3);
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    try {
      read(rank, group);
    } catch (const Error& error) {
      said[static_cast<std::size_t>(rank)] =
          std::string(to_string(error.code())) + ": " + error.what();
    }
  });
  EXPECT_EQ(said, std::vector<std::string>(3, said[0]));
  return said[0];
}

OnRank reading(const fs::path& path) {
  return [path](int rank, comm::Group group) {
    const SharedReader saved(group, rank == 0 ? std::optional(path) : std::nullopt);
  };
}

TEST(SharedReader, WhereNoneIsFoundAllRanksSaySo) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(refusal_of_all(reading(folder / "missing")),
              HasSubstr("invalid_argument: there is no checkpoint in"));
  EXPECT_THAT(refusal_of_all(reading(folder.path())), HasSubstr("it is empty"));
}

TEST(SharedReader, WhereItIsDamagedOrOfAnotherModelAllRanksSaySo) {
  const test::TemporaryFolder folder;
  SmallNet net;
  torch::optim::SGD sgd(net.parameters(), 0.1);
  const auto path = save_checkpoint(folder.path(), net, sgd, {.step = 1}, 1);
  EXPECT_EQ(refusal_of_all(reading(path)), "");
  EXPECT_EQ(refusal_of_all([&](int rank, comm::Group group) {
              SharedReader saved(group, rank == 0 ? std::optional(path) : std::nullopt);
              saved.on_rank_0([](OpenCheckpoint&) {
                throw Error(ErrorCode::InvalidArgument, "it holds another model");
              });
            }),
            "invalid_argument: it holds another model");
  const auto model = test::contents_of(path / kModelFile);
  test::put_contents(path / kModelFile, model.substr(0, model.size() - 1));
  EXPECT_THAT(refusal_of_all(reading(path)), HasSubstr("corrupt_data: "));
  EXPECT_THAT(refusal_of_all([&](int, comm::Group group) {
                SmallNet mine;
                torch::optim::SGD its(mine.parameters(), 0.1);
                load_shared_checkpoint(group, path, mine, its);
              }),
              HasSubstr("corrupt_data: "));
}

TEST(SharedReader, NothingIsFoundWhereRank0IsGivenNothing) {
  testing::run_ranks(2, [](int, comm::Group group) {
    SharedReader saved(group, std::nullopt);
    EXPECT_FALSE(saved.found());
    saved.on_rank_0([](OpenCheckpoint&) { ADD_FAILURE(); });
  });
}

// The state that rank 0 reads from a checkpoint and hands to the others.
TrainingState some_state() {
  return {.step = 7,
          .position = {.epoch = 2, .offset = 1536},
          .seed = 18446744073709551615u,
          .global_batch = 512,
          .shares = {410, 0, 102},
          .torch_rng = {0, 1, 2, 254, 255},
          .error_feedback = {{"bucket 0.residual", {1.5f, -2, 0}}, {"bucket 1.basis", {3}}},
          .model = ModelDescription{.name = "mlp"}};
}

TEST(SharedCheckpoint, DescribesLanguageModels) {
  auto state = some_state();
  state.error_feedback.clear();
  auto config = models::resized(models::language_preset("llama"), {.kv_heads = 2, .hidden = 7});
  config.dropout = 0.25;
  config.epsilon = 1e-6;
  config.rope_theta = 5e5;
  config.tied = true;
  state.model = ModelDescription{.name = "llama", .dtype = "float64", .language = config};
  EXPECT_EQ(parse_state_text(state_text(state), "here"), state);
}

TEST(SharedCheckpoint, NormalisationIsOneNumberOrOneForEachChannel) {
  auto state = some_state();
  state.error_feedback.clear();
  state.model->mean = {0.5};
  EXPECT_THAT(state_text(state), HasSubstr("\"mean\":[0.5]"));
  EXPECT_EQ(parse_state_text(state_text(state), "here"), state);
  const auto grey = state.model;
  state.model->mean = {0.25, 0.5, 0.75};
  state.model->stddev = {1, 2, 3};
  EXPECT_EQ(parse_state_text(state_text(state), "here"), state);

  EXPECT_FALSE(other_normalisation(state.model, *state.model));
  EXPECT_FALSE(other_normalisation(std::nullopt, *state.model));
  EXPECT_THAT(
      other_normalisation(grey, *state.model).value_or(""),
      HasSubstr("data.mean = [0.5] and data.stddev = [1], and goes on with [0.25, 0.5, 0.75]"));
}

/// A model and an optimizer that has learnt something, or nothing yet.
struct Trained {
  explicit Trained(int steps) : adam(net.parameters(), torch::optim::AdamOptions(0.1)) {
    run_steps(net, adam, 1, steps);
  }
  SmallNet net;
  torch::optim::Adam adam;
};

TEST(SharedCheckpoint, WithoutOneEveryRankBeginsAnew) {
  testing::run_ranks(2, [](int, comm::Group group) {
    Trained mine(0);
    EXPECT_FALSE(load_shared_checkpoint(group, std::nullopt, mine.net, mine.adam));
    EXPECT_TRUE(mine.adam.state().empty());
  });
}

/// libtorch's archive of an optimizer, which its loading hands to an interpreter of code.
comm::Bytes archive_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(stream);
  const auto text = std::move(stream).str();
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(SharedCheckpoint, NothingButDataIsTakenFromRank0) {
  const comm::Bytes hostile[] = {archive_of(Trained(2).adam), comm::Bytes(100, std::byte{0x80}),
                                 comm::Bytes()};
  for (const auto& learnt : hostile) {
    testing::run_ranks(2, [&](int rank, comm::Group group) {
      Trained mine(1);
      const auto before = optimizer_tensors(mine.adam, mine.net);
      if (rank == 0) {
        comm::on_rank_0(
            group, [] {}, Deadline::after(kFileTimeout));  // it has read a checkpoint
        const auto text = state_text(some_state());
        const auto state = std::as_bytes(std::span(text));
        for (const comm::Bytes& part :
             {comm::Bytes(state.begin(), state.end()), encode_safetensors({}), learnt}) {
          comm::broadcast_bytes(group, part, 0, Deadline::after(kFileTimeout));
        }
        return;
      }
      expect_error(ErrorCode::CorruptData, {"rank 0 has sent"},
                   [&] { load_shared_checkpoint(group, std::nullopt, mine.net, mine.adam); });
      for (const auto& [name, tensor] : optimizer_tensors(mine.adam, mine.net)) {
        EXPECT_TRUE(tensor.equal(before.at(name))) << name;
      }
    });
  }
}

}  // namespace
}  // namespace bimetal::checkpoint
