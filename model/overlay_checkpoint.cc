#include "model/overlay_checkpoint.h"

#include <xxhash.h>

#include <utility>

namespace flotilla::model {

OverlayCheckpoint::OverlayCheckpoint(std::shared_ptr<const Checkpoint> file, std::string format,
                                     std::string_view tag)
    : file_(std::move(file)),
      format_(std::move(format)),
      tag_(tag),
      tensors_(file_->tensors().begin(), file_->tensors().end()) {
  for (Tensor& tensor : tensors_) by_name_[tensor.name] = &tensor;
}

void OverlayCheckpoint::Put(const Tensor& tensor) {
  Tensor& place = *by_name_.find(tensor.name)->second;
  const std::string_view name = place.name;  // lives as long as the file
  place = tensor;
  place.name = name;
}

const Tensor* OverlayCheckpoint::FindTensor(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

uint64_t OverlayCheckpoint::MetadataHash() const {
  const std::string all = Cat(file_->MetadataHash(), "|", tag_);
  return XXH3_64bits(all.data(), all.size());
}

}  // namespace flotilla::model
