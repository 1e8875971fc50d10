#include "proto/codec/engine.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/columns.h"
#include "proto/codec/enums.h"
#include "proto/codec/sampling.h"

namespace flotilla::codec {
namespace {

using columns::AddTokens;
using columns::CheckCounts;
using columns::CheckRows;
using columns::CheckTokens;
using columns::Wrong;
using enums::EnumPair;
using enums::FindDomain;
using enums::FindWire;
using EarlyStopping = BeamOptions::EarlyStopping;

constexpr EnumPair<v1::EngineRequest::Beam::EarlyStopping, EarlyStopping> kEarlyStopping[] = {
    {v1::EngineRequest::Beam::EARLY_STOPPING_FALSE, EarlyStopping::kFalse},
    {v1::EngineRequest::Beam::EARLY_STOPPING_TRUE, EarlyStopping::kTrue},
    {v1::EngineRequest::Beam::EARLY_STOPPING_NEVER, EarlyStopping::kNever},
};
constexpr EnumPair<v1::EngineEvent::Finish, FinishReason> kFinish[] = {
    {v1::EngineEvent::FINISH_STOP, FinishReason::kStop},
    {v1::EngineEvent::FINISH_LENGTH, FinishReason::kLength},
    {v1::EngineEvent::FINISH_CANCELLED, FinishReason::kCancelled},
    {v1::EngineEvent::FINISH_DEADLINE, FinishReason::kDeadline},
    {v1::EngineEvent::FINISH_ERROR, FinishReason::kError},
    {v1::EngineEvent::FINISH_MOVED, FinishReason::kMoved},
};
constexpr EnumPair<v1::EngineDescription::Exactness, Exactness> kExactness[] = {
    {v1::EngineDescription::EXACTNESS_BITWISE, Exactness::kBitwise},
    {v1::EngineDescription::EXACTNESS_CONSISTENT, Exactness::kConsistent},
};

absl::Status CheckNumber(absl::string_view field, float value) {
  return std::isnan(value) ? Wrong(field, "no number") : absl::OkStatus();
}

// a - b and a + b, clamped to the range of the type.
std::int64_t Saturated(__int128 value) {
  using Limits = std::numeric_limits<std::int64_t>;
  return static_cast<std::int64_t>(
      std::min<__int128>(std::max<__int128>(value, Limits::min()), Limits::max()));
}

void Write(const RequestId& id, v1::RequestId* proto) {
  proto->set_incarnation(id.incarnation);
  proto->set_counter(id.counter);
}

RequestId Read(const v1::RequestId& proto) { return {proto.incarnation(), proto.counter()}; }

void Write(const TokenizedRequest& request, std::int64_t now_ns, v1::EngineRequest* proto) {
  Write(request.id, proto->mutable_id());
  proto->set_attempt(request.attempt.value());
  AddTokens(request.prompt, proto->mutable_prompt());
  for (const std::vector<TokenId>& prefix : request.output_prefix) {
    AddTokens(prefix, proto->add_output_prefix()->mutable_tokens());
  }
  ToProto(request.sampling, proto->mutable_sampling());
  AddTokens(request.stop.stop_tokens, proto->mutable_stop_tokens());
  proto->set_max_tokens(request.stop.max_tokens);
  proto->set_min_tokens(request.stop.min_tokens);
  proto->set_max_tokens_absent(request.max_tokens_absent);
  proto->set_output_top(request.logprobs.output_top);
  proto->set_prompt_top(request.logprobs.prompt_top);
  proto->set_sequences(request.sequences);
  if (request.beam.has_value()) {
    v1::EngineRequest::Beam& beam = *proto->mutable_beam();
    beam.set_beams(request.beam->beams);
    beam.set_length_penalty(request.beam->length_penalty);
    beam.set_early_stopping(FindWire(kEarlyStopping, request.beam->early_stopping));
  }
  if (request.deadline_ns.has_value()) {
    proto->set_deadline_in_ns(Saturated(static_cast<__int128>(*request.deadline_ns) - now_ns));
    proto->set_deadline_absent(request.deadline_absent);
  }
  proto->set_priority(request.priority);
  proto->set_tenant(request.tenant);
  proto->set_cache_salt(request.cache_salt);
  proto->set_adapter(request.adapter);
  proto->set_crash_count(request.crash_count);
  proto->set_label(request.label);
  if (request.trace != TraceContext()) {
    v1::EngineRequest::Trace& trace = *proto->mutable_trace();
    trace.set_trace_high(request.trace.trace_high);
    trace.set_trace_low(request.trace.trace_low);
    trace.set_span(request.trace.span);
    trace.set_sampled(request.trace.sampled);
  }
}

absl::Status Read(const v1::EngineRequest& proto, std::int64_t now_ns, TokenizedRequest& request) {
  request.id = Read(proto.id());
  request.attempt = Attempt(proto.attempt());
  absl::Status s = CheckTokens("submit.prompt", proto.prompt());
  request.prompt.assign(proto.prompt().begin(), proto.prompt().end());
  for (const auto& prefix : proto.output_prefix()) {
    s.Update(CheckTokens("submit.output_prefix", prefix.tokens()));
    request.output_prefix.emplace_back(prefix.tokens().begin(), prefix.tokens().end());
  }
  s.Update(FromProto("submit.sampling", proto.sampling(), request.sampling));
  s.Update(CheckTokens("submit.stop_tokens", proto.stop_tokens()));
  request.stop.stop_tokens.assign(proto.stop_tokens().begin(), proto.stop_tokens().end());
  request.stop.max_tokens = proto.max_tokens();
  request.stop.min_tokens = proto.min_tokens();
  request.max_tokens_absent = proto.max_tokens_absent();
  request.logprobs = {.output_top = proto.output_top(), .prompt_top = proto.prompt_top()};
  request.sequences = proto.sequences();
  if (proto.has_beam()) {
    BeamOptions beam{.beams = proto.beam().beams(),
                     .length_penalty = proto.beam().length_penalty()};
    s.Update(CheckNumber("submit.beam.length_penalty", beam.length_penalty));
    s.Update(FindDomain("submit.beam.early_stopping", kEarlyStopping, proto.beam().early_stopping(),
                        beam.early_stopping));
    request.beam = beam;
  }
  if (proto.has_deadline_in_ns()) {
    request.deadline_ns = Saturated(static_cast<__int128>(now_ns) + proto.deadline_in_ns());
    request.deadline_absent = proto.deadline_absent();
  }
  request.priority = proto.priority();
  request.tenant = proto.tenant();
  request.cache_salt = proto.cache_salt();
  request.adapter = proto.adapter();
  request.crash_count = proto.crash_count();
  request.label = proto.label();
  request.trace = {.trace_high = proto.trace().trace_high(),
                   .trace_low = proto.trace().trace_low(),
                   .span = proto.trace().span(),
                   .sampled = proto.trace().sampled()};
  return s;
}

void Write(const std::vector<TopLogprob>& tops, v1::EngineEvent::Tokens* proto) {
  for (const TopLogprob& top : tops) {
    proto->add_ids(top.token);
    proto->add_logprobs(top.logprob);
  }
}

absl::Status Check(absl::string_view field, const v1::EngineEvent::Tokens& tokens) {
  absl::Status s =
      CheckRows(field, tokens.logprobs_size(), static_cast<std::size_t>(tokens.ids_size()));
  s.Update(CheckTokens(field, tokens.ids()));
  for (const float logprob : tokens.logprobs()) s.Update(CheckNumber(field, logprob));
  return s;
}

// Entries [begin, begin + count) of lists that were checked.
std::vector<TopLogprob> Read(const v1::EngineEvent::Tokens& tokens, int begin, int count) {
  std::vector<TopLogprob> tops(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) tops[i] = {tokens.ids(begin + i), tokens.logprobs(begin + i)};
  return tops;
}

// Fills the event's own part; the caller fills request and attempt.
struct EventWriter {
  v1::EngineEvent* proto;

  void operator()(const Accepted& event) const {
    proto->mutable_accepted()->set_expected_outputs(event.expected_outputs);
  }
  void operator()(const PromptLogprobs& event) const {
    v1::EngineEvent::PromptLogprobs& out = *proto->mutable_prompt_logprobs();
    out.set_first(event.first);
    for (const SampledToken& token : event.tokens) {
      out.add_tokens(token.token);
      out.add_chosen(token.logprob);
      out.add_top_counts(static_cast<std::uint32_t>(token.top.size()));
      Write(token.top, out.mutable_tops());
    }
  }
  void operator()(const TokenEvent& event) const {
    v1::EngineEvent::Token& out = *proto->mutable_token();
    out.set_sequence(event.sequence.value());
    out.set_position(event.position);
    out.set_token(event.sampled.token);
    out.set_logprob(event.sampled.logprob);
    if (!event.sampled.top.empty()) Write(event.sampled.top, out.mutable_top());
  }
  void operator()(const CrashCount& event) const {
    proto->mutable_crash_count()->set_count(event.count);
  }
  void operator()(const SequenceEnd& event) const {
    v1::EngineEvent::SequenceEnd& out = *proto->mutable_sequence_end();
    out.set_sequence(event.sequence.value());
    out.set_reason(FindWire(kFinish, event.reason));
    out.set_output_tokens(event.output_tokens);
    out.set_score(event.score);
  }
  void operator()(const RequestEnd& event) const {
    v1::EngineEvent::RequestEnd& out = *proto->mutable_request_end();
    out.set_code(static_cast<std::uint32_t>(event.status.code()));
    out.set_message(std::string(event.status.message()));
    out.set_retry_after_ms(event.retry_after_ms);
    v1::EngineEvent::Usage& usage = *out.mutable_usage();
    usage.set_prompt_tokens(event.usage.prompt_tokens);
    usage.set_output_tokens(event.usage.output_tokens);
    usage.set_cached_tokens(event.usage.cached_tokens);
    usage.set_preemptions(event.usage.preemptions);
    usage.set_decode_preemptions(event.usage.decode_preemptions);
  }
};

absl::Status Read(const v1::EngineEvent::PromptLogprobs& proto, PromptLogprobs& event) {
  const auto rows = static_cast<std::size_t>(proto.chosen_size());
  absl::Status s = Check("prompt_logprobs.tops", proto.tops());
  s.Update(CheckRows("prompt_logprobs.top_counts", proto.top_counts_size(), rows));
  s.Update(CheckCounts("prompt_logprobs.top_counts", proto.top_counts(), 0, rows,
                       proto.tops().ids_size()));
  // An engine of an earlier version sends no tokens. The router knows them from its prompt.
  const bool has_tokens = proto.tokens_size() != 0;
  if (has_tokens) s.Update(CheckRows("prompt_logprobs.tokens", proto.tokens_size(), rows));
  s.Update(CheckTokens("prompt_logprobs.tokens", proto.tokens()));
  for (const float chosen : proto.chosen()) {
    s.Update(CheckNumber("prompt_logprobs.chosen", chosen));
  }
  if (!s.ok()) return s;
  event.first = proto.first();
  int at = 0;
  for (int i = 0; i < proto.chosen_size(); ++i) {
    const int count = static_cast<int>(proto.top_counts(i));
    event.tokens.push_back(
        {has_tokens ? proto.tokens(i) : 0, proto.chosen(i), Read(proto.tops(), at, count)});
    at += count;
  }
  return absl::OkStatus();
}

absl::Status Read(const v1::EngineEvent::Token& proto, TokenEvent& event) {
  absl::Status s = Check("token.top", proto.top());
  s.Update(CheckNumber("token.logprob", proto.logprob()));
  if (proto.token() < 0) s.Update(Wrong("token.token", "negative"));
  if (!s.ok()) return s;
  event.sequence = SequenceIndex(proto.sequence());
  event.position = proto.position();
  event.sampled = {proto.token(), proto.logprob(), Read(proto.top(), 0, proto.top().ids_size())};
  return absl::OkStatus();
}

absl::Status Read(const v1::EngineEvent::CrashCount& proto, CrashCount& event) {
  event.count = proto.count();
  return absl::OkStatus();
}

absl::Status Read(const v1::EngineEvent::SequenceEnd& proto, SequenceEnd& event) {
  event.sequence = SequenceIndex(proto.sequence());
  event.output_tokens = proto.output_tokens();
  event.score = proto.score();
  absl::Status s = FindDomain("sequence_end.reason", kFinish, proto.reason(), event.reason);
  s.Update(CheckNumber("sequence_end.score", event.score));
  return s;
}

absl::Status Read(const v1::EngineEvent::RequestEnd& proto, RequestEnd& event) {
  constexpr std::uint32_t kLargestCode = 16;
  if (proto.code() > kLargestCode) return Wrong("request_end.code", absl::StrCat(proto.code()));
  event.status = absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  event.retry_after_ms = proto.retry_after_ms();
  const v1::EngineEvent::Usage& usage = proto.usage();
  event.usage = {.prompt_tokens = usage.prompt_tokens(),
                 .output_tokens = usage.output_tokens(),
                 .cached_tokens = usage.cached_tokens(),
                 .preemptions = usage.preemptions(),
                 .decode_preemptions = usage.decode_preemptions()};
  return absl::OkStatus();
}

template <class Event, class Proto>
absl::StatusOr<EngineEvent> ReadAs(const v1::EngineEvent& envelope, const Proto& proto) {
  Event event;
  event.request = Read(envelope.request());
  event.attempt = Attempt(envelope.attempt());
  if (absl::Status s = Read(proto, event); !s.ok()) return s;
  return EngineEvent(std::move(event));
}

absl::StatusOr<EngineEvent> Read(const v1::EngineEvent& proto) {
  switch (proto.event_case()) {
    case v1::EngineEvent::kAccepted:
      return EngineEvent(Accepted{.request = Read(proto.request()),
                                  .attempt = Attempt(proto.attempt()),
                                  .expected_outputs = proto.accepted().expected_outputs()});
    case v1::EngineEvent::kPromptLogprobs:
      return ReadAs<PromptLogprobs>(proto, proto.prompt_logprobs());
    case v1::EngineEvent::kToken:
      return ReadAs<TokenEvent>(proto, proto.token());
    case v1::EngineEvent::kCrashCount:
      return ReadAs<CrashCount>(proto, proto.crash_count());
    case v1::EngineEvent::kSequenceEnd:
      return ReadAs<SequenceEnd>(proto, proto.sequence_end());
    case v1::EngineEvent::kRequestEnd:
      return ReadAs<RequestEnd>(proto, proto.request_end());
    case v1::EngineEvent::EVENT_NOT_SET:
      break;
  }
  return Wrong("event", "none that is known");
}

void Write(const EngineLoad& load, v1::EngineLoad* proto) {
  proto->set_running_requests(load.running_requests);
  proto->set_waiting_requests(load.waiting_requests);
  proto->set_outstanding_tokens(load.outstanding_tokens);
  proto->set_blocks_total(load.blocks_total);
  proto->set_blocks_used(load.blocks_used);
  proto->set_ready(load.ready);
  proto->set_draining(load.draining);
}

void Write(const EngineDescription& description, v1::EngineDescription* proto) {
  proto->set_model_id(description.model_id);
  proto->set_vocab_size(description.vocab_size);
  proto->set_max_context(description.max_context);
  proto->set_tokenizer_hash(description.tokenizer_hash);
  proto->set_numerics_id(description.numerics_id);
  proto->set_exactness(FindWire(kExactness, description.exactness));
  proto->set_max_sequences(description.max_sequences);
  proto->set_max_queue_tokens(description.max_queue_tokens);
}

}  // namespace

void ToProto(const EngineCommand& command, std::int64_t now_ns, v1::EngineCommand* proto) {
  if (const auto* request = std::get_if<TokenizedRequest>(&command)) {
    Write(*request, now_ns, proto->mutable_submit());
    return;
  }
  const auto& cancel = std::get<CancelRequest>(command);
  Write(cancel.request, proto->mutable_cancel()->mutable_request());
  if (cancel.sequence.has_value()) proto->mutable_cancel()->set_sequence(cancel.sequence->value());
  proto->mutable_cancel()->set_keep_tokens(cancel.keep_tokens);
}

absl::StatusOr<EngineCommand> FromProto(const v1::EngineCommand& proto, std::int64_t now_ns) {
  switch (proto.command_case()) {
    case v1::EngineCommand::kSubmit: {
      TokenizedRequest request;
      if (absl::Status s = Read(proto.submit(), now_ns, request); !s.ok()) return s;
      return request;
    }
    case v1::EngineCommand::kCancel: {
      CancelRequest cancel{.request = Read(proto.cancel().request()),
                           .keep_tokens = proto.cancel().keep_tokens()};
      if (proto.cancel().has_sequence()) cancel.sequence = SequenceIndex(proto.cancel().sequence());
      return cancel;
    }
    case v1::EngineCommand::COMMAND_NOT_SET:
      break;
  }
  return Wrong("command", "none that is known");
}

void ToProto(const EngineUpdate& update, v1::EngineUpdate* proto) {
  for (const EngineEvent& event : update.events) {
    v1::EngineEvent& out = *proto->add_events();
    const auto [request, attempt] = EventKey(event);
    Write(request, out.mutable_request());
    out.set_attempt(attempt.value());
    std::visit(EventWriter{&out}, event);
  }
  if (update.load.has_value()) Write(*update.load, proto->mutable_load());
  if (update.description.has_value()) Write(*update.description, proto->mutable_description());
}

absl::StatusOr<EngineUpdate> FromProto(const v1::EngineUpdate& proto) {
  EngineUpdate update;
  update.events.reserve(static_cast<std::size_t>(proto.events_size()));
  for (const v1::EngineEvent& entry : proto.events()) {
    absl::StatusOr<EngineEvent> event = Read(entry);
    if (!event.ok()) return event.status();
    update.events.push_back(*std::move(event));
  }
  if (proto.has_load()) {
    const v1::EngineLoad& load = proto.load();
    update.load = EngineLoad{.running_requests = load.running_requests(),
                             .waiting_requests = load.waiting_requests(),
                             .outstanding_tokens = load.outstanding_tokens(),
                             .blocks_total = load.blocks_total(),
                             .blocks_used = load.blocks_used(),
                             .ready = load.ready(),
                             .draining = load.draining()};
  }
  if (proto.has_description()) {
    const v1::EngineDescription& d = proto.description();
    EngineDescription description{.model_id = d.model_id(),
                                  .vocab_size = d.vocab_size(),
                                  .max_context = d.max_context(),
                                  .tokenizer_hash = d.tokenizer_hash(),
                                  .numerics_id = d.numerics_id(),
                                  .exactness = {},
                                  .max_sequences = d.max_sequences(),
                                  .max_queue_tokens = d.max_queue_tokens()};
    if (absl::Status s =
            FindDomain("description.exactness", kExactness, d.exactness(), description.exactness);
        !s.ok()) {
      return s;
    }
    update.description = std::move(description);
  }
  return update;
}

}  // namespace flotilla::codec
