#pragma once
// How the C library's malloc treats memory of large tensors on the CPU.

namespace bimetal::device {

/// Makes malloc keep the memory of freed tensors for the next step. By default glibc maps each
/// block beyond 32 MiB (at most) anew and unmaps it when freed, and gives the top of its heap back:
/// every step then pays page faults for all of its activations, as much as 40 % of its time for a
/// small CNN at batch 400 (docs/planning.md has the figures). The price: the process stays as large
/// as its largest step was. Process-wide; idempotent. Does nothing where malloc is not glibc's.
void keep_freed_tensors();

/// Makes malloc map each block of 1 MiB and more by itself, so that it is the system's again once
/// it is freed, whatever lies beside it: for who counts bytes. By itself glibc raises that limit to
/// 32 MiB as blocks are freed. Process-wide; idempotent; likewise. What is called last holds.
void return_freed_tensors();

/// Gives what is free at this time back to the system: after something large that does not come
/// again. Does nothing where the C library is not glibc.
void give_back_freed_memory();

}  // namespace bimetal::device
