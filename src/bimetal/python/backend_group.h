#pragma once
// From torch's process groups to the fabric's.

#include "bimetal/c10d/backend.h"
#include "bimetal/comm/group.h"

namespace bimetal::python {

using BackendPtr = c10::intrusive_ptr<::c10d::Backend>;

/// Error(InvalidArgument) for a backend that is none of ours.
const comm::Group& group_of(const BackendPtr& backend);

}  // namespace bimetal::python
