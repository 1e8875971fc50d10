// Splits text into the pieces that byte-pair merges never cross.
//
// A table, keyed by GGUF's `tokenizer.ggml.pre`, has the regular expressions of each entry; a
// tokenizer.json brings its own. A Pretokenizer is immutable after creation; any number of threads
// may split at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/text/pattern.h"

namespace flotilla::model {

class Pretokenizer {
 public:
  // By the bundle's expressions, or by the table. Unimplemented, listing the known names, if the
  // name is not in the table; or naming what an expression has that is not known to mean the same
  // here. InvalidArgument if an expression is none.
  static absl::StatusOr<Pretokenizer> Create(const TokenizerBundle& bundle);

  // Calls `piece` with consecutive parts of `text`, which must be valid UTF-8, until it
  // returns false. Does not look at the text after that part, but for expressions that come first.
  // ResourceExhausted if an expression runs into its match limit.
  absl::Status Split(std::string_view text, absl::FunctionRef<bool(std::string_view)> piece) const;

  // Returns the text as the model's tokenizer wants it before splitting, which is NFC for
  // some models.
  std::string Normalize(std::string_view text) const;
  // Returns the first offset at or after `at` where the text may be cut, so that its parts
  // are normalised as the whole text is; the text's size if there is none.
  size_t NormalizationCut(std::string_view text, size_t at) const;
  bool normalizes() const;

  // Whether a piece that is itself a token is taken whole, even if merges would not lead
  // to that token.
  bool ignores_merges() const;

  // Whether a text begins with bos if the file does not say so.
  bool adds_bos_by_default() const;

 private:
  struct Row;
  static const Row kRows[];

  Pretokenizer() = default;

  // Splits by the expressions from number `stage` on. False: `piece` wants no more.
  absl::StatusOr<bool> SplitBy(size_t stage, std::string_view text,
                               absl::FunctionRef<bool(std::string_view)> piece) const;

  std::vector<Pattern> stages_;
  bool ignores_merges_ = false, adds_bos_ = false, nfc_ = false;
};

}  // namespace flotilla::model
