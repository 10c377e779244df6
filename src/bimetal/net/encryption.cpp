#include "bimetal/net/encryption.h"

#include <fmt/format.h>

#include <cstdlib>
#include <mutex>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::net {

Encryption encryption_from_environment() {
  const char* const variable = std::getenv("BIMETAL_ENCRYPTION");
  const std::string_view text = variable ? variable : "";
  if (text == "on") return Encryption::on;
  if (text.empty() || text == "off") return Encryption::off;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_ENCRYPTION is '{}'; it must be 'on' or 'off'", text));
}

void note_if_plain(std::string_view listen_host, Encryption encryption) {
  if (encryption == Encryption::on || is_loopback(listen_host)) return;
  static std::once_flag once;
  std::call_once(once, [] {
    log(LogLevel::warning,
        "what this job sends over the network is authenticated, but not encrypted: whoever can "
        "read the network can read its data and its model. BIMETAL_ENCRYPTION=on (or --encrypt) on "
        "every machine encrypts it");
  });
}

}  // namespace bimetal::net
