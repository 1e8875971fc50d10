// TaggedParser: the OutputParser of the formats that put thoughts and calls between markers.
//
// Thoughts are looked for only at the beginning of the answer, and calls only behind them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "router/core/tools/call_reader.h"
#include "router/core/tools/marker_scanner.h"
#include "router/core/tools/output_parser.h"

namespace flotilla::router {

class TaggedParser final : public OutputParser {
 public:
  explicit TaggedParser(OutputOptions options);

  void Push(std::string_view text, std::vector<OutputEvent>& events) override;
  void Finish(std::vector<OutputEvent>& events) override;
  bool finished() const override { return options_.one_call && reader_->complete() > 0; }
  // Bytes of false calls that were read again, each time; at most kMaxReadAgain.
  std::size_t read_again() const { return read_again_; }

 private:
  enum class Place : std::uint8_t {
    kBegin,      // of the answer, or behind its thoughts
    kReasoning,  // within the thoughts
    kContent,    // no thoughts can come any more
    kCall,       // behind the marker that begins calls
  };

  // What an answer without a marker begins with.
  enum class BareCall : std::uint8_t { kNone, kMayBegin, kBegun };
  BareCall BareCallIn(std::string_view text) const;

  // Reads `todo_`.
  void Run(std::vector<OutputEvent>& events);
  void Read(char c, std::vector<OutputEvent>& events);
  void ReadBegin(char c, std::vector<OutputEvent>& events);
  void ReadContent(char c, std::vector<OutputEvent>& events);
  void ReadCall(char c, std::vector<OutputEvent>& events);
  // What `undecided_` holds is content, whose first `literal_` bytes are no marker. The others are
  // read again, unless the answer had too many of those.
  void GiveUpCall(std::vector<OutputEvent>& events);
  bool calls_may_come() const {
    return options_.tools != nullptr && !(options_.text_or_calls && has_content_);
  }
  void AddText(OutputEvent::Kind kind, std::string_view text, std::vector<OutputEvent>& events);

  const OutputOptions options_;
  const std::unique_ptr<CallReader> reader_;
  MarkerScanner scanner_;
  Place place_ = Place::kBegin;
  bool thought_ = false;     // no thoughts can come any more
  std::string todo_;         // text to be read, or what of it is to be read again
  std::string undecided_;    // kBegin, kCall: what has come, while its meaning is open
  std::size_t literal_ = 0;  // kCall: its bytes in front of the text that the reader has
  std::size_t read_again_ = 0;
  std::string spaces_;         // white space that a marker may follow, or did
  bool after_marker_ = false;  // nothing but white space has come since a marker
  bool has_content_ = false;
  bool tag_is_open_ = false;  // an end marker is due
};

}  // namespace flotilla::router
