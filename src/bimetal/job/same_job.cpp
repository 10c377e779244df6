#include "bimetal/job/same_job.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/job/job_keys.h"

namespace bimetal::job {

JobFacts facts_of(const JobConfig& job) {
  JobConfig copy = job;  // the table binds to members that could be written
  JobFacts facts;
  for (const JobKey& key : job_keys(copy)) {
    if (key.ranks != Ranks::Alike) continue;
    auto text = key.value.write();
    if (text.starts_with('"')) text = text.substr(1, text.size() - 2);
    facts.emplace_back(fmt::format("{}.{}", key.section, key.name), std::move(text));
  }
  return facts;
}

namespace {

/// What each rank has, in the order of ranks and of `mine`, which are of equal number everywhere.
std::vector<std::vector<std::string>> gathered(comm::Group group,
                                               const std::vector<std::string>& mine,
                                               std::chrono::milliseconds timeout) {
  WireWriter writer;
  for (const auto& text : mine) writer.string(text);
  std::vector<std::vector<std::string>> all;
  for (const auto& bytes :
       comm::all_gather_bytes(group, std::move(writer).take(), Deadline::after(timeout))) {
    WireReader reader(bytes);
    auto& texts = all.emplace_back();
    for (std::size_t i = 0; i < mine.size(); ++i) texts.push_back(reader.string());
  }
  return all;
}

/// `said`: what is told of the i-th text, which differs on that rank, with what all ranks have.
template <typename Said>
void require_same(comm::Group group, const std::vector<std::string>& mine,
                  std::chrono::milliseconds timeout, const Said& said) {
  const auto all = gathered(std::move(group), mine, timeout);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < mine.size(); ++i) {
      if (all[rank][i] == all[0][i]) continue;
      throw Error(ErrorCode::CallMismatch, said(i, rank, all), static_cast<int>(rank));
    }
  }
}

}  // namespace

void require_same_job(comm::Group group, const JobConfig& job, std::chrono::milliseconds timeout) {
  const auto facts = facts_of(job);
  std::vector<std::string> values;
  for (const auto& [key, value] : facts) values.push_back(value);
  require_same(std::move(group), values, timeout, [&](auto i, auto rank, const auto& all) {
    return fmt::format("{} is '{}' on rank {} but '{}' on rank 0: give every rank the same job",
                       facts[i].first, all[rank][i], rank, all[0][i]);
  });
}

void require_same_facts(comm::Group group, const std::vector<std::string>& facts,
                        std::chrono::milliseconds timeout) {
  require_same(std::move(group), facts, timeout, [](auto i, auto rank, const auto& all) {
    return fmt::format("rank {} has '{}', and rank 0 has '{}': give every rank the same", rank,
                       all[rank][i], all[0][i]);
  });
}

}  // namespace bimetal::job
