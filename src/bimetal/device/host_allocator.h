#pragma once
// How memory of tensors on the CPU is had and given back.

#include <cstddef>

namespace bimetal::device {

/// Makes malloc map each block of 1 MiB and more by itself, so that it is the system's again once
/// it is freed. By itself glibc raises that limit to 32 MiB as blocks are freed, and holes in its
/// heap stay. Process-wide; idempotent. Does nothing where the C library is not glibc.
void return_large_blocks();

/// Makes libtorch take its large CPU tensors (256 KiB and more) from a heap that keeps them from
/// step to step (device/page_heap.h), and calls return_large_blocks(). By default each step pays
/// page faults for all of its activations, as much as 40 % of its time for a small CNN at batch 400
/// (docs/planning.md has the figures). Process-wide; idempotent; to be called before other threads
/// make tensors. Tensors that exist already go back to where they came from.
void reuse_freed_tensors();

/// For memory that reuse_freed_tensors() keeps: so many bytes more than were in use at some time.
void keep_at_most(std::size_t spare);

/// Gives memory that is free now back to the system. Call it after large work that does not come
/// again. Thread-safe.
void give_back_freed_memory();

}  // namespace bimetal::device
