#include "bimetal/base/to_error.h"

#include <new>
#include <system_error>

namespace bimetal {

Error to_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::OutOfMemory, "this machine has no memory left");
  } catch (const std::system_error& error) {
    return Error(ErrorCode::System, error.what());
  } catch (const std::exception& error) {
    return Error(ErrorCode::Internal, error.what());
  } catch (...) {
    return Error(ErrorCode::Internal, "an exception of no known type");
  }
}

}  // namespace bimetal
