// Turns token ids into text as they arrive, for one sequence of one request.
//
// A detokenizer is a plain value. The code that streams the sequence owns it, and one
// thread at a time uses it. Text comes out as soon as it is whole characters. At most
// three bytes, the beginning of a character, are held back.
#pragma once

#include <string>

#include "common/types/ids.h"

namespace flotilla::model {

class Tokenizer;

class IncrementalDetokenizer {
 public:
  // `tokenizer` must outlive this object. With `skip_special`, control tokens and the unknown token
  // give no text, else their names. Either way they end a character that was still incomplete. Only
  // names of bytes may go on with it, because they give the byte. `begins_text`: the tokens are a
  // text by themselves and not the end of one, so that what Tokenizer::strips_first_space says
  // counts.
  explicit IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special = true,
                                  bool begins_text = false)
      : tokenizer_(tokenizer),
        skip_special_(skip_special),
        is_first_(begins_text),
        begins_text_(begins_text) {}

  // Returns the text that became certain with this token. It is always whole characters,
  // with U+FFFD for each maximal part that can no longer become one. Ids outside the
  // vocabulary give nothing.
  std::string Push(TokenId id);

  // Ends the sequence. Returns U+FFFD if a character was left incomplete, else nothing.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool is_first_;     // no token of the text has come yet
  bool begins_text_;  // and no byte
  std::string held_;  // beginning of a character, 0..3 bytes
};

}  // namespace flotilla::model
