#pragma once
// A mesh whose ranks are threads of one process: for tests of what is built on net::Mesh, without
// sockets, processes or waiting. It keeps the contract of net/mesh.h to the letter, including
// delivery on a thread of its own per rank, back-pressure, loss, and orderly goodbyes.

#include <memory>
#include <vector>

#include "bimetal/net/mesh.h"

namespace bimetal::testing {

/// One mesh per rank, all connected. Destroying one without close() looks to the others like a
/// killed process.
std::vector<std::unique_ptr<net::Mesh>> make_in_process_meshes(int size);

}  // namespace bimetal::testing
