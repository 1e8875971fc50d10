// CallReader: reads one call, or a list of calls, byte by byte, from behind the marker that begins
// it. Pure; a part of TaggedParser. Each way to write calls has a reader of its own.
//
// Until the tool's name is certain, the text may still turn out not to be a call. From then on it
// is one, whatever follows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "router/core/tools/output_parser.h"

namespace flotilla::router {

class CallReader {
 public:
  enum class Verdict : std::uint8_t {
    kReading,
    kNoCall,  // what has come since the begin or the last call, this byte included, is no call
    kLeft,    // the calls are complete, and left() and this byte are behind them
    kEnded,   // the calls are complete, and this byte completed the end marker
  };

  // `options` outlives the reader.
  explicit CallReader(const OutputOptions& options) : options_(options) {}
  virtual ~CallReader() = default;

  // Begins with the text behind the marker that begins calls. `bare`: the answer lacks it, so only
  // the names of known tools are names.
  virtual void Begin(bool bare) = 0;
  virtual Verdict Push(char c, std::vector<OutputEvent>& events) = 0;
  // The text has ended. False: what has come since the begin or the last call is no call.
  virtual bool Finish(std::vector<OutputEvent>& events) = 0;
  // Calls that have ended, since the first Begin.
  std::uint32_t complete() const { return complete_; }
  // Whether all that has come belongs to calls.
  bool is_certain() const { return committed_; }
  // With kLeft: the text in front of the last byte that is behind the calls, too.
  const std::string& left() const { return left_; }

 protected:
  // The name is known, and the call begins. False: it is no name, or there is no such tool where it
  // must exist, or there were kMaxCalls.
  bool Commit(std::string_view name, std::vector<OutputEvent>& events);

  const OutputOptions& options_;
  bool bare_ = false;
  bool committed_ = false;
  std::uint32_t begun_ = 0, complete_ = 0;
  std::string left_;
};

// The reader of the options' format. `options` outlives it, and may have no format if the reader is
// never used.
std::unique_ptr<CallReader> MakeCallReader(const OutputOptions& options);

// What separates the words of calls, a text without that at its ends, and whether it may be the
// name of a tool.
bool IsSpace(char c);
std::string_view Trimmed(std::string_view text);
bool IsName(std::string_view name);

}  // namespace flotilla::router
