// Interposed: checks whether a function of this program replaces one of a shared library, also
// in the library's own calls.
#pragma once

namespace flotilla::rpc {

// `name` is a function of a shared library, as the linker spells it, and `ours` is a function of
// this program with the same name. True if the library's own calls of `name` reach `ours`. False
// also if no shared library has such a function, or if the library calls its own directly, as one
// that was linked with -Bsymbolic-functions does, although all other callers reach `ours`.
bool IsInterposed(const char* name, const void* ours);

}  // namespace flotilla::rpc
