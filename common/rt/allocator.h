// Settings of the C library's allocator, so that the memory of large inputs goes back to the
// system. With another C library than glibc, both functions do nothing.
#pragma once

namespace flotilla {

// Makes glibc map blocks of a MiB and more, and unmap them when they are freed. By default glibc
// takes such blocks from its heaps once one of them has been freed, and keeps up to 64 MiB free at
// the end of each heap. Call it at the start of main, before there are threads.
void ConfigureAllocator();

// Gives the free memory of all heaps back; each thread that handled large inputs has a heap.
// It takes some milliseconds at most when hundreds of MiB are in use. Any thread may call it.
void ReturnFreeMemory();

}  // namespace flotilla
