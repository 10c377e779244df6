#pragma once
// The definitions of mpi.h for the two families of MPI libraries: types of handles, layout of a
// status, values of constants (MPI 3.1, annex A; the numbers are each library's own). Open MPI's
// handles are addresses of objects that the library exports. Those of MPICH and of libraries with
// its ABI (Intel MPI, MVAPICH, Cray MPI: the "MPICH ABI Compatibility Initiative") are numbers.

#include <cstddef>

#include "bimetal/net/mpi/dynamic_library.h"

namespace bimetal::net::mpi {

inline constexpr int kSuccess = 0;
inline constexpr int kUndefined = -32766;  // the same in both

struct OpenMpiAbi {
  using Comm = void*;
  using Datatype = void*;
  using Request = void*;
  using Errhandler = void*;
  struct Status {
    int source;
    int tag;
    int error;
    int cancelled;
    std::size_t bytes;
  };
  static constexpr int kErrorInStatus = 18;

  explicit OpenMpiAbi(const DynamicLibrary& library)
      : world(library.find("ompi_mpi_comm_world")),
        byte(library.find("ompi_mpi_byte")),
        errors_return(library.find("ompi_mpi_errors_return")) {}
  static bool fits(const DynamicLibrary& library) {
    return library.find("ompi_mpi_comm_world") != nullptr;
  }

  Comm world;
  Datatype byte;
  Errhandler errors_return;
};

struct MpichAbi {
  using Comm = int;
  using Datatype = int;
  using Request = int;
  using Errhandler = int;
  struct Status {
    int count_low;
    int count_high_and_cancelled;
    int source;
    int tag;
    int error;
  };
  static constexpr int kErrorInStatus = 17;

  explicit MpichAbi(const DynamicLibrary&) {}

  Comm world = 0x44000000;
  Datatype byte = 0x4c00010d;
  Errhandler errors_return = 0x54000001;
};

}  // namespace bimetal::net::mpi
