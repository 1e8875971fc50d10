// The tokenizer of a Hugging Face folder as a bundle.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/huggingface/json_file.h"

namespace flotilla::model {

// The files of a folder that say how text becomes tokens. Of the first two one is there; the others
// may be missing.
struct HfTokenizerFiles {
  Json tokenizer;                            // tokenizer.json, without its rules
  MergeList merges;                          // these rules
  std::optional<std::string> sentencepiece;  // tokenizer.model, which counts without tokenizer.json
  Json tokenizer_config;                     // tokenizer_config.json; null: there is none
  std::optional<std::string> chat_template;  // chat_template.jinja, which goes before the one in
                                             // tokenizer_config.json
  std::vector<NamedTemplate> more_templates;  // of additional_chat_templates, by name
  std::vector<uint64_t> end_ids;              // eos_token_id of the configurations, each once
  Json generation;                            // generation_config.json; null: there is none
  // Rows of the table of token vectors; 0: unknown. Ids without a token are unused ones, as in the
  // files that llama.cpp's converter writes. Added tokens beyond the rows are left out, as there.
  uint64_t rows = 0;
};

// INVALID_ARGUMENT: the files contradict themselves. UNIMPLEMENTED names the part of
// tokenizer.json, or the class of tokenizer_config.json, that is not known.
absl::StatusOr<TokenizerBundle> ReadHfTokenizer(HfTokenizerFiles files);

}  // namespace flotilla::model
