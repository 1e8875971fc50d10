// A checkpoint with other scales of K and V.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/overlay_checkpoint.h"

namespace flotilla::testing {

class WithKvScales final : public model::OverlayCheckpoint {
 public:
  WithKvScales(std::shared_ptr<const model::Checkpoint> file, std::vector<model::KvScales> scales)
      : OverlayCheckpoint(file, file->format(), "scales"), scales_(std::move(scales)) {}

  std::span<const model::KvScales> kv_scales() const override { return scales_; }

 private:
  const std::vector<model::KvScales> scales_;
};

}  // namespace flotilla::testing
