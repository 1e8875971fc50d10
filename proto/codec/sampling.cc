#include "proto/codec/sampling.h"

#include <cmath>
#include <string>
#include <type_traits>

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
  for (const std::vector<TokenId>& word : sampling.bad_words) {
    proto->mutable_bad_word_tokens()->Add(word.begin(), word.end());
    proto->add_bad_word_lengths(static_cast<std::uint32_t>(word.size()));
  }
  proto->mutable_allowed_tokens()->Assign(sampling.allowed_tokens.begin(),
                                          sampling.allowed_tokens.end());
  if (sampling.constraint) {
    proto->mutable_constraint()->set_kind(enums::FindWire(kKinds, sampling.constraint.kind));
    proto->mutable_constraint()->set_text(sampling.constraint.text);
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
  std::uint64_t bad_word_tokens = 0;
  for (const std::uint32_t length : proto.bad_word_lengths()) {
    bad_word_tokens += length;
    if (length == 0) s.Update(columns::Wrong(bad_words, "an empty word"));
  }
  s.Update(columns::CheckRows(bad_words, proto.bad_word_tokens_size(), bad_word_tokens));
  s.Update(columns::CheckTokens(bad_words, proto.bad_word_tokens()));
  sampling = {.logit_bias = {},
              .allowed_tokens = {},
              .bad_words = {},
              .constraint = {},
              .seed = proto.seed()};
  if (proto.has_constraint()) {
    s.Update(enums::FindDomain(absl::StrCat(field, ".constraint.kind"), kKinds,
                               proto.constraint().kind(), sampling.constraint.kind));
    sampling.constraint.text = proto.constraint().text();
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
  auto token = proto.bad_word_tokens().begin();
  for (const std::uint32_t length : proto.bad_word_lengths()) {
    sampling.bad_words.emplace_back(token, token + length);
    token += length;
  }
  return absl::OkStatus();
}

}  // namespace flotilla::codec
