#include "bimetal/launch/rank_variables.h"

namespace bimetal::launch {

RankPlace place_of(std::span<const int> ranks_on_host, int host, int local_rank) {
  RankPlace place;
  place.local_rank = local_rank;
  place.local_world_size = ranks_on_host[static_cast<std::size_t>(host)];
  place.group_rank = host;
  place.group_world_size = static_cast<int>(ranks_on_host.size());
  place.world_size = place.cross_size = 0;
  for (int other = 0; const int count : ranks_on_host) {
    if (other < host) place.rank += count;
    if (count > local_rank) {
      place.cross_rank += other < host;
      ++place.cross_size;
    }
    place.world_size += count;
    ++other;
  }
  place.rank += local_rank;
  return place;
}

NamedValues rank_variables(const RankPlace& place) {
  const auto text = [](int number) { return std::to_string(number); };
  return {{"RANK", text(place.rank)},
          {"WORLD_SIZE", text(place.world_size)},
          {"LOCAL_RANK", text(place.local_rank)},
          {"LOCAL_WORLD_SIZE", text(place.local_world_size)},
          {"GROUP_RANK", text(place.group_rank)},
          {"GROUP_WORLD_SIZE", text(place.group_world_size)},
          {"NODE_RANK", text(place.group_rank)},
          {"HOROVOD_RANK", text(place.rank)},
          {"HOROVOD_SIZE", text(place.world_size)},
          {"HOROVOD_LOCAL_RANK", text(place.local_rank)},
          {"HOROVOD_LOCAL_SIZE", text(place.local_world_size)},
          {"HOROVOD_CROSS_RANK", text(place.cross_rank)},
          {"HOROVOD_CROSS_SIZE", text(place.cross_size)},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
          {"TORCHELASTIC_RUN_ID", ""},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"BIMETAL_STORE", ""},
          {kBoardVariable, ""},
          {kDoorVariable, ""}};
}

NamedValues master_variables(const std::string& host, int port) {
  return {{"MASTER_ADDR", host}, {"MASTER_PORT", std::to_string(port)}};
}

}  // namespace bimetal::launch
