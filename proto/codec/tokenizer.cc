#include "proto/codec/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/types/text.h"
#include "flotilla/v1/tokenizer.pb.h"

namespace flotilla::codec {
namespace {

constexpr int kMostBytes = 64 << 20;  // several times the largest published tokenizer

std::vector<std::string> Strings(google::protobuf::RepeatedPtrField<std::string>& field) {
  std::vector<std::string> strings;
  strings.reserve(field.size());
  for (std::string& text : field) strings.push_back(std::move(text));
  return strings;
}

absl::Status ReadKinds(const v1::TokenizerBundle& proto, std::vector<TokenKind>& kinds) {
  if (proto.kinds_size() != proto.tokens_size()) {
    return InvalidArgument("tokenizer: ", proto.tokens_size(), " tokens and ", proto.kinds_size(),
                           " kinds");
  }
  kinds.reserve(proto.kinds_size());
  for (const std::uint32_t kind : proto.kinds()) {
    if (kind < 1 || kind > static_cast<std::uint32_t>(TokenKind::kByte)) {
      return InvalidArgument("tokenizer.kinds: token ", kinds.size(), " has kind ", kind);
    }
    kinds.push_back(static_cast<TokenKind>(kind));
  }
  return absl::OkStatus();
}

}  // namespace

std::string WriteTokenizer(const TokenizerBundle& tokenizer) {
  v1::TokenizerBundle proto;
  proto.set_kind(tokenizer.kind);
  proto.set_pretokenizer(tokenizer.pretokenizer);
  proto.mutable_tokens()->Assign(tokenizer.tokens.begin(), tokenizer.tokens.end());
  for (const TokenKind kind : tokenizer.kinds) proto.add_kinds(static_cast<std::uint32_t>(kind));
  proto.mutable_merges()->Assign(tokenizer.merges.begin(), tokenizer.merges.end());
  proto.mutable_scores()->Assign(tokenizer.scores.begin(), tokenizer.scores.end());
  if (tokenizer.bos >= 0) proto.set_bos_id(tokenizer.bos);
  if (tokenizer.eos >= 0) proto.set_eos_id(tokenizer.eos);
  if (tokenizer.eot >= 0) proto.set_eot_id(tokenizer.eot);
  if (tokenizer.eom >= 0) proto.set_eom_id(tokenizer.eom);
  if (tokenizer.unknown >= 0) proto.set_unknown_id(tokenizer.unknown);
  if (tokenizer.add_bos.has_value()) proto.set_add_bos(*tokenizer.add_bos);
  if (tokenizer.add_eos.has_value()) proto.set_add_eos(*tokenizer.add_eos);
  proto.mutable_split_patterns()->Assign(tokenizer.split_patterns.begin(),
                                         tokenizer.split_patterns.end());
  proto.set_nfc(tokenizer.nfc);
  proto.set_ignores_merges(tokenizer.ignores_merges);
  proto.set_space_prefix(static_cast<std::uint32_t>(tokenizer.space_prefix));
  for (const AddedTokenRule& rule : tokenizer.added_rules) {
    v1::AddedTokenRule* to = proto.add_added_rules();
    to->set_id(static_cast<std::uint32_t>(rule.id));
    to->set_strips_left(rule.strips_left);
    to->set_strips_right(rule.strips_right);
    to->set_whole_word(rule.whole_word);
  }
  if (tokenizer.chat_template.has_value()) proto.set_chat_template(*tokenizer.chat_template);
  return proto.SerializeAsString();
}

absl::StatusOr<TokenizerBundle> ReadTokenizer(std::string_view bytes) {
  v1::TokenizerBundle proto;
  if (bytes.size() > kMostBytes ||
      !proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument("tokenizer: ", bytes.size(), " bytes are not a TokenizerBundle");
  }
  TokenizerBundle tokenizer;
  if (absl::Status status = ReadKinds(proto, tokenizer.kinds); !status.ok()) return status;
  if (proto.scores_size() != 0 && proto.scores_size() != proto.tokens_size()) {
    return InvalidArgument("tokenizer: ", proto.tokens_size(), " tokens and ", proto.scores_size(),
                           " scores");
  }
  const std::uint32_t count = static_cast<std::uint32_t>(proto.tokens_size());
  absl::Status status;
  const auto id = [&](std::string_view name, bool present, std::uint32_t value) -> TokenId {
    if (!present) return -1;
    if (value >= count) {
      status.Update(InvalidArgument("tokenizer.", name, " = ", value,
                                    " is outside the vocabulary of ", count));
      return -1;
    }
    return static_cast<TokenId>(value);
  };
  tokenizer.bos = id("bos_id", proto.has_bos_id(), proto.bos_id());
  tokenizer.eos = id("eos_id", proto.has_eos_id(), proto.eos_id());
  tokenizer.eot = id("eot_id", proto.has_eot_id(), proto.eot_id());
  tokenizer.eom = id("eom_id", proto.has_eom_id(), proto.eom_id());
  tokenizer.unknown = id("unknown_id", proto.has_unknown_id(), proto.unknown_id());
  for (const v1::AddedTokenRule& rule : proto.added_rules()) {
    tokenizer.added_rules.push_back({.id = id("added_rules", true, rule.id()),
                                     .strips_left = rule.strips_left(),
                                     .strips_right = rule.strips_right(),
                                     .whole_word = rule.whole_word()});
  }
  if (!status.ok()) return status;
  if (proto.space_prefix() > static_cast<std::uint32_t>(SpacePrefix::kTextWithout)) {
    return InvalidArgument("tokenizer.space_prefix = ", proto.space_prefix(), " is unknown");
  }
  tokenizer.space_prefix = static_cast<SpacePrefix>(proto.space_prefix());
  tokenizer.split_patterns = Strings(*proto.mutable_split_patterns());
  tokenizer.nfc = proto.nfc();
  tokenizer.ignores_merges = proto.ignores_merges();
  tokenizer.kind = std::move(*proto.mutable_kind());
  tokenizer.pretokenizer = std::move(*proto.mutable_pretokenizer());
  tokenizer.tokens = Strings(*proto.mutable_tokens());
  tokenizer.merges = Strings(*proto.mutable_merges());
  tokenizer.scores.assign(proto.scores().begin(), proto.scores().end());
  if (proto.has_add_bos()) tokenizer.add_bos = proto.add_bos();
  if (proto.has_add_eos()) tokenizer.add_eos = proto.add_eos();
  if (proto.has_chat_template())
    tokenizer.chat_template = std::move(*proto.mutable_chat_template());
  return tokenizer;
}

}  // namespace flotilla::codec
