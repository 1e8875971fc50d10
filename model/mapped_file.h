// MappedFile: the bytes of a file, mapped read-only.
//
// Immutable; any thread may read the bytes, which live as long as the map.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace flotilla::model {

class MappedFile {
 public:
  // NOT_FOUND or another errno code if the file cannot be opened; INVALID_ARGUMENT if it is no
  // regular file, empty, or a pointer of Git LFS.
  static absl::StatusOr<std::unique_ptr<const MappedFile>> Open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(address_), size_};
  }
  // As Checkpoint::ReleasePages.
  void ReleasePages() const;

 private:
  MappedFile(void* address, size_t size) : address_(address), size_(size) {}

  void* address_;
  size_t size_;
};

}  // namespace flotilla::model
