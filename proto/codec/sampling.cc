#include "proto/codec/sampling.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/types/parameters.h"
#include "proto/codec/columns.h"
#include "proto/codec/enums.h"

namespace flotilla::codec {
namespace {

constexpr enums::EnumPair<v1::Constraint::Kind, Constraint::Kind> kKinds[] = {
    {v1::Constraint::JSON_SCHEMA, Constraint::Kind::kJsonSchema},
    {v1::Constraint::REGEX, Constraint::Kind::kRegex},
    {v1::Constraint::GRAMMAR, Constraint::Kind::kGrammar},
    {v1::Constraint::STRUCTURAL_TAG, Constraint::Kind::kStructuralTag},
};

// Checks lists of tokens that are one column, and the number of tokens of each.
absl::Status CheckLists(const std::string& field, const columns::Column<std::int32_t>& tokens,
                        const columns::Column<std::uint32_t>& lengths) {
  std::uint64_t count = 0;
  for (const std::uint32_t length : lengths) count += length;
  absl::Status s = columns::CheckRows(field, tokens.size(), count);
  s.Update(columns::CheckTokens(field, tokens));
  return s;
}

// The lists of columns that were checked.
std::vector<std::vector<TokenId>> ReadLists(const columns::Column<std::int32_t>& tokens,
                                            const columns::Column<std::uint32_t>& lengths) {
  std::vector<std::vector<TokenId>> lists;
  auto token = tokens.begin();
  for (const std::uint32_t length : lengths) {
    lists.emplace_back(token, token + length);
    token += length;
  }
  return lists;
}

void AddLists(const std::vector<std::vector<TokenId>>& lists, columns::Column<std::int32_t>* tokens,
              columns::Column<std::uint32_t>* lengths) {
  for (const std::vector<TokenId>& list : lists) {
    columns::AddTokens(list, tokens);
    lengths->Add(static_cast<std::uint32_t>(list.size()));
  }
}

void ToProto(const DryBreakers& breakers, v1::Sampling* proto) {
  proto->mutable_dry_heads()->Assign(breakers.heads.begin(), breakers.heads.end());
  proto->mutable_dry_tail_of_heads()->Assign(breakers.tail_of.begin(), breakers.tail_of.end());
  AddLists(breakers.tails, proto->mutable_dry_tail_tokens(), proto->mutable_dry_tail_lengths());
}

absl::Status FromProto(absl::string_view field, const v1::Sampling& proto, DryBreakers& breakers) {
  const std::string heads = absl::StrCat(field, ".dry_heads");
  absl::Status s = columns::CheckTokens(heads, proto.dry_heads());
  s.Update(columns::CheckRows(heads, proto.dry_heads_size(),
                              static_cast<std::size_t>(proto.dry_tail_of_heads_size())));
  s.Update(CheckLists(absl::StrCat(field, ".dry_tail_tokens"), proto.dry_tail_tokens(),
                      proto.dry_tail_lengths()));
  if (!s.ok()) return s;
  breakers.heads.assign(proto.dry_heads().begin(), proto.dry_heads().end());
  breakers.tail_of.assign(proto.dry_tail_of_heads().begin(), proto.dry_tail_of_heads().end());
  breakers.tails = ReadLists(proto.dry_tail_tokens(), proto.dry_tail_lengths());
  return absl::OkStatus();
}

absl::Status FromProto(const std::string& field, const v1::ThinkingLimit& proto,
                       ThinkingLimit& limit) {
  absl::Status s = columns::CheckTokens(absl::StrCat(field, ".begin"), proto.begin());
  s.Update(columns::CheckTokens(absl::StrCat(field, ".forced"), proto.forced()));
  if (proto.end() < 0) s.Update(columns::Wrong(absl::StrCat(field, ".end"), "no token"));
  if (proto.forced().empty()) {
    s.Update(columns::Wrong(absl::StrCat(field, ".forced"), "an empty list"));
  }
  limit = {.begin = {proto.begin().begin(), proto.begin().end()},
           .end = proto.end(),
           .forced = {proto.forced().begin(), proto.forced().end()},
           .budget = proto.budget()};
  return s;
}

// The field of a row. Every row of the sampler has one: tests/router/grpc/parameters_test.cc.
const google::protobuf::FieldDescriptor* FieldOf(const Parameter& row) {
  return v1::Sampling::descriptor()->FindFieldByName(std::string(row.name));
}

}  // namespace

void ToProto(const SamplingParams& sampling, v1::Sampling* proto) {
  const google::protobuf::Reflection& access = *proto->GetReflection();
  ForEachOfSampler([&](const Parameter& row, auto member) {
    if constexpr (std::is_same_v<decltype(member), float SamplingParams::*>) {
      access.SetFloat(proto, FieldOf(row), sampling.*member);
    } else {
      access.SetInt32(proto, FieldOf(row), sampling.*member);
    }
  });
  proto->set_seed(sampling.seed);
  for (const LogitBias& entry : sampling.logit_bias) {
    proto->add_biased_tokens(entry.token);
    proto->add_biases(entry.bias);
  }
  AddLists(sampling.bad_words, proto->mutable_bad_word_tokens(), proto->mutable_bad_word_lengths());
  ToProto(sampling.dry_breakers, proto);
  proto->mutable_allowed_tokens()->Assign(sampling.allowed_tokens.begin(),
                                          sampling.allowed_tokens.end());
  if (sampling.constraint) {
    proto->mutable_constraint()->set_kind(enums::FindWire(kKinds, sampling.constraint.kind));
    proto->mutable_constraint()->set_text(sampling.constraint.text);
    proto->mutable_constraint()->set_tenant(sampling.constraint.tenant);
  }
  if (const ThinkingLimit& limit = sampling.thinking) {
    v1::ThinkingLimit& thinking = *proto->mutable_thinking();
    thinking.set_budget(limit.budget);
    thinking.mutable_begin()->Assign(limit.begin.begin(), limit.begin.end());
    thinking.set_end(limit.end);
    thinking.mutable_forced()->Assign(limit.forced.begin(), limit.forced.end());
  }
}

absl::Status FromProto(absl::string_view field, const v1::Sampling& proto,
                       SamplingParams& sampling) {
  const std::string tokens = absl::StrCat(field, ".biased_tokens");
  const auto biases = static_cast<std::size_t>(proto.biases_size());
  absl::Status s = columns::CheckRows(tokens, proto.biased_tokens_size(), biases);
  s.Update(columns::CheckTokens(tokens, proto.biased_tokens()));
  s.Update(columns::CheckTokens(absl::StrCat(field, ".allowed_tokens"), proto.allowed_tokens()));
  const std::string bad_words = absl::StrCat(field, ".bad_word_tokens");
  for (const std::uint32_t length : proto.bad_word_lengths()) {
    if (length == 0) s.Update(columns::Wrong(bad_words, "an empty word"));
  }
  s.Update(CheckLists(bad_words, proto.bad_word_tokens(), proto.bad_word_lengths()));
  sampling = {.dry_breakers = {},
              .logit_bias = {},
              .allowed_tokens = {},
              .bad_words = {},
              .constraint = {},
              .thinking = {},
              .seed = proto.seed()};
  s.Update(FromProto(field, proto, sampling.dry_breakers));
  if (proto.has_constraint()) {
    s.Update(enums::FindDomain(absl::StrCat(field, ".constraint.kind"), kKinds,
                               proto.constraint().kind(), sampling.constraint.kind));
    sampling.constraint.text = proto.constraint().text();
    sampling.constraint.tenant = proto.constraint().tenant();
  }
  if (proto.has_thinking()) {
    s.Update(FromProto(absl::StrCat(field, ".thinking"), proto.thinking(), sampling.thinking));
  }
  const google::protobuf::Reflection& access = *proto.GetReflection();
  ForEachOfSampler([&](const Parameter& row, auto member) {
    // A sender of an earlier version leaves out what it does not know, which keeps its default.
    const google::protobuf::FieldDescriptor& of_row = *FieldOf(row);
    if (of_row.has_presence() && !access.HasField(proto, &of_row)) return;
    if constexpr (std::is_same_v<decltype(member), float SamplingParams::*>) {
      const float value = sampling.*member = access.GetFloat(proto, &of_row);
      if (std::isnan(value)) {
        s.Update(columns::Wrong(absl::StrCat(field, ".", std::string(row.name)), "not a number"));
      }
    } else {
      sampling.*member = access.GetInt32(proto, &of_row);
    }
  });
  for (const float bias : proto.biases()) {
    if (std::isnan(bias)) s.Update(columns::Wrong(absl::StrCat(field, ".biases"), "not a number"));
  }
  if (!s.ok()) return s;
  sampling.logit_bias.reserve(biases);
  for (int i = 0; i < proto.biases_size(); ++i) {
    sampling.logit_bias.push_back({proto.biased_tokens(i), proto.biases(i)});
  }
  sampling.allowed_tokens.assign(proto.allowed_tokens().begin(), proto.allowed_tokens().end());
  sampling.bad_words = ReadLists(proto.bad_word_tokens(), proto.bad_word_lengths());
  return absl::OkStatus();
}

}  // namespace flotilla::codec
