// Outbox: the messages that a Generate call has for its client and could not write yet.
//
// New content is merged into the message at the back, so a client that reads slowly gets
// fewer and larger messages rather than ever more of them. A message that has grown to
// kMaxMessageBytes is closed, and the next one begins. The outbox never refuses content: the
// request's own tokens bound what it can hold. It belongs to one call and is used on that
// call's I/O loop's thread.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "flotilla/v1/inference.pb.h"
#include "router/grpc/codec.h"
#include "router/service.h"

namespace flotilla::router {

class Outbox {
 public:
  // Well below the 4 MiB that clients accept by default.
  static constexpr std::size_t kMaxMessageBytes = 256 << 10;

  struct Options {
    bool token_ids = false;
    bool logprobs = false;
    TokenBytesFn token_bytes;
  };
  explicit Outbox(Options options) : options_(std::move(options)) {}

  void Add(v1::Accepted accepted);
  void Add(const PromptScores& scores);
  // Adds nothing if the client asked for nothing of what the delta holds.
  void Add(const Delta& delta);
  void Add(const ChoiceEnd& end);
  void Add(const Usage& usage);

  bool empty() const { return messages_.empty(); }
  // Messages waiting.
  std::size_t size() const { return messages_.size(); }
  // The approximate bytes of all messages on the wire.
  std::size_t bytes() const { return bytes_; }

  // Removes the oldest message. There must be one.
  v1::GenerateResponse Take();
  void Clear();

 private:
  struct Entry {
    v1::GenerateResponse message;
    std::size_t bytes = 0;
  };

  // The message to add to: the last one, or a new one when that is full.
  v1::GenerateResponse& Back();
  // The delta of the choice in the message at the back.
  v1::Delta& DeltaOf(std::uint32_t choice);
  // Counts what was just added to the message at the back.
  void Count(std::size_t bytes);

  const Options options_;
  std::deque<Entry> messages_;
  std::size_t bytes_ = 0;
};

}  // namespace flotilla::router
