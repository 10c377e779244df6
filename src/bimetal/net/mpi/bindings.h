#pragma once
// Library over one family's binary interface: the definitions of MPI below.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/dynamic_library.h"
#include "bimetal/net/mpi/library.h"

namespace bimetal::net::mpi {

// The definitions of mpi.h for the two families of MPI libraries: types of handles, layout of a
// status, values of constants (MPI 3.1, annex A; the numbers are each library's own). Open MPI's
// handles are addresses of objects that the library exports. Those of MPICH and of libraries with
// its ABI (Intel MPI, MVAPICH, Cray MPI: the "MPICH ABI Compatibility Initiative") are numbers.

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

/// Longer than any library's MPI_MAX_LIBRARY_VERSION_STRING, MPI_MAX_ERROR_STRING and
/// MPI_MAX_PROCESSOR_NAME.
using TextBuffer = std::array<char, 16384>;

/// Looks up a function of a known type. Error(Unsupported) if the library lacks it.
template <typename Function>
void resolve(const DynamicLibrary& library, const char* name, Function*& function) {
  function = std::bit_cast<Function*>(library.find(name));
  if (function != nullptr) return;
  throw Error(ErrorCode::Unsupported,
              fmt::format("{} has no function {}: it is no MPI library, or one older than MPI 2",
                          library.name(), name));
}

template <class Abi>
class Bindings final : public Library {
 public:
  explicit Bindings(DynamicLibrary library) : library_(std::move(library)), abi_(library_) {
    resolve(library_, "MPI_Get_library_version", get_library_version_);
    resolve(library_, "MPI_Error_string", error_string_);
    resolve(library_, "MPI_Initialized", initialized_);
    resolve(library_, "MPI_Init_thread", init_thread_);
    resolve(library_, "MPI_Query_thread", query_thread_);
    resolve(library_, "MPI_Finalize", finalize_);
    resolve(library_, "MPI_Comm_rank", comm_rank_);
    resolve(library_, "MPI_Comm_size", comm_size_);
    resolve(library_, "MPI_Comm_dup", comm_dup_);
    resolve(library_, "MPI_Comm_set_errhandler", comm_set_errhandler_);
    resolve(library_, "MPI_Get_processor_name", get_processor_name_);
    resolve(library_, "MPI_Allgather", allgather_);
    resolve(library_, "MPI_Isend", isend_);
    resolve(library_, "MPI_Issend", issend_);
    resolve(library_, "MPI_Irecv", irecv_);
    resolve(library_, "MPI_Cancel", cancel_);
    resolve(library_, "MPI_Testsome", testsome_);
    resolve(library_, "MPI_Get_count", get_count_);
  }

  std::string version() const override {
    TextBuffer text{};
    int length = 0;
    check("MPI_Get_library_version", get_library_version_(text.data(), &length));
    std::string line(text.data());
    line.resize(std::min(line.find_first_of("\r\n"), line.size()));
    std::ranges::replace(line, '\t', ' ');
    return line;
  }
  const std::string& name() const noexcept override { return library_.name(); }

  bool initialized() override {
    int flag = 0;
    check("MPI_Initialized", initialized_(&flag));
    return flag != 0;
  }
  ThreadLevel init(ThreadLevel wanted) override {
    int given = 0;
    check("MPI_Init_thread", init_thread_(nullptr, nullptr, static_cast<int>(wanted), &given));
    return static_cast<ThreadLevel>(given);
  }
  ThreadLevel thread_level() override {
    int given = 0;
    check("MPI_Query_thread", query_thread_(&given));
    return static_cast<ThreadLevel>(given);
  }
  void finalize() override { check("MPI_Finalize", finalize_()); }

  Handle world() const noexcept override { return to_handle(abi_.world); }
  int rank(Handle communicator) override {
    int rank = 0;
    check("MPI_Comm_rank", comm_rank_(comm(communicator), &rank));
    return rank;
  }
  int size(Handle communicator) override {
    int size = 0;
    check("MPI_Comm_size", comm_size_(comm(communicator), &size));
    return size;
  }
  Handle duplicate(Handle communicator) override {
    typename Abi::Comm copy{};
    check("MPI_Comm_dup", comm_dup_(comm(communicator), &copy));
    return to_handle(copy);
  }
  void return_errors(Handle communicator) override {
    check("MPI_Comm_set_errhandler", comm_set_errhandler_(comm(communicator), abi_.errors_return));
  }

  std::string processor_name() override {
    TextBuffer text{};
    int length = 0;
    check("MPI_Get_processor_name", get_processor_name_(text.data(), &length));
    return text.data();
  }
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all,
                  Handle communicator) override {
    const int count = static_cast<int>(own.size());
    check("MPI_Allgather", allgather_(own.data(), count, abi_.byte, all.data(), count, abi_.byte,
                                      comm(communicator)));
  }

  Handle send(std::span<const std::byte> bytes, const Address& to) override {
    return begin("MPI_Isend", isend_, bytes, to);
  }
  Handle send_synchronously(std::span<const std::byte> bytes, const Address& to) override {
    return begin("MPI_Issend", issend_, bytes, to);
  }
  Handle receive(std::span<std::byte> bytes, const Address& from) override {
    return begin("MPI_Irecv", irecv_, bytes, from);
  }
  void cancel(Handle request) override {
    auto given_up = from_handle<typename Abi::Request>(request);
    check("MPI_Cancel", cancel_(&given_up));
  }

  void test(std::span<const Handle> requests, std::vector<Completion>& ended) override {
    ended.clear();
    requests_.clear();
    for (const Handle request : requests) {
      requests_.push_back(from_handle<typename Abi::Request>(request));
    }
    indices_.resize(requests.size());
    statuses_.resize(requests.size());
    int count = 0;
    const int result = testsome_(static_cast<int>(requests.size()), requests_.data(), &count,
                                 indices_.data(), statuses_.data());
    if (result != kSuccess && count <= 0) check("MPI_Testsome", result);
    for (int i = 0; i < count; ++i) {  // kUndefined is negative
      Completion completion{static_cast<std::size_t>(indices_[i]), 0, {}};
      // A status speaks of errors only where the whole call says that some do.
      const int error = result == kSuccess ? kSuccess : statuses_[i].error;
      int bytes = 0;
      if (error != kSuccess) {
        completion.error = words_for(error);
      } else if (get_count_(&statuses_[i], abi_.byte, &bytes) == kSuccess && bytes > 0) {
        completion.bytes = static_cast<std::size_t>(bytes);
      }
      ended.push_back(std::move(completion));
    }
  }

 private:
  template <typename T>
  static Handle to_handle(T value) noexcept {
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<Handle>(value);
    } else {
      return static_cast<Handle>(static_cast<std::make_unsigned_t<T>>(value));
    }
  }
  template <typename T>
  static T from_handle(Handle handle) noexcept {
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(handle);
    } else {
      return static_cast<T>(handle);
    }
  }
  static typename Abi::Comm comm(Handle handle) noexcept {
    return from_handle<typename Abi::Comm>(handle);
  }

  template <typename Function, typename Bytes>
  Handle begin(const char* name, Function* function, Bytes bytes, const Address& with) {
    typename Abi::Request request{};
    check(name, function(bytes.data(), static_cast<int>(bytes.size()), abi_.byte, with.peer,
                         with.tag, comm(with.communicator), &request));
    return to_handle(request);
  }

  std::string words_for(int error) const {
    TextBuffer text{};
    int length = 0;
    if (error_string_(error, text.data(), &length) != kSuccess) {
      return fmt::format("MPI error {}", error);
    }
    return text.data();
  }
  void check(const char* function, int result) const {
    if (result == kSuccess) return;
    throw Error(ErrorCode::System, fmt::format("{}: {}", function, words_for(result)));
  }

  using Comm = typename Abi::Comm;
  using Datatype = typename Abi::Datatype;
  using Request = typename Abi::Request;
  using Status = typename Abi::Status;
  using Send = int(const void*, int, Datatype, int, int, Comm, Request*);

  DynamicLibrary library_;
  Abi abi_;
  std::vector<Request> requests_;  // of test(), kept for the next
  std::vector<int> indices_;
  std::vector<Status> statuses_;

  int (*get_library_version_)(char*, int*) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  int (*initialized_)(int*) = nullptr;
  int (*init_thread_)(int*, char***, int, int*) = nullptr;
  int (*query_thread_)(int*) = nullptr;
  int (*finalize_)() = nullptr;
  int (*comm_rank_)(Comm, int*) = nullptr;
  int (*comm_size_)(Comm, int*) = nullptr;
  int (*comm_dup_)(Comm, Comm*) = nullptr;
  int (*comm_set_errhandler_)(Comm, typename Abi::Errhandler) = nullptr;
  int (*get_processor_name_)(char*, int*) = nullptr;
  int (*allgather_)(const void*, int, Datatype, void*, int, Datatype, Comm) = nullptr;
  Send* isend_ = nullptr;
  Send* issend_ = nullptr;
  int (*irecv_)(void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*cancel_)(Request*) = nullptr;
  int (*testsome_)(int, Request*, int*, int*, Status*) = nullptr;
  int (*get_count_)(const Status*, Datatype, int*) = nullptr;
};

}  // namespace bimetal::net::mpi
