#include "model/text/detokenizer.h"

#include <string_view>
#include <utility>

#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

namespace flotilla::model {

std::string IncrementalDetokenizer::Push(TokenId id) {
  if (skip_special_ && tokenizer_->IsSpecial(id)) return Flush();
  std::string out;
  std::string_view own = std::exchange(is_first_, false) ? tokenizer_->FirstTokenBytes(id)
                                                         : tokenizer_->TokenBytes(id);
  if (!own.empty() && std::exchange(begins_text_, false) && own[0] == ' ' &&
      tokenizer_->strips_first_space()) {
    own.remove_prefix(1);
  }
  std::string bytes = std::exchange(held_, {});
  bytes += own;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Part part = ReadUtf8(bytes, at);
    if (part.kind == Utf8Part::Kind::kCharacter) {
      out.append(bytes, at, part.bytes);
    } else if (part.kind == Utf8Part::Kind::kInvalid) {
      out += kReplacementCharacter;
    } else {
      held_ = bytes.substr(at);
    }
    at += part.bytes;
  }
  return out;
}

std::string IncrementalDetokenizer::Flush() {
  if (held_.empty()) return {};
  held_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace flotilla::model
