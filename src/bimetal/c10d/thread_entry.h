#pragma once
// What a thread of ours does before it first touches what belongs to torch's user: tensors, futures
// and their callbacks.

namespace bimetal::c10d {

/// `enter` is run once on each such thread, before anything else of torch's is; `leave` where such
/// a thread ends while the rest of the process goes on as before. For what embeds this library:
/// Python's module makes the interpreter know the thread. Once, before any group is made.
void set_thread_entry(void (*enter)(), void (*leave)());

/// Called on every thread that completes works. Cheap after the first time.
void enter_thread();

/// The thread touches nothing of torch's afterwards.
void leave_thread();

}  // namespace bimetal::c10d
