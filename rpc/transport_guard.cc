#include "rpc/transport_guard.h"

#include <dlfcn.h>

#include <cstdint>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "grpc/slice.h"
#include "grpcpp/version_info.h"
#include "rpc/inbound_frames.h"
#include "rpc/interposed.h"

// The declarations below are those of this version.
#if GRPC_CPP_VERSION_MAJOR != 1 || GRPC_CPP_VERSION_MINOR != 51
#error "docs/adr/0003-header-blocks.md says what to do with another version of gRPC"
#endif

struct grpc_chttp2_transport;

namespace flotilla::rpc {
namespace {

constexpr char kRead[] = "_Z24grpc_chttp2_perform_readP21grpc_chttp2_transportRK10grpc_slice";
constexpr char kDestroy[] = "_ZN21grpc_chttp2_transportD1Ev";

// The connections that have been read from. Global, as is the function that gRPC calls.
class Connections {
 public:
  absl::Status Read(const grpc_chttp2_transport* transport, const grpc_slice& bytes)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return frames_[transport].Read(
        absl::MakeConstSpan(GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes)), clock_.NowNs());
  }
  void Forget(const grpc_chttp2_transport* transport) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    frames_.erase(transport);
  }

 private:
  const SteadyClock clock_{};
  absl::Mutex mu_;
  absl::flat_hash_map<const grpc_chttp2_transport*, InboundFrames> frames_ ABSL_GUARDED_BY(mu_);
};

Connections& AllConnections() {
  static auto* const connections = new Connections;  // gRPC's threads may outlive main
  return *connections;
}

template <class Function>
Function GrpcsOwn(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace flotilla::rpc

// In the place of gRPC's functions of these names.
absl::Status GuardedRead(grpc_chttp2_transport* transport, const grpc_slice& bytes) asm(
    "_Z24grpc_chttp2_perform_readP21grpc_chttp2_transportRK10grpc_slice");
void GuardedDestroy(grpc_chttp2_transport* transport) asm("_ZN21grpc_chttp2_transportD1Ev");

// On the thread that polls the connection; an error closes it.
absl::Status GuardedRead(grpc_chttp2_transport* transport, const grpc_slice& bytes) {
  using namespace flotilla::rpc;  // NOLINT: this function stands in for one of no namespace
  static const auto read = GrpcsOwn<decltype(&GuardedRead)>(kRead);
  if (absl::Status status = AllConnections().Read(transport, bytes); !status.ok()) return status;
  return read(transport, bytes);
}

void GuardedDestroy(grpc_chttp2_transport* transport) {
  using namespace flotilla::rpc;  // NOLINT: as above
  static const auto destroy = GrpcsOwn<decltype(&GuardedDestroy)>(kDestroy);
  AllConnections().Forget(transport);  // before its memory is another's
  destroy(transport);
}

namespace flotilla::rpc {

bool TransportIsGuarded() {
  return IsInterposed(kRead, reinterpret_cast<const void*>(&GuardedRead)) &&
         IsInterposed(kDestroy, reinterpret_cast<const void*>(&GuardedDestroy));
}

}  // namespace flotilla::rpc
