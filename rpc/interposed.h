// Interposed: whether a function of this program stands in for one of a shared library, in the
// library's own calls, too.
#pragma once

namespace flotilla::rpc {

// Whether the calls of `name` (as the linker spells it) in the shared library that has a
// function of that name come to `ours`, a function of this program with the same name. False,
// too, where no shared library has one, or where it calls its own directly: as one that was
// linked with -Bsymbolic-functions does, although everybody else reaches `ours`.
bool IsInterposed(const char* name, const void* ours);

}  // namespace flotilla::rpc
