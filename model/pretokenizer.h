// Splits text into the pieces that byte-pair merges never cross.
//
// A table, keyed by GGUF's `tokenizer.ggml.pre`, has one regular expression per entry. A
// Pretokenizer is immutable after creation; any number of threads may split at once.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace flotilla::model {

class Pretokenizer {
 public:
  // Unimplemented, listing the known names, if `pre` is not in the table.
  static absl::StatusOr<Pretokenizer> Create(std::string_view pre);

  Pretokenizer(Pretokenizer&&);
  Pretokenizer& operator=(Pretokenizer&&);
  ~Pretokenizer();

  // Calls `piece` with consecutive parts of `text`, which must be valid UTF-8, until it
  // returns false. Does not look at the text after that part. ResourceExhausted if the
  // expression runs into its match limit.
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
  struct Regex;
  static const Row kRows[];

  Pretokenizer(const Row* row, std::unique_ptr<const Regex> regex);

  const Row* row_;
  std::unique_ptr<const Regex> regex_;
};

}  // namespace flotilla::model
