#include "rpc/interposed.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstddef>
#include <string_view>

namespace flotilla::rpc {
namespace {

// The part of a shared library's dynamic section that tells which calls go through the dynamic
// linker. Each function that is called so has one relocation in a separate table, DT_JMPREL.
class CallTable {
 public:
  explicit CallTable(const link_map& library) : library_(library) {
    for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_JMPREL) relocations_ = At<ElfW(Rela)>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_PLTRELSZ) count_ = entry->d_un.d_val / sizeof(ElfW(Rela));
      if (entry->d_tag == DT_SYMTAB) symbols_ = At<ElfW(Sym)>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_STRTAB) names_ = At<char>(entry->d_un.d_ptr);
    }
  }

  // The slot that holds the target of calls of `name`; null: no call of it goes through the
  // dynamic linker. The target is a stub of the library until the first call, unless all calls
  // are bound at the start.
  const void* const* Slot(std::string_view name) const {
    if (relocations_ == nullptr || symbols_ == nullptr || names_ == nullptr) return nullptr;
    for (std::size_t i = 0; i < count_; ++i) {
      const ElfW(Sym)& symbol = symbols_[ELF64_R_SYM(relocations_[i].r_info)];
      if (name == names_ + symbol.st_name) return At<const void*>(relocations_[i].r_offset, true);
    }
    return nullptr;
  }

 private:
  // glibc turns most of a dynamic section's offsets into addresses, but not on all machines.
  template <class T>
  const T* At(ElfW(Addr) address, bool is_offset = false) const {
    if (is_offset || address < library_.l_addr) address += library_.l_addr;
    return reinterpret_cast<const T*>(address);
  }

  const link_map& library_;
  const ElfW(Rela) * relocations_ = nullptr;
  std::size_t count_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
};

}  // namespace

bool IsInterposed(const char* name, const void* ours) {
  const void* const theirs = dlsym(RTLD_NEXT, name);
  if (dlsym(RTLD_DEFAULT, name) != ours || theirs == nullptr || theirs == ours) return false;
  Dl_info info;
  link_map* library = nullptr;
  if (dladdr1(theirs, &info, reinterpret_cast<void**>(&library), RTLD_DL_LINKMAP) == 0) {
    return false;
  }
  const void* const* const slot = CallTable(*library).Slot(name);
  return slot != nullptr && *slot != theirs;
}

}  // namespace flotilla::rpc
