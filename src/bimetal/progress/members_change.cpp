#include <nlohmann/json.hpp>

#include "bimetal/progress/members_change_json.h"

namespace bimetal::progress {

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
