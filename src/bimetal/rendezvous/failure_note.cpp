#include "bimetal/rendezvous/failure_note.h"

#include <span>
#include <string>

#include "bimetal/base/wire.h"

namespace bimetal::rendezvous {
namespace {

constexpr int kNoRank = -1;

std::string encode(const Error& failure) {
  WireWriter out;
  out.u8(static_cast<std::uint8_t>(failure.code()));
  out.i32(failure.rank().value_or(kNoRank));
  out.string(failure.what());
  return std::string(reinterpret_cast<const char*>(out.bytes().data()), out.bytes().size());
}

Error decode(std::string_view bytes) {
  WireReader in(std::as_bytes(std::span(bytes.data(), bytes.size())));
  const auto code = static_cast<ErrorCode>(in.u8());
  const int rank = in.i32();
  const auto message = in.string();
  in.expect_end();
  return {code <= ErrorCode::Internal ? code : ErrorCode::Internal, message,
          rank == kNoRank ? std::nullopt : std::optional(rank)};
}

}  // namespace

void note_failure(Store& store, std::string_view key, const Error& failure, Deadline deadline) {
  if (store.add(std::string(key) + "/notes", 1, deadline) > 1) return;
  store.set(key, encode(failure), deadline);
}

std::optional<Error> noted_failure(Store& store, std::string_view key, Deadline deadline) {
  const auto note = store.try_get(key, deadline);
  return note ? std::optional(decode(*note)) : std::nullopt;
}

}  // namespace bimetal::rendezvous
