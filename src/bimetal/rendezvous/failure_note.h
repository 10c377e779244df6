#pragma once
// A failure left in the store, for those who would wait in vain otherwise: a process that has died
// cannot tell them, but who has started it, or has seen it go, can.

#include <optional>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::rendezvous {

/// Leaves `failure` under `key`, unless there is one already: the first is the cause, later ones
/// follow from it. Errors of the store.
void note_failure(Store& store, std::string_view key, const Error& failure, Deadline deadline);

/// What has been left there by now. Errors of the store; CorruptData for something else.
std::optional<Error> noted_failure(Store& store, std::string_view key, Deadline deadline);

}  // namespace bimetal::rendezvous
