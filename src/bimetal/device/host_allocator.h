#pragma once
// How the C library's malloc treats memory of large tensors on the CPU.

namespace bimetal::device {

/// Makes malloc keep the memory of freed tensors for the next step. By default glibc maps each
/// block beyond 32 MiB (at most) anew and unmaps it when freed, and gives the top of its heap back:
/// every step then pays page faults for all of its activations, as much as 40 % of its time for a
/// small CNN at batch 400 (docs/planning.md has the figures). The price: the process stays as large
/// as its largest step was. Process-wide; idempotent. Does nothing where malloc is not glibc's.
void keep_freed_tensors();

}  // namespace bimetal::device
