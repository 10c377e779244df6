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

comm::Bytes encode_facts(const JobFacts& facts) {
  WireWriter writer;
  for (const auto& [key, value] : facts) writer.string(value);
  return std::move(writer).take();
}

}  // namespace

void require_same_job(comm::Group group, const JobConfig& job, std::chrono::milliseconds timeout) {
  const auto facts = facts_of(job);
  const auto all = comm::all_gather_bytes(group, encode_facts(facts), Deadline::after(timeout));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    WireReader first(all[0]), other(all[rank]);
    for (const auto& [key, mine] : facts) {
      const auto expected = first.string();
      const auto found = other.string();
      if (expected == found) continue;
      throw Error(ErrorCode::CallMismatch,
                  fmt::format("{} is '{}' on rank {} but '{}' on rank 0: give every rank the same "
                              "job",
                              key, found, rank, expected),
                  static_cast<int>(rank));
    }
  }
}

}  // namespace bimetal::job
