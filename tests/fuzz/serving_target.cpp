// Target of serving: what the two sides say to each other after the handshake.

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/serving/message.h"
#include "fuzz/targets.h"

namespace bimetal::fuzz {
namespace {

template <typename Action>
void decoded_or_refused(Action action) {
  try {
    action();
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::CorruptData);
  }
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::ranges::equal(a, b);
}

}  // namespace

void serving_message(Bytes bytes) {
  using namespace serving;
  decoded_or_refused([&] {
    const auto facts = decode_model_facts(bytes);
    promise(same(encode(facts), bytes));
    for (const auto dtype : {comm::DType::uint8, comm::DType::float64}) {
      const auto most = most_samples(facts, dtype);
      promise(most >= 0 && static_cast<std::size_t>(most) <= kMaxRequestBytes);
    }
  });
  decoded_or_refused([&] { promise(same(encode(decode_figures(bytes)), bytes)); });
  decoded_or_refused([&] { decode_refused(bytes); });
  const auto logits = bytes.size() < 16 ? 0 : (bytes.size() - 16) / 8;
  decoded_or_refused([&] { promise(decode_predicted(bytes, logits).logits.size() == logits); });
}

}  // namespace bimetal::fuzz
