// HeldMessages: how much gRPC holds of messages that are not whole yet, of one connection on
// which calls come in; read from its bytes alone. Pure.
//
// gRPC 1.51 takes a message as it comes, up to the port's limit, on every stream of every
// connection, and waits for the rest as long as the peer likes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "rpc/frame_reader.h"

namespace flotilla::rpc {

// Of all connections of the process together. A message to a server is no longer than this
// (rpc/endpoint.h).
inline constexpr std::size_t kMaxHeldBytes = 16 << 20;
// The least cost of a frame: however short it is, it keeps the buffer that it was read into.
inline constexpr std::size_t kLeastHeldBytes = 8 << 10;

// Its owner calls it in the order in which gRPC does what is told.
class HeldMessages {
 public:
  // gRPC has a call of this stream, or none any more. What comes of others is not held.
  void Begin(std::uint32_t stream) { streams_.try_emplace(stream); }
  void End(std::uint32_t stream);
  // gRPC has read these bytes, at `now_ns` of a monotonic clock.
  void Read(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns);

  std::size_t bytes() const { return bytes_; }
  // Of each message its bytes times the time since it began, in byte seconds. Who holds most
  // for longest has most; a message that comes as fast as it can has little.
  double ByteSeconds(std::int64_t now_ns) const;

 private:
  static constexpr std::size_t kPrefix = 5;  // of a gRPC message: a flag, and its length

  struct Stream {
    std::uint8_t prefix[kPrefix] = {};
    std::size_t prefix_bytes = 0;  // 0: between messages
    std::uint32_t left = 0;        // of the message, once there is the prefix
    std::size_t held = 0;          // in whole frames
    std::int64_t since_ns = 0;     // when the message began
  };

  void BeginFrame(const FrameHeader& frame, std::int64_t now_ns);
  void ReadPayload(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns);
  static std::size_t ReadMessage(Stream& stream, absl::Span<const std::uint8_t> bytes);
  void Hold(Stream& stream, std::size_t bytes);

  FrameReader reader_;
  FrameHeader frame_;             // the last one
  std::uint32_t frame_left_ = 0;  // of its payload
  absl::flat_hash_map<std::uint32_t, Stream> streams_;
  std::size_t bytes_ = 0;  // of all streams
};

}  // namespace flotilla::rpc
