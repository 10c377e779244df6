#pragma once
// Writes token files by the format's description, sound unless a test says otherwise.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/base/wire.h"
#include "bimetal/data/digest.h"
#include "unit/data/idx_files.h"

namespace bimetal::data::test {

struct TokenFileParts {
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint64_t> ends;  ///< of documents
  std::uint32_t width = 2;
  std::uint64_t vocabulary = 256;
  std::uint32_t version = 1;
  std::string magic = "BMTOKENS";
};

inline Bytes token_bytes(const TokenFileParts& parts) {
  WireWriter head, body;
  head.raw(std::as_bytes(std::span(parts.magic)));
  head.u32(parts.version);
  head.u32(parts.width);
  head.u64(parts.vocabulary);
  head.u64(parts.tokens.size());
  head.u64(parts.ends.size());
  for (const auto token : parts.tokens) {
    parts.width == 2 ? body.u16(static_cast<std::uint16_t>(token)) : body.u32(token);
  }
  while (body.bytes().size() % 8 != 0) body.u8(0);
  for (const auto end : parts.ends) body.u64(end);
  Hash hash;
  hash.add(body.bytes());
  hash.add(head.bytes());
  head.raw(hash.finish());
  head.raw(body.bytes());
  Bytes bytes(head.bytes().size());
  std::ranges::transform(head.bytes(), bytes.begin(),
                         [](std::byte byte) { return static_cast<std::uint8_t>(byte); });
  return bytes;
}

/// 0, 1, … count - 1 in one document.
inline TokenFileParts counted(std::uint32_t count) {
  TokenFileParts parts;
  for (std::uint32_t i = 0; i < count; ++i) parts.tokens.push_back(i);
  parts.ends = {count};
  return parts;
}

}  // namespace bimetal::data::test
