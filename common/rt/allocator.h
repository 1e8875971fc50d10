// What this process asks of the C library's allocator, so that memory which large inputs had
// goes back to the system. With another C library than glibc both do nothing.
#pragma once

namespace flotilla {

// Blocks of a MiB and more are mapped, and unmapped when they are freed. Left alone, glibc takes
// them from its heaps after the first one was freed, and keeps up to 64 MiB free at the end of
// each heap. At the start of main, before there are threads.
void ConfigureAllocator();

// Gives back what is free in the heaps, one of which a thread has that took part in large
// inputs. Some milliseconds at most where hundreds of MiB are in use. Any thread.
void ReturnFreeMemory();

}  // namespace flotilla
