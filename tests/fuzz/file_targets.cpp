// Targets of what is read from files: job files, data sets, checkpoints. Each refuses what it
// cannot use with an error of one kind, and promises something of what it takes.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/safetensors.h"
#include "bimetal/data/images/image_formats.h"
#include "bimetal/data/text/token_set.h"
#include "bimetal/job/deepspeed.h"
#include "bimetal/job/job_config.h"
#include "fuzz/targets.h"
#include "support/temporary_folder.h"

namespace bimetal::fuzz {
namespace {

template <typename Action>
void used_or_refused(std::initializer_list<ErrorCode> refusals, Action action) {
  try {
    action();
  } catch (const Error& error) {
    promise(std::ranges::find(refusals, error.code()) != refusals.end());
  }
}

std::string text_in(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::optional<test::TemporaryFolder> file_folder;

/// Takes the folder away when the tests have run: statics stay where a process ends at once
/// (support/test_main.cpp).
class FileFolder : public ::testing::Environment {
 public:
  void SetUp() override { file_folder.emplace(); }
  void TearDown() override { file_folder.reset(); }
};
[[maybe_unused]] const auto* const file_folder_owner =
    ::testing::AddGlobalTestEnvironment(new FileFolder);

/// A file of these bytes, overwritten by the next.
std::filesystem::path file_of_bytes(Bytes bytes) {
  const bool gzipped = !bytes.empty() && bytes[0] == std::byte{0x1f};  // as gzip's files begin
  const auto path = *file_folder / (gzipped ? "file.gz" : "file");
  test::put_contents(path, text_in(bytes));
  return path;
}

}  // namespace

void job_file(Bytes bytes) {
  used_or_refused({ErrorCode::InvalidArgument}, [&] {
    const auto job = job::parse_job(text_in(bytes), "job.toml");
    promise(job::parse_job(job::to_toml(job), "again") == job);
  });
}

void deepspeed_file(Bytes bytes) {
  used_or_refused({ErrorCode::InvalidArgument, ErrorCode::Unsupported}, [&] {
    job::JobConfig job;
    const auto loop = job::apply_deepspeed(text_in(bytes), "ds_config.json", 2, job);
    promise(loop.accumulation >= 1 && loop.micro_batch >= 0 && job.train.global_batch >= 1);
  });
}

void idx_file(Bytes bytes) {
  used_or_refused({ErrorCode::CorruptData}, [&] {
    const auto read = data::read_idx(file_of_bytes(bytes));
    promise(read.dtype() == torch::kUInt8 && read.numel() <= 1 << 20);
  });
}

void token_file(Bytes bytes) {
  used_or_refused({ErrorCode::CorruptData}, [&] {
    const data::TokenFile file(file_of_bytes(bytes));
    file.check();
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.size()));
    file.copy(0, tokens);
    for (const auto token : tokens) promise(token >= 0 && token < file.vocabulary());
  });
}

void safetensors_file(Bytes bytes) {
  used_or_refused({ErrorCode::CorruptData}, [&] {
    std::size_t held = 0;
    for (const auto& [name, tensor] : checkpoint::read_safetensors(file_of_bytes(bytes))) {
      held += tensor.nbytes();
    }
    promise(held <= bytes.size());
  });
}

void manifest(Bytes bytes) {
  const auto text = text_in(bytes);
  used_or_refused({ErrorCode::CorruptData}, [&] {
    const auto state = checkpoint::parse_state_text(text, "state");
    promise(checkpoint::state_text(checkpoint::parse_state_text(
                checkpoint::state_text(state), "again")) == checkpoint::state_text(state));
  });
  used_or_refused({ErrorCode::CorruptData}, [&] {
    const auto index = checkpoint::parse_index_text(text, "index");
    promise(checkpoint::index_text(checkpoint::parse_index_text(
                checkpoint::index_text(index), "again")) == checkpoint::index_text(index));
  });
}

std::span<const Target> targets() {
  static constexpr Target all[] = {
      {"deepspeed_file", deepspeed_file},
      {"idx_file", idx_file},
      {"job_file", job_file},
      {"manifest", manifest},
      {"safetensors_file", safetensors_file},
      {"token_file", token_file},
  };
  return all;
}

}  // namespace bimetal::fuzz
