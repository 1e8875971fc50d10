#include "rpc/transport_guard.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/rt/allocator.h"
#include "common/rt/clock.h"
#include "grpc/slice.h"
#include "grpcpp/version_info.h"
#include "rpc/held_messages.h"
#include "rpc/inbound_frames.h"
#include "rpc/interposed.h"

// The declarations below are those of this version.
#if GRPC_CPP_VERSION_MAJOR != 1 || GRPC_CPP_VERSION_MINOR != 51
#error "docs/adr/0003-header-blocks.md says what to do with another version of gRPC"
#endif

struct grpc_chttp2_transport;
struct grpc_chttp2_stream_map;
struct grpc_transport;
struct grpc_endpoint;
grpc_endpoint* grpc_transport_get_endpoint(grpc_transport* transport);
int grpc_endpoint_get_fd(grpc_endpoint* endpoint);

namespace flotilla::rpc {
namespace {

constexpr char kRead[] = "_Z24grpc_chttp2_perform_readP21grpc_chttp2_transportRK10grpc_slice";
constexpr char kDestroy[] = "_ZN21grpc_chttp2_transportD1Ev";
constexpr char kAddStream[] = "_Z26grpc_chttp2_stream_map_addP22grpc_chttp2_stream_mapjPv";
constexpr char kDeleteStream[] = "_Z29grpc_chttp2_stream_map_deleteP22grpc_chttp2_stream_mapj";

// Freed memory lies between memory in use, so malloc keeps it unless it is trimmed. A trim takes
// some milliseconds.
constexpr double kTrimsPerSecond = 4;

// What unfinished messages may hold in any case.
constexpr std::size_t kHeldBesideDying = 4 << 20;

int DescriptorOf(grpc_chttp2_transport* transport) {
  // A transport begins with the part that all kinds of transports have.
  grpc_endpoint* const endpoint =
      grpc_transport_get_endpoint(reinterpret_cast<grpc_transport*>(transport));
  return endpoint == nullptr ? -1 : grpc_endpoint_get_fd(endpoint);
}

// The connections that have been read from. It is global, like the function that gRPC calls.
class Connections {
 public:
  // Called before gRPC reads `bytes`; an error closes the connection.
  absl::Status Check(grpc_chttp2_transport* transport, absl::Span<const std::uint8_t> bytes)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto [found, is_new] = connections_.try_emplace(transport);
    Connection& one = found->second;
    if (is_new) one.descriptor = DescriptorOf(transport);
    if (one.cut) return absl::ResourceExhaustedError("too much is held of unfinished messages");
    return one.frames.Read(bytes, clock_.NowNs());
  }
  // Called after gRPC has read them.
  void Count(grpc_chttp2_transport* transport, absl::Span<const std::uint8_t> bytes)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Connection& one = connections_[transport];
    if (one.cut) return;
    const std::int64_t now_ns = clock_.NowNs();
    held_bytes_ -= one.held.bytes();
    one.held.Read(bytes, now_ns);
    held_bytes_ += one.held.bytes();
    while (HoldsTooMuch()) CutOne(now_ns);
  }
  void BeginStream(grpc_chttp2_transport* transport, std::uint32_t stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Connection& one = connections_[transport];
    if (!one.cut) one.held.Begin(stream);
  }
  void EndStream(grpc_chttp2_transport* transport, std::uint32_t stream) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto found = connections_.find(transport);
    if (found == connections_.end()) return;
    held_bytes_ -= found->second.held.bytes();
    found->second.held.End(stream);
    held_bytes_ += found->second.held.bytes();
  }
  // True if it is time to give freed memory back, because the connection was cut off.
  bool Forget(grpc_chttp2_transport* transport) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto found = connections_.find(transport);
    if (found == connections_.end()) return false;
    const bool cut = found->second.cut;
    held_bytes_ -= found->second.held.bytes();
    dying_bytes_ -= found->second.dying_bytes;
    connections_.erase(found);
    return cut && trims_.Take(clock_.NowNs());
  }

 private:
  struct Connection {
    InboundFrames frames;
    HeldMessages held;
    int descriptor = -1;  // gRPC's, which closes it after Forget
    bool cut = false;
    std::size_t dying_bytes = 0;  // what it held when it was cut
  };

  // What gRPC still holds of connections that were cut counts, too: until it has freed that, fast
  // peers could fill as much again. Then the others may hold little.
  bool HoldsTooMuch() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return held_bytes_ > kMaxHeldBytes ||
           (held_bytes_ > kHeldBesideDying && held_bytes_ + dying_bytes_ > kMaxHeldBytes * 3 / 2);
  }

  // Ends the connection that holds most for longest. The thread that reads it notices that.
  void CutOne(std::int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Connection* worst = nullptr;
    double most = 0;
    for (auto& [transport, one] : connections_) {
      if (one.held.bytes() == 0) continue;
      // This is almost 0 for messages that began in this very read; tiny frames hold much at once.
      const double held = one.held.ByteSeconds(now_ns);
      if (worst == nullptr || held > most) worst = &one, most = held;
    }
    held_bytes_ -= worst->held.bytes();
    worst->dying_bytes = worst->held.bytes();
    dying_bytes_ += worst->dying_bytes;
    worst->held = HeldMessages();
    worst->cut = true;
    if (worst->descriptor >= 0) shutdown(worst->descriptor, SHUT_RDWR);
  }

  const SteadyClock clock_{};
  absl::Mutex mu_;
  absl::flat_hash_map<grpc_chttp2_transport*, Connection> connections_ ABSL_GUARDED_BY(mu_);
  Allowance trims_ ABSL_GUARDED_BY(mu_){1, kTrimsPerSecond};
  std::size_t held_bytes_ ABSL_GUARDED_BY(mu_) = 0;   // of all that are not cut
  std::size_t dying_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of the others
};

Connections& AllConnections() {
  static auto* const connections = new Connections;  // gRPC's threads may outlive main
  return *connections;
}

template <class Function>
Function GrpcsOwn(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// The connection whose bytes this thread reads.
thread_local grpc_chttp2_transport* t_reading = nullptr;
// The offset of a connection's map of streams; -1 until a connection has a stream.
std::atomic<std::ptrdiff_t> g_streams_at{-1};

}  // namespace
}  // namespace flotilla::rpc

// These replace gRPC's functions of the same names.
absl::Status GuardedRead(grpc_chttp2_transport* transport, const grpc_slice& bytes) asm(
    "_Z24grpc_chttp2_perform_readP21grpc_chttp2_transportRK10grpc_slice");
void GuardedDestroy(grpc_chttp2_transport* transport) asm("_ZN21grpc_chttp2_transportD1Ev");
void GuardedAddStream(grpc_chttp2_stream_map* streams, std::uint32_t id, void* stream) asm(
    "_Z26grpc_chttp2_stream_map_addP22grpc_chttp2_stream_mapjPv");
void* GuardedDeleteStream(grpc_chttp2_stream_map* streams, std::uint32_t id) asm(
    "_Z29grpc_chttp2_stream_map_deleteP22grpc_chttp2_stream_mapj");

// Called on the thread that polls the connection. An error closes it.
absl::Status GuardedRead(grpc_chttp2_transport* transport, const grpc_slice& slice) {
  using namespace flotilla::rpc;  // NOLINT: this function stands in for one of no namespace
  static const auto read = GrpcsOwn<decltype(&GuardedRead)>(kRead);
  const auto bytes = absl::MakeConstSpan(GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
  if (absl::Status status = AllConnections().Check(transport, bytes); !status.ok()) return status;
  t_reading = transport;
  absl::Status status = read(transport, slice);
  t_reading = nullptr;
  AllConnections().Count(transport, bytes);
  return status;
}

// Called for a new stream. Only calls that come in are counted, not those that go out.
void GuardedAddStream(grpc_chttp2_stream_map* streams, std::uint32_t id, void* stream) {
  using namespace flotilla::rpc;  // NOLINT: as above
  static const auto add = GrpcsOwn<decltype(&GuardedAddStream)>(kAddStream);
  if (t_reading != nullptr) {
    g_streams_at = reinterpret_cast<char*>(streams) - reinterpret_cast<char*>(t_reading);
    AllConnections().BeginStream(t_reading, id);
  }
  add(streams, id, stream);
}

void* GuardedDeleteStream(grpc_chttp2_stream_map* streams, std::uint32_t id) {
  using namespace flotilla::rpc;  // NOLINT: as above
  static const auto remove = GrpcsOwn<decltype(&GuardedDeleteStream)>(kDeleteStream);
  if (const std::ptrdiff_t at = g_streams_at; at >= 0) {
    AllConnections().EndStream(
        reinterpret_cast<grpc_chttp2_transport*>(reinterpret_cast<char*>(streams) - at), id);
  }
  return remove(streams, id);
}

void GuardedDestroy(grpc_chttp2_transport* transport) {
  using namespace flotilla::rpc;  // NOLINT: as above
  static const auto destroy = GrpcsOwn<decltype(&GuardedDestroy)>(kDestroy);
  const bool trim = AllConnections().Forget(transport);  // before its memory is another's
  destroy(transport);
  if (trim) flotilla::ReturnFreeMemory();
}

namespace flotilla::rpc {

bool TransportIsGuarded() {
  return IsInterposed(kRead, reinterpret_cast<const void*>(&GuardedRead)) &&
         IsInterposed(kDestroy, reinterpret_cast<const void*>(&GuardedDestroy)) &&
         IsInterposed(kAddStream, reinterpret_cast<const void*>(&GuardedAddStream)) &&
         IsInterposed(kDeleteStream, reinterpret_cast<const void*>(&GuardedDeleteStream));
}

}  // namespace flotilla::rpc
