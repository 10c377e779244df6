#pragma once
// Exchanges structs between the ranks by a list of their fields.

#include <utility>
#include <vector>

#include "bimetal/base/wire_fields.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::comm {

/// What every rank has put in, rank by rank. `fields(wire, value)` lists a value's fields
/// (base/wire_fields.h). Collective. Errors: those of all_gather_bytes(), and CorruptData.
template <typename Value, typename Fields>
std::vector<Value> all_gather_fields(Group group, Value mine, Deadline deadline,
                                     const Fields& fields) {
  FieldWriter out;
  fields(out, mine);
  std::vector<Value> all;
  for (const auto& bytes : all_gather_bytes(std::move(group), std::move(out).take(), deadline)) {
    FieldReader in(bytes);
    fields(in, all.emplace_back());
    in.expect_end();
  }
  return all;
}

}  // namespace bimetal::comm
