#include "bimetal/train/pipeline/cut_links.h"

#include <algorithm>
#include <utility>

namespace bimetal::train {
namespace {

/// Whether activations go from one of these places to the other, of neighbouring stages: of stages
/// with replicas of their own number some time from each to each.
bool is_way(const parallel::MeshShape& shape, const parallel::MeshPlace& from,
            const parallel::MeshPlace& to) {
  return parts_talk(shape, from, to) && (!shape.even() || from.replica == to.replica);
}

double slowest_of(const std::vector<plan::LinkSpeed>& links, double bytes) {
  double slowest = 0;
  if (bytes <= 0) return 0;
  for (const auto& link : links) {
    if (link.bytes_per_s <= 0) continue;
    slowest = std::max(slowest, link.latency_s + bytes / link.bytes_per_s);
  }
  return slowest;
}

/// Of each byte that goes by these ways.
double sent_by(const std::vector<plan::RankPair>& ways, const parallel::MeshShape& shape,
               const comm::Topology& topology,
               const parallel::pipeline::ActivationCompression& compression, torch::Dtype dtype) {
  double sent = 1;
  for (const auto& [from, to] : ways) {
    const auto scheme = parallel::pipeline::scheme_between(shape, topology, from, to, compression);
    sent = std::min(sent, parallel::pipeline::sent_part(scheme, dtype));
  }
  return sent;
}

}  // namespace

std::vector<std::vector<plan::RankPair>> ways_of(const parallel::MeshShape& shape, int chunks) {
  const bool round = chunks > 1;
  std::vector<std::vector<plan::RankPair>> ways;
  for (int stage = 0; stage + (round ? 0 : 1) < shape.stages; ++stage) {
    auto& of_stage = ways.emplace_back();
    for (int from = 0; from < shape.ranks(); ++from) {
      for (int to = 0; to < shape.ranks(); ++to) {
        const auto sender = place_of(shape, from), receiver = place_of(shape, to);
        if (sender.stage != stage || receiver.stage != (stage + 1) % shape.stages) continue;
        if (is_way(shape, sender, receiver)) of_stage.emplace_back(from, to);
      }
    }
  }
  return ways;
}

std::vector<StageWays> measure_ways(comm::Group group, const parallel::MeshShape& shape, int chunks,
                                    const parallel::pipeline::ActivationCompression& compression,
                                    torch::Dtype dtype) {
  std::vector<StageWays> measured;
  for (auto pairs : ways_of(shape, chunks)) {
    auto& of_stage = measured.emplace_back();
    of_stage.sent = sent_by(pairs, shape, group.topology(), compression, dtype);
    of_stage.there = plan::probe_pairs(group, pairs);
    for (auto& [from, to] : pairs) std::swap(from, to);
    of_stage.back = plan::probe_pairs(group, pairs);
  }
  return measured;
}

std::vector<std::vector<double>> send_seconds(const std::vector<StageWays>& ways,
                                              const CutBytes& bytes) {
  std::vector<std::vector<double>> seconds;
  for (const auto& [there, back, sent] : ways) {
    auto& of_stage = seconds.emplace_back();
    for (std::size_t unit = 0; unit < bytes.forward.size(); ++unit) {
      of_stage.push_back(slowest_of(there, sent * bytes.forward[unit]) +
                         slowest_of(back, sent * bytes.backward[unit]));
    }
  }
  return seconds;
}

}  // namespace bimetal::train
