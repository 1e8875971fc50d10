// OverlayCheckpoint: a checkpoint some of whose tensors are others, e.g. because they are quantised
// while they are loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/types/text.h"
#include "model/checkpoint.h"

namespace flotilla::model {

class OverlayCheckpoint : public Checkpoint {
 public:
  // Has the tensors of `file`, until Put. `format` is for people. MetadataHash tells apart what
  // `tag` tells apart.
  OverlayCheckpoint(std::shared_ptr<const Checkpoint> file, std::string format,
                    std::string_view tag);

  // Puts `tensor` in the place of the one of its name, which there is. What it shows lives as long
  // as this checkpoint. Not while others read.
  void Put(const Tensor& tensor);

  std::string format() const override { return format_; }
  std::string_view path() const override { return file_->path(); }
  const Configuration& configuration() const override { return file_->configuration(); }
  Naming naming() const override { return file_->naming(); }
  std::span<const Tensor> tensors() const override { return tensors_; }
  std::span<const SkippedTensors> skipped_tensors() const override {
    return file_->skipped_tensors();
  }
  std::span<const KvScales> kv_scales() const override { return file_->kv_scales(); }
  const Tensor* FindTensor(std::string_view name) const override;
  uint64_t token_count() const override { return file_->token_count(); }
  absl::StatusOr<TokenizerBundle> ReadTokenizer() const override { return file_->ReadTokenizer(); }
  void ReleasePages() const override { file_->ReleasePages(); }
  uint64_t MetadataHash() const override;
  std::vector<MetadataEntry> Metadata() const override { return file_->Metadata(); }

 private:
  const std::shared_ptr<const Checkpoint> file_;
  const std::string format_, tag_;
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string_view, Tensor*, TextHash, TextEqual> by_name_;
};

}  // namespace flotilla::model
