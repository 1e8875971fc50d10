// ChatPrompt: renders conversations by a model's chat templates, and knows how that model writes
// calls and thoughts. Immutable; any thread may call anything.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/constraint.h"
#include "common/types/ids.h"
#include "common/types/thinking_limit.h"
#include "model/text/text_piece.h"
#include "router/conversation.h"
#include "router/core/tools/control_markers.h"
#include "router/core/tools/output_parser.h"
#include "router/template_json.h"

namespace flotilla::model {
class ChatTemplate;
class Tokenizer;
}  // namespace flotilla::model

namespace flotilla::router {

class ChatPrompt {
 public:
  struct Parts {
    const model::Tokenizer* tokenizer = nullptr;
    const model::ChatTemplate* chat_template = nullptr;  // null: the model cannot chat
    const model::ChatTemplate* tool_template = nullptr;  // used where there are tools; may be null
    // What templates get for the date; may be empty.
    std::function<std::string(std::string_view format)> strftime_now;
    std::vector<TokenId> end_tokens = {};  // the model's, ascending
  };
  // The parts outlive this object.
  explicit ChatPrompt(Parts parts);

  bool can_chat() const { return parts_.chat_template != nullptr; }

  // INVALID_ARGUMENT, which names the field, if the model cannot do what the conversation asks
  // for: it has no template, its template shows no tools or has no format of calls that is known,
  // or a tool must be called whose parameters no grammar can enforce.
  absl::Status Check(const Conversation& conversation) const;

  struct Rendered {
    std::vector<model::TextPiece> pieces;
    bool in_reasoning = false;   // the prompt ends with the begin of thoughts
    bool has_reasoning = false;  // it ends with their end
  };
  // INVALID_ARGUMENT about messages if the template fails, and about continue_final_message if the
  // prompt does not have the last message.
  absl::StatusOr<Rendered> Render(const Conversation& conversation) const;

  // What has the model call a tool (router/core/tools/tool_constraint.h); none if the conversation
  // leaves it the choice. `in_reasoning` is that of the prompt. INVALID_ARGUMENT about tools: the
  // parameters of a tool are no schema that a grammar can enforce.
  absl::StatusOr<Constraint> ConstraintOf(const Conversation& conversation,
                                          bool in_reasoning) const;
  // Whether the model may think before an answer of a form.
  bool MayThink(const Conversation& conversation, const Rendered& prompt) const;
  // The form of an answer with what else may come: thoughts in front of it, and calls of the tools
  // that are offered in place of it. INVALID_ARGUMENT about `field`, from which the form is: it is
  // too large so; about tools: as ConstraintOf.
  absl::StatusOr<Constraint> FormOf(const Constraint& form, std::string_view field,
                                    const Conversation& conversation, const Rendered& prompt) const;
  // What ends the thoughts after `budget` tokens; nothing if the prompt has ended them.
  // INVALID_ARGUMENT about thinking_token_budget: this model is not known to think, or the end of
  // its thoughts is not one token.
  absl::StatusOr<ThinkingLimit> LimitOf(std::uint32_t budget, const Rendered& prompt) const;
  // What the arguments of the conversation's tools may be; null where the model's format of calls
  // does not ask.
  std::shared_ptr<const ArgumentTypes> ArgumentTypesOf(const Conversation& conversation) const;
  // How the answer to such a conversation is taken apart, but for what the prompt has to be made
  // for: `begins_in_reasoning` is false, and there are no `argument_types`.
  OutputOptions OutputOf(const Conversation& conversation) const;
  // Whether the token is a control token that is part of a marker that `output` looks for, so that
  // its text is needed.
  bool IsMarkerToken(TokenId token, const OutputOptions& output) const;

 private:
  const model::ChatTemplate& TemplateFor(const Conversation& conversation) const;
  absl::StatusOr<std::vector<model::TextPiece>> RenderMessages(const Conversation& conversation,
                                                               const OrderedJson& messages) const;
  bool ShowsTools() const;
  void FindThinkingTokens();

  const Parts parts_;
  const ToolFormat* tool_format_ = nullptr;
  const ReasoningFormat* reasoning_ = nullptr;
  bool shows_tools_ = false;
  std::vector<TokenId> tool_markers_, reasoning_markers_;  // control tokens, sorted
  ThinkingLimit thinking_;  // where thoughts begin in an answer; none: they cannot be limited
  std::vector<ControlToken> control_markers_;  // those of calls and thoughts
};

}  // namespace flotilla::router
