// Settings of the C library's allocator, so that the memory of large inputs goes back to the
// system. With another C library than glibc, both functions do nothing.
#pragma once

namespace flotilla {

// Blocks of a MiB and more are mapped, and unmapped when they are freed. Left alone, glibc takes
// them from its heaps after the first one was freed, and keeps up to 64 MiB free at the end of
// each heap. At the start of main, before there are threads.
void ConfigureAllocator();

// Gives the free memory of all heaps back; each thread that handled large inputs has a heap.
// It takes some milliseconds at most when hundreds of MiB are in use. Any thread may call it.
void ReturnFreeMemory();

}  // namespace flotilla
