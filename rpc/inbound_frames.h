// InboundFrames: checks that the frames of an HTTP/2 connection stay within bounds. It needs
// only the connection's bytes. Pure.
//
// A header block is a HEADERS frame (or PUSH_PROMISE) and the CONTINUATION frames after it,
// until one says that it is the last. HTTP/2 does not bound their number, and gRPC 1.51 keeps
// the bytes that it cannot decode yet, for example of a string or a number that never ends.
//
// Besides, gRPC answers each PING and keeps some state of each stream that is reset (rapid
// reset, CVE-2023-44487), as fast as they come and whether or not the peer reads the answers.
// This class limits the rate of both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/frame_reader.h"

namespace flotilla::rpc {

// The bytes of a block's frames with their frame headers. gRPC takes 8 KiB of metadata by
// default. It refuses a call with more; a block beyond this bound ends the connection.
inline constexpr std::size_t kMaxHeaderBlockBytes = 32 << 10;
// This needs a bound because each frame may bring metadata, which gRPC counts anew per frame.
inline constexpr int kMaxContinuations = 4;

// The allowed rate of an event: so many at once, and so many a second in the long run.
class Allowance {
 public:
  Allowance(double burst, double per_second)
      : burst_(burst), per_second_(per_second), left_(burst) {}
  // Takes one event; false: none is allowed just now. `now_ns` is from a monotonic clock.
  bool Take(std::int64_t now_ns);

 private:
  const double burst_, per_second_;
  double left_;
  std::int64_t last_ns_ = 0;
};

// A gRPC client may send a PING for a DATA frame that comes while none of its PINGs is
// unanswered (grpc-go does, to measure the connection). So there is at most one PING per round
// trip, and at most one per DATA frame: some hundred a second for a stream of tokens, and a
// thousand for a connection of many streams, whose frames come at once with each step. The
// burst allows for PINGs that come late, all at once, after the network stood still.
inline constexpr double kPingBurst = 3000, kPingsPerSecond = 1000;
// Resets are cancelled calls. The burst allows all calls of a connection at once (1,024); the
// rate is as fast as a gateway's users lose patience.
inline constexpr double kResetBurst = 1024, kResetsPerSecond = 200;

// Checks one end of one connection. The owner passes the bytes in their order.
class InboundFrames {
 public:
  // Reads the next bytes, at `now_ns` of a monotonic clock. RESOURCE_EXHAUSTED: a frame that
  // begins in `bytes` exceeds a bound, so the owner must close the connection before these bytes
  // are used. The first bytes of a client may be HTTP/2's preface.
  absl::Status Read(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns);

 private:
  absl::Status BeginFrame(const FrameHeader& frame, std::int64_t now_ns);
  absl::Status BeginHeaders(const FrameHeader& frame);

  FrameReader reader_;
  std::size_t block_bytes_ = 0;  // of the open header block; 0: none is open
  int continuations_ = 0;
  Allowance pings_{kPingBurst, kPingsPerSecond};
  Allowance resets_{kResetBurst, kResetsPerSecond};
};

}  // namespace flotilla::rpc
