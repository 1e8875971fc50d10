// A model in one GGUF file, or in several as llama.cpp's gguf-split writes them. Each part is a
// GGUF file with tensors of its own; the first has the metadata of the model. All state the number
// of the part, the number of parts, and the number of tensors of all parts.
//
// Owns the files; immutable, so any thread may read it. The files are untrusted, as those of
// GgufFile: parts are found by the name of the first one, never by a name from a file, and a part
// that is a link must not lead out of its folder.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "model/gguf/gguf_file.h"

namespace flotilla::model {

class GgufParts {
 public:
  // Opens the file at `path`. If it is the first of several parts, its name ends with
  // "-00001-of-00005.gguf", and the others lie beside it. Errors as for GgufFile::Open, and
  // INVALID_ARGUMENT, which names file, key and value, if it is another part or the parts do not
  // belong together.
  static absl::StatusOr<GgufParts> Open(const std::string& path);

  // Joins files that are open, the first part first. `names` are those of the files, for errors.
  // INVALID_ARGUMENT as for Open.
  static absl::StatusOr<GgufParts> Join(std::vector<GgufFile> files,
                                        std::span<const std::string> names);

  // The file with the metadata, and all files.
  const GgufFile& first() const { return files_.front(); }
  std::span<const GgufFile> files() const { return files_; }

  // The tensors of all parts, part by part.
  std::span<const Tensor> tensors() const;
  // Null if there is no tensor of that name.
  const Tensor* FindTensor(std::string_view name) const;

 private:
  explicit GgufParts(std::vector<GgufFile> files) : files_(std::move(files)) {}

  std::vector<GgufFile> files_;
  // Of several files only.
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string_view, uint32_t, TextHash, TextEqual> by_name_;
};

// The name of a model whose file is called `name`: without ".gguf", and without the number of the
// part.
std::string_view GgufModelName(std::string_view name);

}  // namespace flotilla::model
