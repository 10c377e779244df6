#include "bimetal/train/pipeline/stage_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace bimetal::train {
namespace {

/// Micro-batches that one of a stage's replicas has under way, where stages have replicas of their
/// own number: as many as keep them and those behind them busy.
double under_way(const parallel::MeshShape& shape, int stage, int micro_batches) {
  int behind = 0;
  for (int s = stage; s < shape.stages; ++s) behind += shape.replicas_of(s);
  return std::min<double>(micro_batches, std::ceil(1.0 * behind / shape.replicas_of(stage)));
}

}  // namespace

std::int64_t samples_of_pipeline(const parallel::MeshShape& shape, std::int64_t global_batch) {
  const std::int64_t replicas = shape.even() ? shape.replicas : 1;
  return (global_batch + replicas - 1) / replicas;
}

StageNeeds::StageNeeds(plan::MemoryInput measured, const job::JobConfig& job,
                       const parallel::MeshShape& shape, int micro_batches)
    : measured_(std::move(measured)),
      shape_(shape),
      kind_(parallel::schedule::kind_named(job.mesh.schedule)),
      micro_batches_(micro_batches),
      cuts_given_(!job.mesh.cuts.empty()) {
  const auto samples = samples_of_pipeline(shape, job.train.global_batch);
  at_once_ = static_cast<double>((samples + micro_batches - 1) / micro_batches);
}

const plan::RankMemory& StageNeeds::rank(int number) const {
  return measured_.ranks[static_cast<std::size_t>(number)];
}

/// Ranks of a host share what that has.
double StageNeeds::room_of(int number) const {
  const auto& own = rank(number);
  const auto sharing = std::ranges::count(measured_.ranks, own.pool, &plan::RankMemory::pool);
  return std::min(own.room, own.pool_room / static_cast<double>(sharing));
}

plan::StageLoad StageNeeds::load_of(int number) const {
  const int stage = parallel::place_of(shape_, number).stage;
  auto keeping = measured_.asked;
  keeping.recomputed_at_once = rank(number).units_at_once;
  return {.replicas = static_cast<double>(shape_.replicas_of(stage)),
          .at_once = at_once_,
          .in_flight = shape_.even() ? plan::in_flight(kind_, static_cast<std::size_t>(stage),
                                                       static_cast<std::size_t>(shape_.stages),
                                                       micro_batches_)
                                     : under_way(shape_, stage, micro_batches_),
          .keeping = keeping};
}

parallel::pipeline::PieceMemory StageNeeds::within(double part, std::size_t pieces) const {
  const auto units = rank(0).facts.units.size();
  const auto stages = static_cast<std::size_t>(shape_.stages);
  parallel::pipeline::PieceMemory memory{
      .bytes = std::vector(pieces, std::vector<double>(units)),
      .room = std::vector<double>(pieces, std::numeric_limits<double>::infinity())};
  for (int number = 0; number < ranks(); ++number) {
    const auto& facts = rank(number).facts;
    const auto load = load_of(number);
    const double room = part * room_of(number) - plan::passing_bytes(facts, load);
    const auto stage = static_cast<std::size_t>(parallel::place_of(shape_, number).stage);
    for (auto piece = stage; piece < pieces; piece += stages) {
      for (std::size_t unit = 0; unit < units; ++unit) {
        auto& most = memory.bytes[piece][unit];
        most = std::max(most, plan::unit_bytes(facts, unit, load));
      }
      const bool last = piece + 1 == pieces;
      const double tied = last ? plan::tied_bytes(facts, units - 1, load) : 0;
      const double of_piece = room * static_cast<double>(stages) / static_cast<double>(pieces);
      memory.room[piece] = std::min(memory.room[piece], std::max(0.0, of_piece - tied));
    }
  }
  return memory;
}

/// Calls `visit(begin, end)` for the units of each piece that the rank has.
template <typename Visit>
void StageNeeds::visit_pieces(int number, const std::vector<std::size_t>& begins,
                              Visit visit) const {
  const auto units = rank(number).facts.units.size();
  auto piece = static_cast<std::size_t>(parallel::place_of(shape_, number).stage);
  for (; piece < begins.size(); piece += static_cast<std::size_t>(shape_.stages)) {
    visit(begins[piece], piece + 1 < begins.size() ? begins[piece + 1] : units);
  }
}

double StageNeeds::bytes_of(int number, const std::vector<std::size_t>& begins) const {
  double bytes = 0;
  visit_pieces(number, begins, [&](std::size_t begin, std::size_t end) {
    bytes += plan::stage_bytes(rank(number).facts, begin, end, load_of(number));
  });
  return bytes;
}

double StageNeeds::elements_of(int number, const std::vector<std::size_t>& begins) const {
  double elements = 0;
  visit_pieces(number, begins, [&](std::size_t begin, std::size_t end) {
    const auto& units = rank(number).facts.units;
    for (auto unit = begin; unit < end; ++unit) {
      elements += static_cast<double>(units[unit].elements());
    }
  });
  return elements;
}

std::vector<progress::MemoryReport> StageNeeds::planned(
    const std::vector<std::size_t>& begins) const {
  std::vector<progress::MemoryReport> all;
  for (int number = 0; number < ranks(); ++number) {
    const auto& own = rank(number);
    const auto load = load_of(number);
    const double bytes = bytes_of(number, begins), elements = elements_of(number, begins);
    const double whole = elements * own.facts.element_bytes;
    const bool on_disk = load.keeping.optimizer == plan::Place::Disk;
    progress::MemoryReport use{.program = own.program,
                               .parameters = whole,
                               .gradients = load.keeping.level > 1 ? whole / load.replicas : whole,
                               .optimizer = on_disk
                                                ? plan::kDiskWindow
                                                : elements * own.facts.state_bytes /
                                                      (load.keeping.level > 0 ? load.replicas : 1),
                               .buffers = load.keeping.level == 0 && load.replicas > 1 ? whole : 0};
    use.activations =
        std::max(0.0, bytes - use.parameters - use.gradients - use.optimizer - use.buffers);
    if (own.load.keeps_freed) {
      use.kept = std::clamp((room_of(number) - bytes) / 2, 0.0, plan::spare_for(bytes));
    }
    use.planned = use.program + bytes + use.kept;
    all.push_back(use);
  }
  return all;
}

std::optional<std::string> StageNeeds::lacking(const std::vector<std::size_t>& begins) const {
  for (int number = 0; number < ranks(); ++number) {
    const double bytes = bytes_of(number, begins), room = room_of(number);
    if (bytes <= (1 + kDoubt) * room) continue;
    const char* const remedy =
        cuts_given_ ? "leave mesh.cuts out, so that stages are as large as memory allows, or " : "";
    return fmt::format(
        "{}: {}, {}, needs {} for its units, and there is {}; {}take more stages, smaller "
        "micro-batches, train.recompute = \"all\", or zero.level = 1 with "
        "zero.offload_optimizer = \"disk\"",
        cuts_given_ ? "mesh.cuts does not fit" : "no cut into these stages fits", rank(number).name,
        parallel::name_of(shape_, number), plan::bytes_text(bytes), plan::bytes_text(room), remedy);
  }
  return std::nullopt;
}

}  // namespace bimetal::train
