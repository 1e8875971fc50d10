#include "rpc/poller.h"

namespace flotilla::rpc {

Poller::Poller() : queue_(builder_.AddCompletionQueue()) {
  thread_ = std::thread([queue = queue_.get()] {
    void* tag = nullptr;
    for (bool ok = false; queue->Next(&tag, &ok);) FromQueue(tag)->Over(ok);
  });
}

Poller::~Poller() {
  queue_->Shutdown();
  thread_.join();
}

}  // namespace flotilla::rpc
