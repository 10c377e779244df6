#pragma once
// Adds the places of ranks in the mesh to errors of a step.

#include "bimetal/base/error.h"
#include "bimetal/parallel/mesh/mesh.h"

namespace bimetal::parallel {

/// `error` with the place of rank `own`, which has got it, and that of the rank that it is about,
/// where it does not say these: "stage 0 of 2 (rank 0): …; rank 1 is stage 1 of 2".
Error named(const Error& error, const MeshShape& shape, int own);

}  // namespace bimetal::parallel
