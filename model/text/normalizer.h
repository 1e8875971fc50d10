// Normalizer: changes a text before it is split, by the steps of a tokenizer.json or of
// SentencePiece.
//
// It is immutable after creation; any number of threads may use it at once.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"

namespace flotilla::model {

class Normalizer {
 public:
  // UNIMPLEMENTED or INVALID_ARGUMENT: a step does not change text, or has a pattern or a map that
  // cannot be used.
  static absl::StatusOr<Normalizer> Create(std::span<const TextStep> steps);

  Normalizer(Normalizer&&);
  Normalizer& operator=(Normalizer&&);
  ~Normalizer();

  // Changes `text`, which is valid UTF-8 and stays so. Sets `keeps_begin` to whether its beginning
  // was not removed. RESOURCE_EXHAUSTED: it becomes more than 32 times as long and 4 KiB, or a
  // pattern takes too many steps.
  absl::Status Apply(std::string& text, bool& keeps_begin) const;

  // Whether it leaves every text as it is.
  bool empty() const;

 private:
  struct Step;
  Normalizer();

  std::vector<Step> steps_;
};

}  // namespace flotilla::model
