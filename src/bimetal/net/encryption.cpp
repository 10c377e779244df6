#include "bimetal/net/encryption.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "bimetal/base/error.h"

namespace bimetal::net {

Encryption encryption_from_environment() {
  const char* const variable = std::getenv("BIMETAL_ENCRYPTION");
  const std::string_view text = variable ? variable : "";
  if (text == "on") return Encryption::on;
  if (text.empty() || text == "off") return Encryption::off;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_ENCRYPTION is '{}'; it must be 'on' or 'off'", text));
}

}  // namespace bimetal::net
