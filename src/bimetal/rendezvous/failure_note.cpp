#include "bimetal/rendezvous/failure_note.h"

#include <span>
#include <string>

#include "bimetal/base/wire_error.h"

namespace bimetal::rendezvous {

void note_failure(Store& store, std::string_view key, const Error& failure, Deadline deadline) {
  if (store.add(std::string(key) + "/notes", 1, deadline) > 1) return;
  WireWriter out;
  write_error(out, failure);
  const auto& bytes = out.bytes();
  store.set(key, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, deadline);
}

std::optional<Error> noted_failure(Store& store, std::string_view key, Deadline deadline) {
  const auto note = store.try_get(key, deadline);
  return note ? std::optional(read_error(std::as_bytes(std::span(*note)))) : std::nullopt;
}

}  // namespace bimetal::rendezvous
