// DryBreakerFinder: the breakers of DRY as tokens of a model's vocabulary.
//
// A text is found in the vocabulary as llama.cpp does it (get_overlapping_token_sequences): tokens
// that contain it are breakers, and so are tokens that end with its beginning, followed by the
// tokens of its rest. That takes a look at each token of the vocabulary, so the last results are
// kept. Any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/types/dry_breakers.h"

namespace flotilla::model {
class Tokenizer;
}

namespace flotilla::router {

class DryBreakerFinder {
 public:
  // `tokenizer` outlives this object.
  explicit DryBreakerFinder(const model::Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  // The breakers of these texts, none of which is empty; of kDefaultDryBreakers if there are none.
  // INVALID_ARGUMENT about dry_sequence_breakers if too many tokens are heads.
  absl::StatusOr<DryBreakers> Find(const std::vector<std::string>& texts) const;

  // What Find costs now, as the number of bytes that take as long to encode.
  std::size_t Cost(const std::vector<std::string>& texts) const;

 private:
  // Most clients send no texts or always the same.
  static constexpr std::size_t kMaxKept = 8;
  using Kept = std::pair<std::vector<std::string>, std::shared_ptr<const DryBreakers>>;

  std::shared_ptr<const DryBreakers> FindKept(const std::vector<std::string>& texts) const;

  const model::Tokenizer* const tokenizer_;
  mutable absl::Mutex mu_;
  mutable std::deque<Kept> kept_ ABSL_GUARDED_BY(mu_);  // the latest first
};

}  // namespace flotilla::router
