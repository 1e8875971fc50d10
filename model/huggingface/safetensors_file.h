// A safetensors file: tensors by view, and where they lie.
//
// The format (huggingface/safetensors, README): the length of a header in eight bytes, the header,
// which is a JSON object with type, shape and place of each tensor, and the data. A SafetensorsFile
// owns a map of the file and an index over it. Immutable; any thread may read it. The file is
// untrusted: the header is read as events, so it takes memory of at most four times its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/mapped_file.h"
#include "model/tensor.h"

namespace flotilla::model {

class SafetensorsFile {
 public:
  // Maps the file at `path`. Errors as MappedFile::Open; INVALID_ARGUMENT, which names the file and
  // the problem, if it is not valid; UNIMPLEMENTED for a type of numbers that is not known here.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // The same for a file that is held in memory. `bytes` outlive the result.
  static absl::StatusOr<SafetensorsFile> Parse(std::span<const std::byte> bytes);

  // In the order of their data. Their names lie in the object.
  std::span<const Tensor> tensors() const { return tensors_; }
  // The length field and the header.
  std::span<const std::byte> header() const { return header_; }
  void ReleasePages() const;

 private:
  class Reader;

  std::unique_ptr<const MappedFile> mapping_;  // null when the bytes are borrowed
  std::span<const std::byte> header_;
  std::deque<std::string> names_;  // they stay where they are when the object is moved
  std::vector<Tensor> tensors_;
};

// What such files call a type of numbers; empty: they have none of it.
std::string_view SafetensorsTypeName(GgmlType type);

}  // namespace flotilla::model
