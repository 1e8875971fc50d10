#include "router/grpc/codec.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/text.h"
#include "proto/codec/status.h"
#include "router/errors.h"

namespace flotilla {
namespace {

// An element of a list has a byte or two in a message, but a copy of it takes tens of
// bytes. Lists beyond these counts are not copied. The counts are far above what the
// Validator allows.
constexpr int kMaxStops = 1 << 10;
constexpr int kMaxBiases = 1 << 12;
constexpr int kMaxTokenIds = 1 << 21;

// The Validator uses HTTP's names of fields. These fields have other names in gRPC.
constexpr std::pair<std::string_view, std::string_view> kFieldNames[] = {
    {"early_stopping", "beam_search.early_stopping"},
    {"frequency_penalty", "sampling.frequency_penalty"},
    {"length_penalty", "beam_search.length_penalty"},
    {"logit_bias", "sampling.logit_bias"},
    {"logprobs", "logprobs.output_top"},
    {"min_p", "sampling.min_p"},
    {"min_tokens", "stop.min_tokens"},
    {"presence_penalty", "sampling.presence_penalty"},
    {"prompt_logprobs", "logprobs.prompt_top"},
    {"repetition_penalty", "sampling.repetition_penalty"},
    {"seed", "sampling.seed"},
    {"stop", "stop.strings"},
    {"stop_token_ids", "stop.token_ids"},
    {"temperature", "sampling.temperature"},
    {"tokens", "token_ids"},
    {"top_k", "sampling.top_k"},
    {"top_p", "sampling.top_p"},
};

std::string FieldName(std::string field) {
  if (field.starts_with("messages")) return "chat." + field;  // and what is in one of them
  const auto* found = std::ranges::find(kFieldNames, std::string_view(field),
                                        [](const auto& names) { return names.first; });
  return found == std::end(kFieldNames) ? std::move(field) : std::string(found->second);
}

absl::Status CheckCount(std::string_view field, int count, int limit) {
  if (count <= limit) return absl::OkStatus();
  return InvalidField(field, Cat(field, " has ", count, " elements; at most ", limit));
}

absl::Status ReadPrompt(const v1::GenerateRequest& request, ApiRequest& api) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      api.prompt = request.text();
      return absl::OkStatus();
    case v1::GenerateRequest::kTokenIds: {
      const auto& ids = request.token_ids().ids();
      if (auto status = CheckCount("token_ids", ids.size(), kMaxTokenIds); !status.ok()) {
        return status;
      }
      api.prompt = std::vector<std::int64_t>(ids.begin(), ids.end());
      return absl::OkStatus();
    }
    case v1::GenerateRequest::kChat: {
      const auto& messages = request.chat().messages();
      constexpr RequestLimits kLimits;
      if (static_cast<std::size_t>(messages.size()) > kLimits.max_messages) {
        return TooManyMessages(kLimits);
      }
      std::vector<ChatTurn> turns;
      turns.reserve(messages.size());
      for (const auto& message : messages) turns.push_back({message.role(), message.content()});
      api.prompt = std::move(turns);
      return absl::OkStatus();
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return InvalidField("prompt", "one of text, token_ids and chat is required");
}

absl::Status ReadStop(const v1::StopParams& stop, ApiRequest& api) {
  for (const auto& [field, count] : {std::pair("stop.strings", stop.strings_size()),
                                     std::pair("stop.token_ids", stop.token_ids_size())}) {
    if (auto status = CheckCount(field, count, kMaxStops); !status.ok()) return status;
  }
  api.stop.assign(stop.strings().begin(), stop.strings().end());
  api.stop_token_ids.assign(stop.token_ids().begin(), stop.token_ids().end());
  api.ignore_eos = stop.ignore_eos();
  if (stop.has_min_tokens()) api.min_tokens = stop.min_tokens();
  return absl::OkStatus();
}

absl::Status ReadSampling(const v1::SamplingParams& sampling, ApiRequest& api) {
  if (sampling.has_temperature()) api.temperature = sampling.temperature();
  if (sampling.has_top_k()) api.top_k = sampling.top_k();
  if (sampling.has_top_p()) api.top_p = sampling.top_p();
  if (sampling.has_seed()) api.seed = sampling.seed();
  if (sampling.has_min_p()) api.min_p = sampling.min_p();
  if (sampling.has_frequency_penalty()) api.frequency_penalty = sampling.frequency_penalty();
  if (sampling.has_presence_penalty()) api.presence_penalty = sampling.presence_penalty();
  if (sampling.has_repetition_penalty()) api.repetition_penalty = sampling.repetition_penalty();
  const int biases = sampling.logit_bias_size();
  if (auto s = CheckCount("sampling.logit_bias", biases, kMaxBiases); !s.ok()) return s;
  for (const v1::LogitBias& entry : sampling.logit_bias()) {
    api.logit_bias.emplace_back(entry.token_id(), entry.bias());
  }
  return absl::OkStatus();
}

absl::Status ReadBeams(const v1::BeamSearch& beams, ApiRequest& api) {
  using EarlyStopping = BeamOptions::EarlyStopping;
  api.use_beam_search = true;
  if (beams.has_length_penalty()) api.length_penalty = beams.length_penalty();
  switch (beams.early_stopping()) {
    case v1::BeamSearch::EARLY_STOPPING_UNSPECIFIED:
      api.early_stopping = EarlyStopping::kFalse;
      return absl::OkStatus();
    case v1::BeamSearch::EARLY_STOPPING_ALWAYS:
      api.early_stopping = EarlyStopping::kTrue;
      return absl::OkStatus();
    case v1::BeamSearch::EARLY_STOPPING_NEVER:
      api.early_stopping = EarlyStopping::kNever;
      return absl::OkStatus();
    default:  // the enum is open: any number may come
      return InvalidField("early_stopping", absl::StrCat("early_stopping is ",
                                                         static_cast<int>(beams.early_stopping()),
                                                         ", which has no meaning"));
  }
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
    case FinishReason::kError:
    case FinishReason::kMoved:  // never reaches a client
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void FillToken(TokenId id, float logprob, const TokenBytesFn& bytes, v1::TokenLogprob* proto) {
  const std::string_view token = bytes(id);
  proto->set_token_id(id);
  proto->set_logprob(logprob);
  proto->set_token(token.data(), token.size());
}

}  // namespace

absl::StatusOr<GenerateCall> FromProto(const v1::GenerateRequest& request) {
  GenerateCall call;
  ApiRequest& api = call.api;
  api.model = request.model();
  if (auto status = ReadPrompt(request, api); !status.ok()) return status;
  if (auto status = ReadStop(request.stop(), api); !status.ok()) return status;
  if (request.has_add_special_tokens()) api.add_special_tokens = request.add_special_tokens();
  if (auto status = ReadSampling(request.sampling(), api); !status.ok()) return status;

  if (request.has_n()) api.n = request.n();
  if (request.has_best_of()) api.best_of = request.best_of();
  if (request.has_beam_search()) {
    if (auto status = ReadBeams(request.beam_search(), api); !status.ok()) return status;
  }

  if (request.has_max_tokens()) api.max_tokens = request.max_tokens();
  if (request.logprobs().has_output_top()) api.logprobs = request.logprobs().output_top();
  if (request.logprobs().has_prompt_top()) api.prompt_logprobs = request.logprobs().prompt_top();
  api.priority = request.priority();
  api.client_request_id = request.request_id();
  api.cache_salt = request.cache_salt();
  call.return_token_ids = request.return_token_ids();
  return call;
}

TokenizeRequest FromProto(const v1::TokenizeRequest& request) {
  return {.model = request.model(),
          .input = request.text(),
          .add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens(),
          .parse_special = request.parse_special()};
}

void ToProto(const OutputToken& token, const TokenBytesFn& bytes, v1::PositionLogprobs* position) {
  FillToken(token.id, token.logprob, bytes, position->mutable_chosen());
  for (const TopLogprob& top : token.top) {
    FillToken(top.token, top.logprob, bytes, position->add_top());
  }
}

void ToProto(const ChoiceEnd& end, v1::Finish* finish) {
  finish->set_choice(end.choice);
  finish->set_reason(ToProto(end.reason));
  if (end.stop_string.has_value()) finish->set_stop_string(*end.stop_string);
  if (end.stop_token.has_value()) finish->set_stop_token(*end.stop_token);
  if (end.score.has_value()) finish->set_score(*end.score);
}

void ToProto(const Usage& usage, v1::Usage* proto) {
  proto->set_prompt_tokens(usage.prompt_tokens);
  proto->set_output_tokens(usage.output_tokens);
  proto->set_cached_tokens(usage.cached_tokens);
}

void ToProto(const ModelInfo& info, v1::GetModelInfoResponse* response) {
  response->set_model(info.limits.id);
  response->set_vocab_size(info.limits.vocab_size);
  response->set_max_context(info.limits.max_context);
  response->set_max_sequences(info.limits.max_sequences);
  response->set_numerics_id(info.numerics_id);
  response->set_bit_exact(info.exactness == Exactness::kBitwise);
  response->set_created_s(info.created_s);
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return ToGrpcStatus(status, {.reason = ErrorCode(status),
                               .field = FieldName(ErrorField(status)),
                               .retry_after_ms = RetryAfterMs(status)});
}

}  // namespace flotilla
