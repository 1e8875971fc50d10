#include "proto/codec/tokenizer.h"

#include <algorithm>
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

void WriteSteps(const std::vector<TextStep>& steps,
                google::protobuf::RepeatedPtrField<v1::TextStep>& field) {
  for (const TextStep& step : steps) {
    v1::TextStep* to = field.Add();
    to->set_kind(static_cast<std::uint32_t>(step.kind));
    to->set_flags(step.flags);
    to->set_behavior(static_cast<std::uint32_t>(step.behavior));
    to->set_pattern(step.pattern);
    to->set_text(step.text);
    to->set_start(step.start);
    to->set_stop(step.stop);
  }
}

absl::Status ReadSteps(google::protobuf::RepeatedPtrField<v1::TextStep>& field,
                       std::string_view name, std::vector<TextStep>& steps) {
  constexpr int kMost = 16;
  if (field.size() > kMost) {
    return InvalidArgument("tokenizer.steps.", name, " has ", field.size(), " steps, not at most ",
                           kMost);
  }
  for (v1::TextStep& step : field) {
    if (step.kind() < 1 || step.kind() > static_cast<std::uint32_t>(TextStep::Kind::kLast) ||
        step.behavior() > static_cast<std::uint32_t>(TextStep::Behavior::kLast) ||
        step.flags() > TextStep::kAllFlags) {
      return InvalidArgument("tokenizer.steps.", name, ": step ", steps.size(), " of kind ",
                             step.kind(), ", behavior ", step.behavior(), " and flags ",
                             step.flags(), " is unknown");
    }
    steps.push_back({.kind = static_cast<TextStep::Kind>(step.kind()),
                     .flags = step.flags(),
                     .behavior = static_cast<TextStep::Behavior>(step.behavior()),
                     .pattern = std::move(*step.mutable_pattern()),
                     .text = std::move(*step.mutable_text()),
                     .start = step.start(),
                     .stop = step.stop()});
  }
  return absl::OkStatus();
}

absl::Status ReadSteps(v1::TokenizerBundle& proto, std::optional<TextSteps>& steps) {
  if (!proto.has_steps()) return absl::OkStatus();
  TextSteps& to = steps.emplace();
  v1::TextSteps& from = *proto.mutable_steps();
  absl::Status status = ReadSteps(*from.mutable_normalizer(), "normalizer", to.normalizer);
  status.Update(ReadSteps(*from.mutable_pre_tokenizer(), "pre_tokenizer", to.pre_tokenizer));
  status.Update(ReadSteps(*from.mutable_decoder(), "decoder", to.decoder));
  return status;
}

}  // namespace

std::string WriteTokenizer(const TokenizerBundle& tokenizer) {
  v1::TokenizerBundle proto;
  proto.set_kind(tokenizer.kind);
  proto.set_pretokenizer(tokenizer.pretokenizer);
  proto.mutable_tokens()->Assign(tokenizer.tokens.begin(), tokenizer.tokens.end());
  for (const TokenKind kind : tokenizer.kinds) proto.add_kinds(static_cast<std::uint32_t>(kind));
  proto.mutable_merges()->Assign(tokenizer.merges.begin(), tokenizer.merges.end());
  const auto in_single = [](double score) { return static_cast<float>(score) == score; };
  if (std::ranges::all_of(tokenizer.scores, in_single)) {
    proto.mutable_scores()->Assign(tokenizer.scores.begin(), tokenizer.scores.end());
  } else {
    proto.mutable_exact_scores()->Assign(tokenizer.scores.begin(), tokenizer.scores.end());
  }
  if (tokenizer.steps.has_value()) {
    WriteSteps(tokenizer.steps->normalizer, *proto.mutable_steps()->mutable_normalizer());
    WriteSteps(tokenizer.steps->pre_tokenizer, *proto.mutable_steps()->mutable_pre_tokenizer());
    WriteSteps(tokenizer.steps->decoder, *proto.mutable_steps()->mutable_decoder());
  }
  for (const TokenId id : tokenizer.prefix) proto.add_prefix_ids(static_cast<std::uint32_t>(id));
  for (const TokenId id : tokenizer.suffix) proto.add_suffix_ids(static_cast<std::uint32_t>(id));
  proto.set_splits_unknown(!tokenizer.fuses_unknown);
  proto.set_word_prefix(tokenizer.word_prefix);
  proto.set_max_word_characters(tokenizer.max_word_characters);
  if (tokenizer.bos >= 0) proto.set_bos_id(tokenizer.bos);
  if (tokenizer.eos >= 0) proto.set_eos_id(tokenizer.eos);
  if (tokenizer.eot >= 0) proto.set_eot_id(tokenizer.eot);
  if (tokenizer.eom >= 0) proto.set_eom_id(tokenizer.eom);
  for (const TokenId end : tokenizer.more_ends) {
    proto.add_more_end_ids(static_cast<std::uint32_t>(end));
  }
  if (tokenizer.unknown >= 0) proto.set_unknown_id(tokenizer.unknown);
  if (tokenizer.pad >= 0) proto.set_pad_id(tokenizer.pad);
  for (const SamplingDefault& one : tokenizer.sampling) {
    v1::SamplingDefault* to = proto.add_sampling();
    to->set_name(one.name);
    to->set_value(one.value);
  }
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
    to->set_in_model(rule.in_model);
    to->set_normalized(rule.normalized);
    to->set_byte(rule.byte);
  }
  if (tokenizer.chat_template.has_value()) proto.set_chat_template(*tokenizer.chat_template);
  for (const NamedTemplate& named : tokenizer.more_templates) {
    v1::NamedTemplate* to = proto.add_more_templates();
    to->set_name(named.name);
    to->set_text(named.text);
  }
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
  const int scores = proto.scores_size() + proto.exact_scores_size();
  if (scores != 0 && scores != proto.tokens_size()) {
    return InvalidArgument("tokenizer: ", proto.tokens_size(), " tokens and ", scores, " scores");
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
  if (proto.more_end_ids_size() > static_cast<int>(TokenizerBundle::kMaxEnds)) {
    return InvalidArgument("tokenizer.more_end_ids has ", proto.more_end_ids_size(),
                           " tokens, not at most ", TokenizerBundle::kMaxEnds);
  }
  for (const auto value : proto.more_end_ids()) {
    tokenizer.more_ends.push_back(id("more_end_ids", true, value));
  }
  tokenizer.unknown = id("unknown_id", proto.has_unknown_id(), proto.unknown_id());
  tokenizer.pad = id("pad_id", proto.has_pad_id(), proto.pad_id());
  if (proto.sampling_size() > static_cast<int>(TokenizerBundle::kMaxSampling)) {
    return InvalidArgument("tokenizer.sampling has ", proto.sampling_size(),
                           " values, not at most ", TokenizerBundle::kMaxSampling);
  }
  for (const v1::SamplingDefault& one : proto.sampling()) {
    tokenizer.sampling.push_back({.name = one.name(), .value = one.value()});
  }
  for (const v1::AddedTokenRule& rule : proto.added_rules()) {
    tokenizer.added_rules.push_back({.id = id("added_rules", true, rule.id()),
                                     .strips_left = rule.strips_left(),
                                     .strips_right = rule.strips_right(),
                                     .whole_word = rule.whole_word(),
                                     .in_model = rule.in_model(),
                                     .normalized = rule.normalized(),
                                     .byte = rule.byte()});
  }
  for (const auto value : proto.prefix_ids()) {
    tokenizer.prefix.push_back(id("prefix_ids", true, value));
  }
  for (const auto value : proto.suffix_ids()) {
    tokenizer.suffix.push_back(id("suffix_ids", true, value));
  }
  status.Update(ReadSteps(proto, tokenizer.steps));
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
  tokenizer.scores.insert(tokenizer.scores.end(), proto.exact_scores().begin(),
                          proto.exact_scores().end());
  tokenizer.fuses_unknown = !proto.splits_unknown();
  tokenizer.word_prefix = std::move(*proto.mutable_word_prefix());
  tokenizer.max_word_characters = proto.max_word_characters();
  if (proto.has_add_bos()) tokenizer.add_bos = proto.add_bos();
  if (proto.has_add_eos()) tokenizer.add_eos = proto.add_eos();
  if (proto.has_chat_template())
    tokenizer.chat_template = std::move(*proto.mutable_chat_template());
  for (v1::NamedTemplate& named : *proto.mutable_more_templates()) {
    tokenizer.more_templates.push_back(
        {.name = std::move(*named.mutable_name()), .text = std::move(*named.mutable_text())});
  }
  return tokenizer;
}

}  // namespace flotilla::codec
