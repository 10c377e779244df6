#pragma once
// From the store that torch gives a process group to a backend whose ranks are connected.

#include "bimetal/c10d/backend.h"

namespace bimetal::c10d {

/// Collective among the `size` members; `store` is theirs alone (torch prefixes it for each group).
/// options->timeout bounds it. options->group_name tells groups of one process apart that come one
/// after the other under one name.
///
/// Where options->global_ranks_in_group is not empty, they are ranks of `world`, or else of a
/// living default group of this process made here, if there is one: the new group shares its
/// connections. Otherwise the ranks connect anew: they listen where they reach the store's host (on
/// loopback where that is local, or the store has no host), or at the interfaces that
/// BIMETAL_INTERFACE names. Their connections are authenticated by the token of BIMETAL_TOKEN_FILE
/// or BIMETAL_TOKEN, which all ranks must then have. Without one they stay plain and on loopback: a
/// token in the store would be known to all who read the store.
///
/// Throws BackendError: those of rendezvous::connect_mesh, and Unauthorized where no rank has a
/// token and one is needed, or only some have one.
c10::intrusive_ptr<BimetalBackend> make_backend(c10::intrusive_ptr<::c10d::Store> store, int rank,
                                                int size,
                                                c10::intrusive_ptr<BackendOptions> options,
                                                std::optional<comm::Group> world = {});

}  // namespace bimetal::c10d
