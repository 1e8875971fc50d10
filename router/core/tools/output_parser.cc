#include "router/core/tools/output_parser.h"

#include <utility>

#include "router/core/tools/channel_parser.h"
#include "router/core/tools/tagged_parser.h"

namespace flotilla::router {

std::unique_ptr<OutputParser> MakeOutputParser(OutputOptions options) {
  if (options.tools == nullptr && options.reasoning == nullptr) return nullptr;
  const bool has_channels = options.tools != nullptr
                                ? options.tools->shape == ToolFormat::Shape::kChannels
                                : options.reasoning->has_channel();
  if (has_channels) return std::make_unique<ChannelParser>(std::move(options));
  return std::make_unique<TaggedParser>(std::move(options));
}

void AddEvent(OutputEvent::Kind kind, std::string_view text, std::uint32_t call,
              std::vector<OutputEvent>& events) {
  const bool begins = kind == OutputEvent::Kind::kCall;
  if (text.empty() && !begins) return;
  if (begins || events.empty() || events.back().kind != kind || events.back().call != call) {
    events.push_back({.kind = kind, .text = {}, .call = call});
  }
  events.back().text += text;
}

}  // namespace flotilla::router
