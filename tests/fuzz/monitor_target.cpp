// Target of net/http: what strangers send to its port, and what may answer bimetal top.

#include <algorithm>
#include <string_view>

#include "bimetal/net/http/http_message.h"
#include "fuzz/targets.h"

namespace bimetal::fuzz {
namespace {

bool lies_within(std::string_view part, std::string_view whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

}  // namespace

void http_message(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const auto request = net::parse_request(text)) {
    promise(lies_within(request->method, text) && !request->method.empty());
    promise(lies_within(request->path, text) && request->path.starts_with('/'));
    const auto is_control = [](unsigned char c) { return c < 0x20 || c >= 0x7f; };
    promise(std::ranges::none_of(request->path, is_control));
    const auto bearer = request->bearer.value_or("");
    promise(bearer.empty() || lies_within(bearer, text));
  }
  const auto answer = net::parse_answer(text);
  promise(!answer || (answer->status >= 100 && answer->status <= 999));
}

}  // namespace bimetal::fuzz
