#include "router/grpc/unread_output.h"

namespace flotilla::router {

void UnreadOutput::Set(GenerateStream* call, std::size_t bytes, absl::Time taken) {
  const auto found = calls_.find(call);
  if (found != calls_.end()) bytes_ -= found->second.bytes;
  bytes_ += bytes;
  if (bytes > 0) {
    calls_[call] = {.bytes = bytes, .taken = taken};
  } else if (found != calls_.end()) {
    calls_.erase(found);
  }
}

GenerateStream* UnreadOutput::Worst(absl::Time now) const {
  if (bytes_ <= limit_) return nullptr;
  GenerateStream* worst = nullptr;
  std::size_t most = 0;
  for (const auto& [call, held] : calls_) {
    if (held.bytes <= most || now - held.taken < patience_) continue;
    worst = call;
    most = held.bytes;
  }
  return worst;
}

}  // namespace flotilla::router
