#pragma once
// An MPI library that is loaded at run time. Building this project needs nothing of MPI.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bimetal::net::mpi {

/// A communicator or a request under way, as the library knows it.
using Handle = std::uintptr_t;

enum class ThreadLevel : int { single = 0, funneled = 1, serialized = 2, multiple = 3 };

/// The other end of a message. Messages of one address arrive in the order of their sends.
struct Address {
  Handle communicator = 0;
  int peer = -1;
  int tag = 0;  ///< up to 32767, as every library allows
};

/// How a request has ended.
struct Completion {
  std::size_t index = 0;             ///< which one, among those asked about
  std::size_t bytes = 0;             ///< received; meaningless for a send
  std::optional<std::string> error;  ///< the library's words
};

/// Typed access to the functions that the transport uses. Each throws Error(System) naming the
/// function and the library's reason if it fails. MPI's own rule says which thread may call which
/// function: see thread_level().
class Library {
 public:
  virtual ~Library() = default;

  /// The library's own description, one line: "Open MPI v4.1.4, package: …".
  virtual std::string version() const = 0;
  /// The path that it was loaded from.
  virtual const std::string& name() const noexcept = 0;

  virtual bool initialized() = 0;
  virtual ThreadLevel init(ThreadLevel wanted) = 0;
  virtual ThreadLevel thread_level() = 0;
  virtual void finalize() = 0;

  virtual Handle world() const noexcept = 0;
  virtual int rank(Handle communicator) = 0;
  virtual int size(Handle communicator) = 0;
  virtual Handle duplicate(Handle communicator) = 0;
  /// Failures of calls on it are given back instead of ending the process, where the library can.
  virtual void return_errors(Handle communicator) = 0;

  virtual std::string processor_name() = 0;
  /// Every rank's `own`, all of one length, in the order of the ranks.
  virtual void all_gather(std::span<const std::byte> own, std::span<std::byte> all,
                          Handle communicator) = 0;

  /// Begin to move bytes, fewer than 2³¹; the memory is the library's until the request has ended.
  /// A synchronous send ends only when its receiver has begun to receive it.
  virtual Handle send(std::span<const std::byte> bytes, const Address& to) = 0;
  virtual Handle send_synchronously(std::span<const std::byte> bytes, const Address& to) = 0;
  virtual Handle receive(std::span<std::byte> bytes, const Address& from) = 0;

  /// Gives up a receive, which then ends like any other.
  virtual void cancel(Handle request) = 0;

  /// Moves everything on, and tells which of `requests` have ended. They are gone afterwards.
  virtual void test(std::span<const Handle> requests, std::vector<Completion>& ended) = 0;
};

/// The library of the MPI that has started this process (launch_environment()), or the one that
/// BIMETAL_MPI_LIBRARY names. Error(Unsupported) with all names tried if there is none, or if it is
/// of a kind whose binary interface is not known here.
std::unique_ptr<Library> load_library();

// The variables that mpirun, mpiexec or srun set for their processes, read before MPI itself is
// asked.

enum class Family { open_mpi, mpich, unknown };

struct LaunchEnvironment {
  Family family = Family::unknown;  ///< whose launcher it was
  std::optional<int> world_size;    ///< how many processes it says it has started
};

/// Value of a variable, or nothing where it is not set. Stands for the process's environment.
using Variables = std::function<std::optional<std::string>(const char* name)>;

/// Nothing if no launcher of MPI has left its variables: OMPI_COMM_WORLD_SIZE (Open MPI), PMI_SIZE
/// (MPICH and its kin, srun --mpi=pmi2), PMIX_RANK (srun --mpi=pmix).
std::optional<LaunchEnvironment> launch_environment(const Variables& variables);
std::optional<LaunchEnvironment> launch_environment();

}  // namespace bimetal::net::mpi
