// ChannelParser: the OutputParser of gpt-oss. An answer is a row of messages; each has a header
// that names its channel and perhaps whom it is for:
//   <|channel|>analysis<|message|>THOUGHTS<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.NAME
//   <|constrain|>json<|message|>ARGUMENTS<|call|>
//   <|start|>assistant<|channel|>final<|message|>CONTENT<|return|>
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "router/core/tools/marker_scanner.h"
#include "router/core/tools/output_parser.h"

namespace flotilla::router {

inline constexpr std::array<std::string_view, 7> kChannelMarkers = {
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
    "<|end|>",   "<|call|>",    "<|return|>"};

class ChannelParser final : public OutputParser {
 public:
  explicit ChannelParser(OutputOptions options) : options_(std::move(options)) {}

  void Push(std::string_view text, std::vector<OutputEvent>& events) override;
  void Finish(std::vector<OutputEvent>& events) override;
  bool finished() const override { return finished_; }

 private:
  // A header of so many bytes is none.
  static constexpr std::size_t kMaxHeaderBytes = 512;

  // A marker of the table, by its index.
  void OnMarker(std::size_t marker, std::vector<OutputEvent>& events);
  void OnText(std::string_view text, std::vector<OutputEvent>& events);
  // The body begins that the header is about.
  void BeginBody(std::vector<OutputEvent>& events);
  void EndBody(std::vector<OutputEvent>& events);
  void BodyText(std::string_view text, std::vector<OutputEvent>& events);
  // The header is none: it is content.
  void GiveUpHeader(std::vector<OutputEvent>& events);

  const OutputOptions options_;
  MarkerScanner scanner_;
  bool in_header_ = true;
  std::string header_;  // with its markers
  OutputEvent::Kind body_ = OutputEvent::Kind::kContent;
  bool body_is_empty_ = true;
  bool has_content_ = false, has_reasoning_ = false;  // there was a body of this kind
  std::uint32_t calls_ = 0;
  bool finished_ = false;
};

}  // namespace flotilla::router
