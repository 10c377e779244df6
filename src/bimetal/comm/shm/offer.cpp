#include "bimetal/comm/shm/offer.h"

#include <utility>

#include "bimetal/base/wire.h"
#include "bimetal/comm/shm/segment_address.h"

namespace bimetal::comm {

std::vector<std::byte> encode_offer(const Offer& offer) {
  WireWriter writer;
  writer.u8(static_cast<std::uint8_t>(offer.transport));
  writer.u8(offer.made ? 1 : 0);
  writer.u16(0);
  writer.u32(offer.island);
  writer.u64(offer.bytes);
  write_address(writer, offer.address);
  return std::move(writer).take();
}

Offer decode_offer(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  Offer offer;
  offer.transport = static_cast<Transport>(reader.u8());
  offer.made = reader.u8() == 1;
  reader.u16();
  offer.island = reader.u32();
  offer.bytes = reader.u64();
  offer.address = read_address(reader);
  reader.expect_end();
  return offer;
}

}  // namespace bimetal::comm
