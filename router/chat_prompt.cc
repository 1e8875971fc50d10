#include "router/chat_prompt.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "common/types/text.h"
#include "model/chat_template.h"
#include "model/text/tokenizer.h"
#include "router/core/constraint/constraints.h"
#include "router/core/tools/tool_constraint.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

using Pieces = std::vector<model::TextPiece>;

// The text is that of a valid request, so it parses.
OrderedJson Parsed(std::string_view text) {
  return ParseTemplateJson(text).value_or(OrderedJson());
}

OrderedJson ToolsJson(const std::vector<Tool>& tools) {
  OrderedJson list = OrderedJson::array();
  for (const Tool& tool : tools) {
    OrderedJson function{{"name", tool.name}};
    if (!tool.description.empty()) function["description"] = tool.description;
    if (!tool.parameters.empty()) function["parameters"] = Parsed(tool.parameters);
    if (tool.strict) function["strict"] = true;
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

// Templates differ in what they do with the arguments of earlier calls: most write an object as
// JSON, some take a text as it is.
OrderedJson Arguments(const std::string& text, bool as_object) {
  if (!as_object) return text;
  if (text.empty()) return OrderedJson::object();
  std::optional<OrderedJson> value = ParseTemplateJson(text);
  if (!value.has_value() || !value->is_object()) return text;
  return *std::move(value);
}

struct MessageStyle {
  bool argument_objects = true;
  bool keeps_developer = false;  // the template knows the role; to others it is "system"
  bool null_content = false;     // content that is absent beside calls is null
};

OrderedJson MessagesJson(const std::vector<ChatTurn>& turns, const MessageStyle& style) {
  OrderedJson messages = OrderedJson::array();
  for (const ChatTurn& turn : turns) {
    const bool renamed = turn.role == "developer" && !style.keeps_developer;
    OrderedJson message{{"role", renamed ? "system" : turn.role}};
    message["content"] = turn.content;
    if (style.null_content && turn.content.empty() && !turn.tool_calls.empty()) {
      message["content"] = nullptr;
    }
    if (!turn.name.empty()) message["name"] = turn.name;
    if (!turn.reasoning_content.empty()) message["reasoning_content"] = turn.reasoning_content;
    for (const ToolCall& call : turn.tool_calls) {
      OrderedJson function{{"name", call.name},
                           {"arguments", Arguments(call.arguments, style.argument_objects)}};
      message["tool_calls"].push_back(
          {{"id", call.id}, {"type", "function"}, {"function", std::move(function)}});
    }
    if (!turn.tool_call_id.empty()) message["tool_call_id"] = turn.tool_call_id;
    messages.push_back(std::move(message));
  }
  return messages;
}

bool Has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::string TextOf(const Pieces& pieces) {
  std::string text;
  for (const model::TextPiece& piece : pieces) text += piece.text;
  return text;
}

// The tools that the conversation lets the model call, for a grammar.
std::vector<CallableTool> CallableTools(const Conversation& conversation) {
  const bool named = conversation.tool_choice == ToolChoice::kNamed;
  std::vector<CallableTool> tools;
  for (const Tool& tool : conversation.tools) {
    if (named && tool.name != conversation.chosen_tool) continue;
    tools.push_back({tool.name, tool.parameters});
  }
  return tools;
}

constexpr std::string_view kSpaces = " \t\r\n\f\v";

// Where the text is last in what messages say, and not in what the template writes around them, if
// it is there; else where it is last at all.
std::size_t FindLast(std::string_view text, const Pieces& pieces) {
  std::size_t found = std::string::npos, offset = 0;
  std::string run;  // of pieces of messages, which ends at `offset`
  const auto end_run = [&] {
    const std::size_t at = run.rfind(text);
    if (!run.empty() && at != run.npos) found = offset - run.size() + at;
    run.clear();
  };
  for (const model::TextPiece& piece : pieces) {
    if (piece.special_allowed) {
      end_run();
    } else {
      run += piece.text;
    }
    offset += piece.text.size();
  }
  end_run();
  return found != std::string::npos ? found : TextOf(pieces).rfind(text);
}

// Cuts the prompt behind the content of the last message. As in transformers, white space at the
// content's end stays if the template writes it. False: the prompt does not have the content.
bool CutBehind(std::string_view content, Pieces& pieces) {
  const std::string text = TextOf(pieces);
  const std::size_t begin = std::min(content.find_first_not_of(kSpaces), content.size());
  const std::string_view whole = content.substr(begin);
  const std::string_view trimmed = whole.substr(0, whole.find_last_not_of(kSpaces) + 1);
  // White space alone is at no place that can be told: nothing is cut.
  const std::size_t at = trimmed.empty() ? text.size() : FindLast(trimmed, pieces);
  if (at == text.npos) return false;
  const bool is_whole = std::string_view(text).substr(at).starts_with(whole);
  std::size_t left = at + (is_whole ? whole.size() : trimmed.size());
  Pieces cut;
  for (model::TextPiece& piece : pieces) {
    if (left == 0) break;
    piece.text.resize(std::min(piece.text.size(), left));
    left -= piece.text.size();
    cut.push_back(std::move(piece));
  }
  pieces = std::move(cut);
  return true;
}

}  // namespace

ChatPrompt::ChatPrompt(Parts parts) : parts_(std::move(parts)) {
  if (!can_chat()) return;
  const model::ChatTemplate& tools =
      parts_.tool_template != nullptr ? *parts_.tool_template : *parts_.chat_template;
  tool_format_ = RecogniseToolFormat(tools.source());
  reasoning_ = RecogniseReasoning(parts_.chat_template->source());
  shows_tools_ = ShowsTools();
  if (tool_format_ == nullptr && reasoning_ == nullptr) return;
  for (TokenId id = 0; static_cast<std::uint32_t>(id) < parts_.tokenizer->vocab_size(); ++id) {
    if (!parts_.tokenizer->IsSpecial(id)) continue;
    const std::string_view text = parts_.tokenizer->TokenBytes(id);
    const bool marks_tools = tool_format_ != nullptr && IsMarker(text, *tool_format_);
    const bool marks_thoughts = reasoning_ != nullptr && IsMarker(text, *reasoning_);
    if (marks_tools) tool_markers_.push_back(id);
    if (marks_thoughts) reasoning_markers_.push_back(id);
    if (marks_tools || marks_thoughts) {
      control_markers_.push_back({.text = std::string(text),
                                  .id = id,
                                  .ends = std::ranges::binary_search(parts_.end_tokens, id)});
    }
  }
  if (reasoning_ != nullptr) FindThinkingTokens();
}

void ChatPrompt::FindThinkingTokens() {
  const auto tokens_of = [this](std::string_view text) {
    auto tokens = parts_.tokenizer->Encode(text, {.parse_special = true, .add_special = false});
    return tokens.ok() ? *std::move(tokens) : std::vector<TokenId>();
  };
  const ReasoningFormat& format = *reasoning_;
  const bool has_channel = format.has_channel();
  ThinkingLimit limit{.begin = tokens_of(has_channel ? format.channel_begin : format.begin)};
  const std::vector<TokenId> ends = tokens_of(has_channel ? format.channel_end : format.end);
  limit.forced = ends;
  if (has_channel) {
    limit.forced = tokens_of(Cat(format.channel_end, format.next_message, format.answer_header));
  }
  // A model may write the end in other tokens than these if they are several.
  if (ends.size() != 1 || limit.begin.empty()) return;
  if (std::max(limit.begin.size(), limit.forced.size()) > ThinkingLimit::kMaxTokens) return;
  limit.end = ends.front();
  thinking_ = std::move(limit);
}

bool ChatPrompt::IsMarkerToken(TokenId token, const OutputOptions& output) const {
  const auto in = [token](const std::vector<TokenId>& tokens) {
    return std::binary_search(tokens.begin(), tokens.end(), token);
  };
  return (output.tools != nullptr && in(tool_markers_)) ||
         (output.reasoning != nullptr && in(reasoning_markers_));
}

// Renders a small conversation with and without a tool. A template that fails with this
// conversation is taken to show tools: requests get its error.
bool ChatPrompt::ShowsTools() const {
  Conversation conversation{.turns = {{.role = "user", .content = "x"}}};
  const auto without = Render(conversation);
  conversation.tools = {
      {.name = "probe", .description = "x", .parameters = R"({"type":"object","properties":{}})"}};
  const auto with = Render(conversation);
  return !without.ok() || !with.ok() || TextOf(with->pieces) != TextOf(without->pieces);
}

const model::ChatTemplate& ChatPrompt::TemplateFor(const Conversation& conversation) const {
  const bool has_own = conversation.offers_tools() && parts_.tool_template != nullptr;
  return has_own ? *parts_.tool_template : *parts_.chat_template;
}

absl::Status ChatPrompt::Check(const Conversation& conversation) const {
  if (!can_chat()) return InvalidField("messages", "this model has no chat template");
  if (!conversation.offers_tools()) return absl::OkStatus();
  const auto unsupported = [](std::string_view why) {
    return WithField(InvalidArgument("tools are not supported by this model: ", why), "tools",
                     kUnsupportedField);
  };
  if (!shows_tools_) return unsupported("its chat template does not show them to it");
  if (tool_format_ == nullptr) {
    return unsupported("its chat template has no format of calls that is known here");
  }
  return ConstraintOf(conversation, /*in_reasoning=*/false).status();
}

absl::StatusOr<Constraint> ChatPrompt::ConstraintOf(const Conversation& conversation,
                                                    bool in_reasoning) const {
  if (!conversation.must_call()) return Constraint();
  const bool named = conversation.tool_choice == ToolChoice::kNamed;
  const std::vector<CallableTool> tools = CallableTools(conversation);
  absl::StatusOr<Constraint> constraint = StructuralTagConstraintFromText(
      ToolConstraint(*tool_format_, tools,
                     {.several = conversation.parallel_tool_calls && !named,
                      .reasoning = reasoning_,
                      .begins_in_reasoning = in_reasoning}));
  if (constraint.ok() && !control_markers_.empty()) {
    OrderedJson tag = OrderedJson::parse(constraint->text);
    tag["format"] = WithControlTokens(tag["format"], control_markers_);
    constraint->text = tag.dump();
    if (constraint->text.size() > Constraint::kMaxBytes) {
      constraint = InvalidArgument("the grammar of their calls has ", constraint->text.size(),
                                   " bytes; at most ", Constraint::kMaxBytes, " are allowed");
    }
  }
  if (constraint.ok()) return constraint;
  return WithField(InvalidArgument("tool_choice: no call of these tools can be enforced: ",
                                   std::string(constraint.status().message())),
                   "tools", kUnsupportedField);
}

bool ChatPrompt::MayThink(const Conversation& conversation, const Rendered& prompt) const {
  return reasoning_ != nullptr && conversation.split_reasoning &&
         !conversation.continue_final_message && !prompt.has_reasoning;
}

absl::StatusOr<Constraint> ChatPrompt::FormOf(const Constraint& form, std::string_view field,
                                              const Conversation& conversation,
                                              const Rendered& prompt) const {
  const ReasoningFormat* const reasoning = MayThink(conversation, prompt) ? reasoning_ : nullptr;
  const ToolFormat* const format = OutputOf(conversation).tools;
  if (reasoning == nullptr && format == nullptr) return form;
  absl::StatusOr<Constraint> calls = Constraint();
  if (format != nullptr) {
    calls = StructuralTagConstraintFromText(ToolConstraint(
        *format, CallableTools(conversation), {.several = conversation.parallel_tool_calls}));
  }
  if (!calls.ok()) {
    return WithField(InvalidArgument("no call of these tools can be enforced, as structured output "
                                     "needs it: ",
                                     std::string(calls.status().message())),
                     "tools", kUnsupportedField);
  }
  Constraint whole =
      FormConstraint(form, calls->text, reasoning, prompt.in_reasoning, control_markers_);
  if (whole.text.size() <= Constraint::kMaxBytes) return whole;
  return InvalidField(field,
                      Cat(field, ": the form of the answer has ", whole.text.size(), " bytes with ",
                          format == nullptr ? "the model's thoughts in front of it"
                                            : "the calls that may come in its place",
                          "; at most ", Constraint::kMaxBytes, " are allowed"));
}

absl::StatusOr<ThinkingLimit> ChatPrompt::LimitOf(std::uint32_t budget,
                                                  const Rendered& prompt) const {
  if (!thinking_) {
    return WithField(InvalidArgument("thinking_token_budget is not supported by this model: ",
                                     reasoning_ == nullptr
                                         ? "its chat template has no thoughts that are known here"
                                         : "the end of its thoughts is not one token"),
                     "thinking_token_budget", kUnsupportedField);
  }
  if (prompt.has_reasoning) return ThinkingLimit();
  ThinkingLimit limit = thinking_;
  limit.budget = budget;
  if (prompt.in_reasoning) limit.begin.clear();
  return limit;
}

std::shared_ptr<const ArgumentTypes> ChatPrompt::ArgumentTypesOf(
    const Conversation& conversation) const {
  if (!conversation.offers_tools() || tool_format_->shape != ToolFormat::Shape::kXml) {
    return nullptr;
  }
  auto types = std::make_shared<ArgumentTypes>();
  for (const Tool& tool : conversation.tools) types->Add(tool.name, tool.parameters);
  return types;
}

OutputOptions ChatPrompt::OutputOf(const Conversation& conversation) const {
  OutputOptions options;
  if (conversation.split_reasoning && !conversation.continue_final_message) {
    options.reasoning = reasoning_;
  }
  if (!conversation.offers_tools()) return options;
  // The answer goes on within a message, whose header is in the prompt.
  const bool headless =
      tool_format_->shape == ToolFormat::Shape::kChannels && conversation.continue_final_message;
  if (headless) return options;
  options.tools = tool_format_;
  options.one_call = !conversation.parallel_tool_calls;
  for (const Tool& tool : conversation.tools) options.tool_names.push_back(tool.name);
  return options;
}

absl::StatusOr<Pieces> ChatPrompt::RenderMessages(const Conversation& conversation,
                                                  const OrderedJson& messages) const {
  const model::Tokenizer& tokenizer = *parts_.tokenizer;
  model::ChatTemplateOptions options;
  options.add_generation_prompt = conversation.add_generation_prompt;
  options.bos_token = tokenizer.TokenBytes(tokenizer.bos_id());
  options.eos_token = tokenizer.TokenBytes(tokenizer.eos_id());
  options.unk_token = tokenizer.TokenBytes(tokenizer.unknown_id());
  options.pad_token = tokenizer.TokenBytes(tokenizer.pad_id());
  options.strftime_now = parts_.strftime_now;
  if (conversation.offers_tools()) options.tools = ToolsJson(conversation.tools);
  if (!conversation.template_kwargs.empty()) options.extra = Parsed(conversation.template_kwargs);
  if (!conversation.documents.empty()) options.extra["documents"] = Parsed(conversation.documents);
  if (const std::string& effort = conversation.reasoning_effort;
      !effort.empty() && effort != "none") {
    options.extra["reasoning_effort"] = effort;
  }
  return TemplateFor(conversation).Render(messages, options);
}

absl::StatusOr<ChatPrompt::Rendered> ChatPrompt::Render(const Conversation& conversation) const {
  const std::string_view source = TemplateFor(conversation).source();
  MessageStyle style{
      .keeps_developer = Has(source, "developer"),
      .null_content = Has(source, "content'] is none") || Has(source, "content is none")};
  auto pieces = RenderMessages(conversation, MessagesJson(conversation.turns, style));
  const bool has_calls = std::any_of(conversation.turns.begin(), conversation.turns.end(),
                                     [](const ChatTurn& turn) { return !turn.tool_calls.empty(); });
  if (absl::IsInvalidArgument(pieces.status()) && has_calls) {
    style.argument_objects = false;
    auto second = RenderMessages(conversation, MessagesJson(conversation.turns, style));
    if (second.ok()) pieces = std::move(second);
  }
  if (!pieces.ok()) return InvalidField("messages", std::string(pieces.status().message()));
  Rendered rendered{.pieces = *std::move(pieces)};
  if (conversation.continue_final_message &&
      !CutBehind(conversation.turns.back().content, rendered.pieces)) {
    return InvalidField("continue_final_message",
                        "the chat template does not write the last message as it is, so it cannot "
                        "be continued");
  }
  if (reasoning_ != nullptr && !reasoning_->begin.empty() && !rendered.pieces.empty()) {
    std::string_view last = rendered.pieces.back().text;
    last = last.substr(0, last.find_last_not_of(kSpaces) + 1);
    const bool is_own = rendered.pieces.back().special_allowed;
    rendered.in_reasoning = is_own && last.ends_with(reasoning_->begin);
    rendered.has_reasoning = is_own && last.ends_with(reasoning_->end);
  }
  return rendered;
}

}  // namespace flotilla::router
