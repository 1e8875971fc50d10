// Splits text into the pieces that byte-pair merges never cross.
//
// One regular expression per entry of a table keyed by GGUF's
// `tokenizer.ggml.pre`. Immutable after creation; any number of threads may
// split at once.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace flotilla {

class Pretokenizer {
 public:
  // Unimplemented, listing the known names, if `pre` is not in the table.
  static absl::StatusOr<Pretokenizer> Create(std::string_view pre);

  Pretokenizer(Pretokenizer&&);
  Pretokenizer& operator=(Pretokenizer&&);
  ~Pretokenizer();

  // Calls `piece` with consecutive parts of `text`, which must be valid UTF-8, until it
  // returns false; what comes after is not looked at. ResourceExhausted if the expression
  // runs into its match limit.
  absl::Status Split(std::string_view text, absl::FunctionRef<bool(std::string_view)> piece) const;

  // Text as the model's tokenizer wants it before splitting: NFC for some.
  std::string Normalize(std::string_view text) const;
  // Where a text may be cut so that its parts are normalised as the whole is: the first such
  // offset at or after `at`, or its size.
  size_t NormalizationCut(std::string_view text, size_t at) const;
  bool normalizes() const;

  // A piece that is itself a token is taken whole, even if merges would not
  // lead there.
  bool ignores_merges() const;

  // Whether a text begins with bos where the file does not say.
  bool adds_bos_by_default() const;

 private:
  struct Row;
  struct Regex;
  static const Row kRows[];

  Pretokenizer(const Row* row, std::unique_ptr<const Regex> regex);

  const Row* row_;
  std::unique_ptr<const Regex> regex_;
};

}  // namespace flotilla
