// Targets of rendezvous and comm that take one message: the store's, a member's record, an abort,
// an offer of shared memory, announced sizes.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/comm/failure.h"
#include "bimetal/comm/shm/connect.h"
#include "bimetal/rendezvous/member_record.h"
#include "bimetal/rendezvous/store_message.h"
#include "fuzz/targets.h"

namespace bimetal::fuzz {
namespace {

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Runs `action`, which may refuse the bytes as damaged but in no other way.
template <typename Action>
void taken_or_refused(Action action) {
  try {
    action();
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::CorruptData);
  }
}

}  // namespace

void store_message(Bytes bytes) {
  using namespace rendezvous;
  net::Seal in(net::SessionKey{}), out(net::SessionKey{}), back(net::SessionKey{});
  StoreHeader raw{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), raw.size()), raw.begin());
  const std::string_view body = text_of(bytes.subspan(std::min(bytes.size(), raw.size())));
  taken_or_refused([&] {
    const StoreHeaderFields fields = decode_store_header(raw, in);
    promise(fields.key_bytes <= kMaxKeyBytes && fields.value_bytes <= kMaxValueBytes);
    if (body.size() < fields.key_bytes + std::size_t{fields.value_bytes}) return;
    const StoreMessage message =
        complete_store_message(fields, std::string(body.substr(0, fields.key_bytes)),
                               std::string(body.substr(fields.key_bytes, fields.value_bytes)), in);
    const StoreHeader again = encode_store_header(message, out);
    promise(decode_store_header(again, back).body_sum == fields.body_sum);
  });
}

void member_record(Bytes bytes) {
  taken_or_refused([&] {
    const auto member = rendezvous::decode_member(text_of(bytes));
    const auto again = rendezvous::decode_member(rendezvous::encode_member(member));
    promise(again.host == member.host && again.listening == member.listening &&
            again.process == member.process && again.world_size == member.world_size);
    describe(member);
  });
}

void abort_message(Bytes bytes) {
  taken_or_refused([&] {
    const auto message = comm::decode_abort(bytes);
    if (bytes.size() > comm::kMaxAbortBytes - 64) return;  // would be cut
    promise(comm::decode_abort(comm::encode(message)).failure == message.failure);
  });
}

void shm_offer(Bytes bytes) {
  taken_or_refused([&] {
    const auto offer = comm::decode_offer(bytes);
    const auto sent = comm::encode_offer(offer);
    const auto again = comm::decode_offer(sent);
    promise(sent.size() == bytes.size() && comm::encode_offer(again) == sent);
    promise(again.made == offer.made && again.bytes == offer.bytes &&
            again.address.name == offer.address.name);
  });
}

void exchange_sizes(Bytes bytes) {
  WireReader reader(bytes);
  std::vector<std::int64_t> sizes;
  while (reader.remaining() >= 8) sizes.push_back(reader.i64());
  taken_or_refused([&] {
    const auto longest = comm::longest_said(sizes);
    // Room for all of them is asked for next, and each is cut to its own size.
    promise(longest <= std::size_t{comm::kMostSaid});
    for (const auto size : sizes) promise(size >= 0 && static_cast<std::size_t>(size) <= longest);
  });
  for (const auto size : sizes) {
    taken_or_refused([&] {
      promise(comm::checked_size(size, comm::kMostSent, 0) == static_cast<std::size_t>(size));
    });
  }
}

}  // namespace bimetal::fuzz
