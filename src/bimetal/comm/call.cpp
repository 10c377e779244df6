#include "bimetal/comm/call.h"

#include <fmt/format.h>

#include <utility>

namespace bimetal::comm {
namespace {

/// Gradients and parameters are, and what decides anything is not, or is short.
bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 ||
         dtype == DType::bfloat16;
}

/// Tells apart ranks that cut the same whole into different parts (FNV-1a, 32 bits).
std::uint32_t digest_of(const std::vector<std::size_t>& counts) {
  std::uint32_t digest = 2166136261u;
  for (const std::uint64_t count : counts) {
    for (int shift = 0; shift < 64; shift += 8) {
      digest = (digest ^ static_cast<std::uint8_t>(count >> shift)) * 16777619u;
    }
  }
  return digest;
}

net::FrameHeader header(const Call& call, std::uint32_t group, std::uint64_t count) {
  net::FrameHeader result;
  result.kind = net::FrameKind::Data;
  result.operation = static_cast<std::uint8_t>(call.operation);
  result.dtype = static_cast<std::uint8_t>(call.dtype);
  result.reduce_op = call.reduce_op ? static_cast<std::uint8_t>(*call.reduce_op) : 0;
  result.group = group;
  result.sequence = call.sequence;
  result.epoch = call.epoch;
  result.count = count;
  result.root = call.root;
  result.compression = call.compression.code();
  result.compression_detail =
      call.part_counts.empty() ? call.compression.detail : digest_of(call.part_counts);
  result.algorithm = static_cast<std::uint8_t>(call.algorithm);
  result.sealed = !is_floating(call.dtype);
  return result;
}

std::string elements(const net::FrameHeader& header) {
  return fmt::format("{} {}", header.count, to_string(static_cast<DType>(header.dtype)));
}

bool is(const net::FrameHeader& header, Operation operation) {
  return header.operation == static_cast<std::uint8_t>(operation);
}

}  // namespace

net::FrameHeader Call::header_to(std::uint32_t group, int to) const {
  return header(*this, group, send_counts.empty() ? count : send_counts[to]);
}

net::FrameHeader Call::header_from(std::uint32_t group, int from) const {
  return header(*this, group, recv_counts.empty() ? count : recv_counts[from]);
}

bool same_call(const net::FrameHeader& a, const net::FrameHeader& b) noexcept {
  return a.group == b.group && a.sequence == b.sequence && a.operation == b.operation &&
         a.dtype == b.dtype && a.reduce_op == b.reduce_op && a.count == b.count &&
         a.root == b.root && a.compression == b.compression &&
         a.compression_detail == b.compression_detail && a.algorithm == b.algorithm &&
         a.epoch == b.epoch;
}

std::string describe(const net::FrameHeader& header) {
  if (is(header, Operation::barrier)) return "barrier";
  if (is(header, Operation::all_gather_bytes)) return "all_gather_bytes";
  std::string text(to_string(static_cast<Operation>(header.operation)));
  if (header.reduce_op != 0) {
    text += fmt::format("({}", to_string(static_cast<ReduceOp>(header.reduce_op)));
    const auto tag = CompressionTag::from(header.compression, header.compression_detail);
    text += tag.scheme == Scheme::none ? ")" : fmt::format(", {})", describe(tag));
  }
  if (header.algorithm != 0) {
    text += fmt::format(" by {}", to_string(static_cast<Algorithm>(header.algorithm)));
  }
  text += " of " + elements(header);
  if (header.compression == 0 && header.compression_detail != 0) {
    text += fmt::format(" in parts of their own (digest {:08x})", header.compression_detail);
  }
  if (header.root >= 0) {
    const bool inward = is(header, Operation::reduce) || is(header, Operation::gather);
    text += fmt::format(" {} root {}", inward ? "to" : "from", header.root);
  }
  return text;
}

std::string describe_numbered(const net::FrameHeader& header) {
  return fmt::format("{} {} {}", describe(header),
                     is(header, Operation::send_recv) ? "with tag" : "as call", header.sequence);
}

Failure mismatch(int sender, const net::FrameHeader& sent, int receiver,
                 const net::FrameHeader& expected) {
  if (sent.epoch != expected.epoch) {
    return {
        ErrorCode::CallMismatch,
        fmt::format("rank {} called {} in membership epoch {}, but rank {} called {} in {}", sender,
                    describe(sent), sent.epoch, receiver, describe(expected), expected.epoch),
        sender};
  }
  if (is(sent, Operation::send_recv)) {
    return {
        ErrorCode::CallMismatch,
        fmt::format("rank {} called send of {} to rank {} with tag {}, but rank {} called recv "
                    "of {} for it",
                    sender, elements(sent), receiver, sent.sequence, receiver, elements(expected)),
        sender};
  }
  if (is(sent, Operation::all_to_all) && is(expected, Operation::all_to_all)) {
    return {ErrorCode::CallMismatch,
            fmt::format("rank {} called all_to_all with {} for rank {} as call {}, but rank {} "
                        "called it with {} from rank {}",
                        sender, elements(sent), receiver, sent.sequence, receiver,
                        elements(expected), sender),
            sender};
  }
  auto first = std::pair(sender, describe(sent));
  auto second = std::pair(receiver, describe(expected));
  if (second.first < first.first) std::swap(first, second);
  return {ErrorCode::CallMismatch,
          fmt::format("rank {} called {} as call {}, but rank {} called {}", first.first,
                      first.second, sent.sequence, second.first, second.second),
          sender};
}

}  // namespace bimetal::comm
