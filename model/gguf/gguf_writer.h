// Writes GGUF v3 files (gguf_file.h), one tensor after the other, so that only the header and what
// is being written are in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/ggml_type.h"
#include "model/gguf/gguf_file.h"

namespace flotilla::model {

// Metadata of another file, byte for byte and in its order, some of whose values are others.
class GgufMetadata {
 public:
  explicit GgufMetadata(const GgufFile& file);

  // Puts a number in the place of the key's value, or behind all others if there is none.
  void SetUint32(std::string_view key, uint32_t value);

  // The keys and values as in a file.
  uint64_t count() const { return entries_.size(); }
  std::vector<std::byte> Bytes() const;
  // Of the tensors' data in a file with this metadata: general.alignment of the other file.
  uint64_t alignment() const { return alignment_; }

 private:
  uint64_t alignment_;
  std::vector<std::pair<std::string, std::vector<std::byte>>> entries_;  // by key
};

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // dims[0] is the contiguous dimension, of whole blocks
    GgmlType type = GgmlType::kF32;

    uint64_t elements() const;
    uint64_t bytes() const;
  };

  // Writes the header of a file with these tensors to `path`.unfinished, in place of one that is
  // there. ALREADY_EXISTS: there is something at `path`. Errors by errno.
  static absl::StatusOr<std::unique_ptr<GgufWriter>> Create(const std::string& path,
                                                            const GgufMetadata& metadata,
                                                            const std::vector<Tensor>& tensors);
  // Deletes the file unless Finish has succeeded.
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  // Appends data of the tensors, in the order of the header. A call has data of one tensor.
  // FAILED_PRECONDITION: the tensor has fewer bytes left. Errors by errno.
  absl::Status Write(std::span<const std::byte> data);

  // Puts the file on disk and gives it its name. Returns its size. FAILED_PRECONDITION: tensors
  // have not been written. ALREADY_EXISTS as Create. Errors by errno.
  absl::StatusOr<uint64_t> Finish();

 private:
  GgufWriter(std::string path, int file, uint64_t alignment)
      : path_(std::move(path)),
        unfinished_(path_ + ".unfinished"),
        file_(file),
        alignment_(alignment) {}
  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Pad();

  const std::string path_, unfinished_;
  int file_;  // -1: finished
  const uint64_t alignment_;
  uint64_t size_ = 0;            // of what is written
  std::vector<uint64_t> sizes_;  // of the tensors
  size_t tensor_ = 0;            // the one that is being written
  uint64_t left_ = 0;            // of its bytes
};

}  // namespace flotilla::model
