#pragma once
// Every way to shorten a gradient.

#include "bimetal/comm/compress/compression.h"

namespace bimetal::testing {

inline constexpr comm::Scheme kSchemes[] = {
    comm::Scheme::float16, comm::Scheme::bfloat16, comm::Scheme::int8, comm::Scheme::int4,
    comm::Scheme::topk,    comm::Scheme::powersgd, comm::Scheme::sign};

}  // namespace bimetal::testing
