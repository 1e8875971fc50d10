// GGUF v2/v3 container: metadata and tensors of a model file, by view.
//
// A GgufFile owns a read-only memory map (or borrows the caller's bytes) and an
// index over it. Every string, array and tensor it hands out points into those
// bytes and lives as long as they do. Immutable after opening, so any thread
// may read it. The file is untrusted: lengths are checked against the bytes
// left before anything is allocated, and memory used is at most a small
// multiple of the metadata's size. A GgufFile does not know what the keys mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/types/text.h"
#include "model/mapped_file.h"
#include "model/tensor.h"

namespace flotilla::model {

// Bytes; the specification's own, where general.alignment is absent.
inline constexpr uint64_t kDefaultAlignment = 32;

// Metadata value types; values are the ids in the file.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// One metadata value, by view. For an array, `type` is kArray, `element_type` is the type
// of its elements and `count` is their number. For a scalar both types are equal and
// `count` is 1. `bytes` are the packed elements as in the file (strings of an array with
// their lengths; a scalar string without).
struct GgufValue {
  GgufType type;
  GgufType element_type;
  uint64_t count;
  std::span<const std::byte> bytes;
};

class GgufFile {
 public:
  // Maps the file at `path`. NotFound or another errno code if it cannot be
  // opened, InvalidArgument naming what and where if it is not valid GGUF.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // Reads a file held in memory; `bytes` must outlive the result and all that
  // it hands out. InvalidArgument as for Open.
  static absl::StatusOr<GgufFile> Parse(std::span<const std::byte> bytes);

  // Null if the key is absent.
  const GgufValue* Find(std::string_view key) const;

  // Every metadata key with its value, in no particular order.
  const absl::flat_hash_map<std::string_view, GgufValue, TextHash, TextEqual>& values() const {
    return values_;
  }

  // Typed reads. NotFound if the key is absent, InvalidArgument if its value has another
  // type. An integer of any width and sign is accepted if its value fits.
  absl::StatusOr<uint64_t> GetUint(std::string_view key) const;
  absl::StatusOr<double> GetFloat(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;
  absl::StatusOr<std::vector<bool>> GetBools(std::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(std::string_view key) const;

  // The same, with `fallback` if the key is absent. A wrong type is still an error, because a value
  // that is present must not be ignored.
  absl::StatusOr<uint64_t> GetUintOr(std::string_view key, uint64_t fallback) const;
  absl::StatusOr<double> GetFloatOr(std::string_view key, double fallback) const;
  absl::StatusOr<bool> GetBoolOr(std::string_view key, bool fallback) const;

  // Null if there is no tensor of that name.
  const Tensor* FindTensor(std::string_view name) const;

  // The tensors in file order, which is also the order of their data.
  std::span<const Tensor> tensors() const { return tensors_; }

  // Everything before the tensor data, header included.
  std::span<const std::byte> metadata() const { return metadata_; }

  // As Checkpoint::ReleasePages; does nothing for a file held in memory.
  void ReleasePages() const;

  uint32_t version() const { return version_; }

 private:
  class Reader;

  std::unique_ptr<const MappedFile> mapping_;  // null when the bytes are borrowed
  uint32_t version_ = 0;
  std::span<const std::byte> metadata_;
  absl::flat_hash_map<std::string_view, GgufValue, TextHash, TextEqual> values_;
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string_view, uint32_t, TextHash, TextEqual>
      tensor_index_;  // name -> index in tensors_
};

}  // namespace flotilla::model
