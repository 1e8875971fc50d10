#include "proto/codec/sampling.h"

#include <cmath>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "common/types/parameters.h"
#include "proto/codec/columns.h"

namespace flotilla::codec {
namespace {

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
}

absl::Status FromProto(absl::string_view field, const v1::Sampling& proto,
                       SamplingParams& sampling) {
  const std::string tokens = absl::StrCat(field, ".biased_tokens");
  const auto biases = static_cast<std::size_t>(proto.biases_size());
  absl::Status s = columns::CheckRows(tokens, proto.biased_tokens_size(), biases);
  s.Update(columns::CheckTokens(tokens, proto.biased_tokens()));
  sampling = {.logit_bias = {}, .seed = proto.seed()};
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
  return absl::OkStatus();
}

}  // namespace flotilla::codec
