#include "proto/codec/sampling.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/columns.h"

namespace flotilla {

void ToProto(const SamplingParams& sampling, v1::Sampling* proto) {
  proto->set_temperature(sampling.temperature);
  proto->set_top_k(sampling.top_k);
  proto->set_top_p(sampling.top_p);
  proto->set_seed(sampling.seed);
  proto->set_min_p(sampling.min_p);
  proto->set_repetition_penalty(sampling.repetition_penalty);
  proto->set_frequency_penalty(sampling.frequency_penalty);
  proto->set_presence_penalty(sampling.presence_penalty);
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
  for (const auto& [name, value] :
       {std::pair(".temperature", proto.temperature()), std::pair(".top_p", proto.top_p()),
        std::pair(".min_p", proto.min_p()),
        std::pair(".repetition_penalty", proto.repetition_penalty()),
        std::pair(".frequency_penalty", proto.frequency_penalty()),
        std::pair(".presence_penalty", proto.presence_penalty())}) {
    if (std::isnan(value)) s.Update(columns::Wrong(absl::StrCat(field, name), "not a number"));
  }
  for (const float bias : proto.biases()) {
    if (std::isnan(bias)) s.Update(columns::Wrong(absl::StrCat(field, ".biases"), "not a number"));
  }
  if (!s.ok()) return s;
  sampling = {.temperature = proto.temperature(),
              .top_k = proto.top_k(),
              .top_p = proto.top_p(),
              .min_p = proto.min_p(),
              .repetition_penalty = proto.repetition_penalty(),
              .frequency_penalty = proto.frequency_penalty(),
              .presence_penalty = proto.presence_penalty(),
              .logit_bias = {},
              .seed = proto.seed()};
  sampling.logit_bias.reserve(biases);
  for (int i = 0; i < proto.biases_size(); ++i) {
    sampling.logit_bias.push_back({proto.biased_tokens(i), proto.biases(i)});
  }
  return absl::OkStatus();
}

}  // namespace flotilla
