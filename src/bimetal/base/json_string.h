#pragma once
// Text as a JSON string, for the few documents that the core writes by itself.

#include <string>
#include <string_view>

namespace bimetal {

/// `text` between quotes, escaped (RFC 8259, section 7). Bytes that are no UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

}  // namespace bimetal
