#include "bimetal/c10d/release_vote.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace bimetal::c10d {
namespace {

constexpr const char* kGo = "go";
constexpr const char* kStay = "stay";

std::string key_of(std::uint64_t number, std::string_view name) {
  return fmt::format("blocked_callbacks/{}/{}", number, name);
}

ReleaseVote::Outcome outcome_of(std::string_view word) {
  return word == kGo ? ReleaseVote::Outcome::go : ReleaseVote::Outcome::stay;
}

}  // namespace

ReleaseVote::Outcome ReleaseVote::cast(std::uint64_t number) {
  if (store_->add(key_of(number, "votes"), 1) < size_) return look(number);
  return decide(number, kGo);
}

ReleaseVote::Outcome ReleaseVote::look(std::uint64_t number) {
  const std::string name = key_of(number, "outcome");
  return store_->check({name}) ? outcome_of(store_->get_to_str(name)) : Outcome::open;
}

ReleaseVote::Outcome ReleaseVote::refuse(std::uint64_t number) {
  return decide(number, kStay);
}

/// The first word stays.
ReleaseVote::Outcome ReleaseVote::decide(std::uint64_t number, const char* outcome) {
  const std::string_view word = outcome;
  const std::vector<std::uint8_t> value(word.begin(), word.end());
  const auto stands = store_->compareSet(key_of(number, "outcome"), {}, value);
  return outcome_of({reinterpret_cast<const char*>(stands.data()), stands.size()});
}

}  // namespace bimetal::c10d
