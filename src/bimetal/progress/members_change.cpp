#include "bimetal/progress/members_change.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "bimetal/base/quantity.h"

namespace bimetal::progress {

std::vector<std::string> lines_of(const MembersChange& change) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const std::vector<std::string>& who,
                       const std::string& why = {}) {
    if (who.empty()) return;
    lines.push_back(fmt::format("{}: {}{}", what, fmt::join(who, ", "),
                                why.empty() ? "" : fmt::format(" ({})", why)));
  };
  add("lost", change.lost, change.cause);
  add("left", change.left);
  add("joined", change.came);
  lines.push_back(fmt::format("{} on from step {}, after {:.2f} s",
                              counted(change.workers, "worker goes", "workers go"), change.step,
                              change.seconds));
  return lines;
}

void to_json(nlohmann::ordered_json& json, const MembersChange& change) {
  json = {{"step", change.step},      {"lost", change.lost},   {"left", change.left},
          {"joined", change.came},    {"cause", change.cause}, {"workers", change.workers},
          {"seconds", change.seconds}};
}

void from_json(const nlohmann::ordered_json& json, MembersChange& change) {
  json.at("step").get_to(change.step);
  json.at("lost").get_to(change.lost);
  json.at("left").get_to(change.left);
  json.at("joined").get_to(change.came);
  json.at("cause").get_to(change.cause);
  json.at("workers").get_to(change.workers);
  json.at("seconds").get_to(change.seconds);
}

}  // namespace bimetal::progress
