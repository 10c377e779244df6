// The interpreter and threads that it has not started.
//
// Whatever takes the interpreter's lock on such a thread makes a thread state for it, and removes
// that afterwards. Making one takes a lock of the interpreter's (over its list of thread states)
// without the interpreter's own. A process forked at that moment has it locked for ever, and up to
// Python 3.11 its first act is to take it: os.fork() never returns in the child
// (PyOS_AfterFork_Child, _PyThreadState_DeleteExcept). So each of our threads makes its state once,
// keeps it, and no fork happens meanwhile.

#include <pthread.h>

#include <mutex>

#include "bimetal/c10d/backend_error.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

// Never destroyed: threads may come late.
std::mutex& forking() {
  static auto* const made = new std::mutex;
  return *made;
}

PyInterpreterState* interpreter = nullptr;

void make_thread_state() {
  std::lock_guard lock(forking());
  if (Py_IsInitialized() && PyGILState_GetThisThreadState() == nullptr) {
    PyThreadState_New(interpreter);
  }
}

void remove_thread_state() {
  PyThreadState* const own = PyGILState_GetThisThreadState();
  if (own == nullptr || !Py_IsInitialized()) return;
  PyEval_RestoreThread(own);
  PyThreadState_Clear(own);
  PyThreadState_DeleteCurrent();
}

}  // namespace

void bind_threads() {
  interpreter = PyInterpreterState_Get();
  c10d::set_thread_entry(make_thread_state, remove_thread_state);
  ::pthread_atfork([] { forking().lock(); }, [] { forking().unlock(); },
                   [] { forking().unlock(); });
}

}  // namespace bimetal::python
