#include "bimetal/comm/shm/segment_address.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace bimetal::comm {
namespace {

constexpr std::size_t kNameBytes = 32;
static_assert(kAddressBytes == 16 + kNameBytes + net::SegmentAddress::kNonceBytes);

}  // namespace

void write_address(WireWriter& writer, const net::SegmentAddress& address) {
  writer.u64(address.process);
  writer.u64(address.handle);
  std::array<std::byte, kNameBytes> name{};
  std::memcpy(name.data(), address.name.data(), std::min(address.name.size(), name.size()));
  writer.raw(name);
  writer.raw(address.nonce);
}

net::SegmentAddress read_address(WireReader& reader) {
  net::SegmentAddress address;
  address.process = reader.u64();
  address.handle = reader.u64();
  const auto name = reader.raw(kNameBytes);
  const auto end = std::ranges::find(name, std::byte{0});
  address.name.assign(reinterpret_cast<const char*>(name.data()),
                      static_cast<std::size_t>(end - name.begin()));
  std::ranges::copy(reader.raw(address.nonce.size()), address.nonce.begin());
  return address;
}

}  // namespace bimetal::comm
