#pragma once
// Every collective against the conformance suite's plain reference, as one rank of a group whose
// other ranks may be processes on other operating systems.

#include <functional>
#include <string>

#include "bimetal/comm/group.h"

namespace bimetal::testing {

/// Told of each result that differs from the reference.
using OnWrong = std::function<void(const std::string& what)>;

/// Collective. The number of calls checked.
int check_collectives(comm::Group group, const OnWrong& wrong);

/// Collective: every scheme of compression gives the same bits on all ranks, whatever their
/// processors and compilers, and keeps its bound. The number of calls checked.
int check_compression(comm::Group group, const OnWrong& wrong);

/// Collective: the balancer derives the same shares and rates, to the last bit, on all ranks from
/// figures that all of them have.
int check_shares(comm::Group group, const OnWrong& wrong);

/// Collective, and the end of the group: the last rank reduces one element more than the others,
/// which every rank must be told.
int check_mismatch(comm::Group group, const OnWrong& wrong);

}  // namespace bimetal::testing
