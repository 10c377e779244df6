#pragma once
// Whether a client belongs to this job: the same program, model and settings.

#include <string>
#include <vector>

#include "bimetal/parallel/server/link/message.h"

namespace bimetal::parallel::server {

/// Error(ProtocolMismatch) that names both versions.
void require_same_release(const Join& join, const std::string& own);

/// Error(CallMismatch) that gives the first fact that differs, as each side has it.
void require_same_facts(const Join& join, const std::vector<std::string>& own);

}  // namespace bimetal::parallel::server
