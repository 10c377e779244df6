#include "bimetal/data/text/token_set.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::data {
namespace {

Documents documents_of(const std::string& name) {
  if (name == "join") return Documents::Join;
  if (name == "separate") return Documents::Separate;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("data.documents is \"join\" or \"separate\", not \"{}\"", name));
}

std::shared_ptr<const TokenFile> open_checked(const std::filesystem::path& path) {
  auto file = std::make_shared<const TokenFile>(path);
  file->check();
  return file;
}

}  // namespace

TokenSet::TokenSet(std::shared_ptr<const TokenFile> file, std::int64_t block, Documents documents)
    : file_(std::move(file)), block_(block) {
  if (block < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a block has at least 1 token, not {}", block));
  }
  if (documents == Documents::Join) {
    add_run(0, file_->size());
  } else {
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < file_->documents(); ++i) {
      add_run(std::exchange(begin, file_->document_end(i)), file_->document_end(i));
    }
  }
  if (samples_ == 0) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("'{}' has no two tokens after each other{}: there is nothing to learn from it; "
                    "tokenize a longer text",
                    file_->name(), documents == Documents::Separate ? " in any document" : ""));
  }
}

void TokenSet::add_run(std::int64_t begin, std::int64_t end) {
  const auto targets = end - begin - 1;
  if (targets < 1) return;
  runs_.push_back({samples_, begin, end});
  samples_ += (targets - 1) / block_ + 1;
}

TokenSet::Place TokenSet::place_of(std::int64_t sample) const {
  if (sample < 0 || sample >= samples_) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("sample {} is outside a set of {}", sample, samples_));
  }
  const auto after = std::ranges::upper_bound(runs_, sample, {}, &Run::first_sample);
  const auto& run = *std::prev(after);
  const auto begin = run.begin + (sample - run.first_sample) * block_;
  return {begin, std::min(block_, run.end - 1 - begin)};
}

task::Values TokenSet::batch(std::span<const std::int64_t> samples) const {
  const auto rows = static_cast<std::int64_t>(samples.size());
  auto inputs = torch::zeros({rows, block_}, torch::kInt64);
  auto targets = torch::full({rows, block_}, kNoTarget, torch::kInt64);
  auto* input = inputs.mutable_data_ptr<std::int64_t>();
  auto* target = targets.mutable_data_ptr<std::int64_t>();
  for (const auto sample : samples) {
    const auto place = place_of(sample);
    const auto count = static_cast<std::size_t>(place.targets);
    file_->copy(place.begin, {input, count});
    file_->copy(place.begin + 1, {target, count});
    input += block_;
    target += block_;
  }
  return {std::move(inputs), std::move(targets)};
}

TokenSets load_tokens(const DatasetFiles& files, std::int64_t block, const std::string& documents) {
  const auto how = documents_of(documents);
  const auto train = open_checked(files.files.at(0));
  TokenSets sets{std::make_shared<const TokenSet>(train, block, how), nullptr};
  if (files.files.size() < 2) return sets;
  const auto test = open_checked(files.files.at(1));
  if (train->vocabulary() != test->vocabulary()) {
    throw Error(
        ErrorCode::CorruptData,
        fmt::format(
            "'{}' has a vocabulary of {} and '{}' one of {}: write both with the same tokenizer",
            train->name(), train->vocabulary(), test->name(), test->vocabulary()));
  }
  if (test->size() > 0) sets.test = std::make_shared<const TokenSet>(test, block, how);
  return sets;
}

}  // namespace bimetal::data
