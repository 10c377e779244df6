#include "bimetal/comm/compress/compressed_all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compressed_reduction.h"
#include "bimetal/comm/compress/top_k.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/group/arguments.h"
#include "bimetal/comm/group/group_impl.h"

namespace bimetal::comm {
namespace {

struct Part {
  std::string_view suffix;
  std::vector<float> BucketMemory::*values;
  bool adds_up;  // over the ranks; otherwise it is alike on all
};

constexpr std::array<Part, 3> kParts = {{{".basis", &BucketMemory::basis, false},
                                         {".residual", &BucketMemory::residual, true},
                                         {".velocity", &BucketMemory::velocity, true}}};

const Part& part_of(const std::string& name) {
  const auto found =
      std::ranges::find_if(kParts, [&](const Part& part) { return name.ends_with(part.suffix); });
  if (found != kParts.end()) return *found;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("'{}' is no part of the error feedback", name));
}

}  // namespace

CompressedAllReduce::CompressedAllReduce(Group group, CompressedAllReduceOptions options)
    : group_(std::move(group)), options_(std::move(options)) {
  if (options_.warmup_steps < 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a warm-up of {} steps", options_.warmup_steps));
  }
  tag_of(options_.compression, 0, DType::float32, ReduceOp::sum);  // refuses bad parameters now
}

Work CompressedAllReduce::all_reduce(const std::string& bucket, Buffer data, ReduceOp op,
                                     std::vector<Matrix> matrices,
                                     std::optional<Deadline> deadline) {
  Compression compression = options_.compression;
  compression.matrices = std::move(matrices);
  compression.density = warmup_density(compression.density, step_, options_.warmup_steps);
  if (options_.error_feedback) {
    auto& memory = memories_[bucket];
    if (!memory) memory = std::make_shared<BucketMemory>();
    compression.memory = memory;
  }
  return group_.all_reduce(data, op, compression, deadline);
}

std::vector<NamedValues> CompressedAllReduce::state() const {
  std::vector<NamedValues> all;
  for (const auto& [bucket, memory] : memories_) {
    for (const Part& part : kParts) {
      const auto& values = (*memory).*part.values;
      if (!values.empty()) all.push_back({bucket + std::string(part.suffix), values});
    }
  }
  return all;
}

void CompressedAllReduce::set_state(std::span<const NamedValues> state) {
  std::map<std::string, std::shared_ptr<BucketMemory>> memories;
  for (const auto& [name, values] : state) {
    const Part& part = part_of(name);
    auto& memory = memories[name.substr(0, name.size() - part.suffix.size())];
    if (!memory) memory = std::make_shared<BucketMemory>();
    (*memory).*part.values = values;
  }
  memories_ = std::move(memories);
}

std::vector<NamedValues> CompressedAllReduce::whole_state(std::optional<Deadline> deadline) {
  auto all = state();
  for (auto& [name, values] : all) {
    if (part_of(name).adds_up) group_.all_reduce(buffer(values), ReduceOp::sum, deadline).wait();
  }
  return all;
}

void CompressedAllReduce::set_whole_state(std::vector<NamedValues> state) {
  const Topology& topology = group_.topology();
  const bool between = options_.compression.links == CompressedLinks::between_islands;
  const bool takes_part = !between || topology.island_of(group_.rank()).front() == group_.rank();
  const auto parts =
      static_cast<float>(between ? static_cast<int>(topology.islands.size()) : group_.size());
  for (auto& [name, values] : state) {
    if (!part_of(name).adds_up) continue;
    for (float& value : values) value = takes_part ? value / parts : 0.0f;
  }
  set_state(state);
}

void CompressedAllReduce::reset(Group group) {
  group_ = std::move(group);
  memories_.clear();
}

// Group's compressed all-reduce.

Work Group::all_reduce(Buffer data, ReduceOp op, const Compression& compression,
                       std::optional<Deadline> deadline) {
  if (compression.scheme == Scheme::none) return all_reduce(data, op, deadline);
  auto& group = impl();
  check_buffer(data, "data");
  check_reduce_op(op);
  const Call call{.operation = Operation::all_reduce,
                  .dtype = data.dtype,
                  .reduce_op = op,
                  .count = data.count,
                  .compression = tag_of(compression, data.count, data.dtype, op)};
  return group.run(call, deadline, [&group, data, op, compression](Channel& channel) {
    channel.note_algorithm("compressed");
    compressed_all_reduce(channel, data, op, compression, group.islands());
  });
}

}  // namespace bimetal::comm
