#include "router/grpc/codec.h"

#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/types/text.h"
#include "google/protobuf/message.h"
#include "proto/codec/status.h"
#include "router/errors.h"
#include "router/grpc/chat_codec.h"
#include "router/grpc/structured_outputs.h"

namespace flotilla::router {
namespace {

// An element of a list has a byte or two in a message, but a copy of it takes tens of
// bytes. Lists beyond these counts are not copied. The counts are far above what the
// Validator allows.
constexpr int kMaxStops = 1 << 10;
constexpr int kMaxBiases = 1 << 12;
constexpr int kMaxAllowed = 1 << 14;
constexpr int kMaxTokenIds = 1 << 21;

// The Validator uses HTTP's names of fields.
std::string FieldName(std::string field) {
  if (IsChatField(field)) return "chat." + field;
  if (field == "tokens") return "token_ids";
  for (const Parameter& row : kParameters) {
    if (row.name == field && !row.grpc.empty()) return std::string(row.grpc);
  }
  return field;
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
      absl::StatusOr<Conversation> conversation = FromProto(request.chat());
      if (!conversation.ok()) return conversation.status();
      api.prompt = *std::move(conversation);
      return absl::OkStatus();
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return InvalidField("prompt", "one of text, token_ids and chat is required");
}

// A scalar field of a message, which the client has set or which cannot be absent.
struct Field {
  const google::protobuf::Message& message;
  const google::protobuf::FieldDescriptor* field;

  const google::protobuf::Reflection& access() const { return *message.GetReflection(); }
};

// Each overload reads the fields of the type of one kind of member. Lists and enums are not read
// here.
template <class T>
void Read(const Field&, T&) {}
void Read(const Field& from, std::optional<double>& value) {
  value = from.access().GetFloat(from.message, from.field);
}
void Read(const Field& from, std::optional<std::int64_t>& value) {
  const bool is_signed = from.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT32;
  value = is_signed ? std::int64_t{from.access().GetInt32(from.message, from.field)}
                    : std::int64_t{from.access().GetUInt32(from.message, from.field)};
}
void Read(const Field& from, std::optional<std::uint64_t>& value) {
  value = from.access().GetUInt64(from.message, from.field);
}
void Read(const Field& from, std::string& value) {
  value = from.access().GetString(from.message, from.field);
}
void Read(const Field& from, bool& value) {
  // A message says by its presence that the client wants what it is about.
  value = from.field->message_type() != nullptr || from.access().GetBool(from.message, from.field);
}

// Reads the parameters that are single values. `grpc` of a row names a field of the request, or
// of a message in it.
void ReadValues(const v1::GenerateRequest& request, ApiRequest& api) {
  for (const Parameter& row : kParameters) {
    const google::protobuf::Message* message = &request;
    std::string_view name = row.grpc;
    if (const auto dot = name.find('.'); dot != std::string_view::npos) {
      const auto* outer =
          message->GetDescriptor()->FindFieldByName(std::string(name.substr(0, dot)));
      message = &message->GetReflection()->GetMessage(*message, outer);
      name.remove_prefix(dot + 1);
    }
    const auto* field = message->GetDescriptor()->FindFieldByName(std::string(name));
    if (field == nullptr || field->is_repeated()) continue;
    if (field->has_presence() && !message->GetReflection()->HasField(*message, field)) continue;
    std::visit([&](auto member) { Read(Field{*message, field}, api.*member); }, row.asked);
  }
}

absl::Status ReadLists(const v1::GenerateRequest& request, ApiRequest& api) {
  const v1::StopParams& stop = request.stop();
  const auto& biases = request.sampling().logit_bias();
  const auto& allowed = request.sampling().allowed_token_ids();
  const auto& bad_words = request.sampling().bad_words();
  const auto& breakers = request.sampling().dry_sequence_breakers();
  for (const auto& [field, count, limit] :
       {std::tuple("stop.strings", stop.strings_size(), kMaxStops),
        std::tuple("stop.token_ids", stop.token_ids_size(), kMaxStops),
        std::tuple("sampling.logit_bias", biases.size(), kMaxBiases),
        std::tuple("sampling.allowed_token_ids", allowed.size(), kMaxAllowed),
        std::tuple("sampling.bad_words", bad_words.size(), kMaxStops),
        std::tuple("sampling.dry_sequence_breakers", breakers.size(), kMaxStops)}) {
    if (auto status = CheckCount(field, count, limit); !status.ok()) return status;
  }
  api.stop.assign(stop.strings().begin(), stop.strings().end());
  api.stop_token_ids.assign(stop.token_ids().begin(), stop.token_ids().end());
  api.allowed_token_ids.assign(allowed.begin(), allowed.end());
  api.bad_words.assign(bad_words.begin(), bad_words.end());
  api.dry_sequence_breakers.assign(breakers.begin(), breakers.end());
  for (const v1::LogitBias& entry : biases) {
    api.logit_bias.emplace_back(entry.token_id(), entry.bias());
  }
  return absl::OkStatus();
}

absl::Status ReadEarlyStopping(const v1::BeamSearch& beams, ApiRequest& api) {
  using EarlyStopping = BeamOptions::EarlyStopping;
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

absl::StatusOr<ApiRequest> FromProto(const v1::GenerateRequest& request) {
  ApiRequest api;
  api.model = request.model();
  if (auto status = ReadPrompt(request, api); !status.ok()) return status;
  if (auto status = ReadLists(request, api); !status.ok()) return status;
  if (request.has_beam_search()) {
    if (auto status = ReadEarlyStopping(request.beam_search(), api); !status.ok()) return status;
  }
  if (request.has_structured_outputs()) {
    auto status = ReadConstraint(request.structured_outputs(), api);
    if (!status.ok()) return status;
  }
  ReadValues(request, api);
  return api;
}

TokenizeRequest FromProto(const v1::TokenizeRequest& request) {
  return {.model = request.model(),
          .input = request.text(),
          .add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens(),
          .parse_special = request.parse_special()};
}

void ToProto(const SampledToken& token, const TokenBytesFn& bytes, v1::PositionLogprobs* position) {
  FillToken(token.token, token.logprob, bytes, position->mutable_chosen());
  for (const TopLogprob& top : token.top) {
    FillToken(top.token, top.logprob, bytes, position->add_top());
  }
}

void ToProto(const ChoiceEnd& end, v1::Finish* finish) {
  finish->set_choice(end.choice);
  const bool called = end.has_tool_calls && end.reason == FinishReason::kStop;
  finish->set_reason(called ? v1::FINISH_REASON_TOOL_CALLS : ToProto(end.reason));
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
  v1::SamplingParams* sampling = response->mutable_model_sampling();
  const google::protobuf::Reflection& access = *sampling->GetReflection();
  for (const SamplingDefault& one : info.sampling) {
    const auto* field = v1::SamplingParams::descriptor()->FindFieldByName(one.name);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_FLOAT) {
      access.SetFloat(sampling, field, static_cast<float>(one.value));
    } else {
      access.SetInt32(sampling, field, static_cast<std::int32_t>(one.value));
    }
  }
  response->set_model_sampling_used(!info.limits.sampling.empty());
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return codec::ToGrpcStatus(status, {.reason = ErrorCode(status),
                                      .field = FieldName(ErrorField(status)),
                                      .retry_after_ms = RetryAfterMs(status)});
}

}  // namespace flotilla::router
