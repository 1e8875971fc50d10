// PoolExchange: an HTTP request while the service's pool works for it: parses a long body,
// encodes, decodes, or writes a long answer. The I/O loop's thread.
//
// The peer may go, and the exchange with it, before the pool is done. So work holds it
// weakly: what self() gives is null on the I/O loop's thread once the exchange is gone, and has
// expired for the other threads, which need not begin then.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "router/http/exchange.h"
#include "router/http/memory_budget.h"

namespace flotilla {

class PoolExchange final : public HttpExchange {
 public:
  // `reply` outlives the exchange.
  explicit PoolExchange(HttpReply& reply)
      : reply_(reply), self_(std::make_shared<PoolExchange*>(this)) {}
  ~PoolExchange() override { abandoned_->store(true); }

  HttpReply& reply() { return reply_; }
  std::weak_ptr<PoolExchange*> self() const { return self_; }
  // Set once the exchange is gone: what still waits in the pool need not run.
  std::shared_ptr<const std::atomic<bool>> abandoned() const { return abandoned_; }
  // The part of a budget that the answer holds as long as this object lives.
  void Hold(MemoryCharge charge) { charge_ = std::move(charge); }
  // Lives as long as this one: what the request goes on as. May be null.
  void GoOnAs(std::unique_ptr<HttpExchange> next) { next_ = std::move(next); }

 private:
  HttpReply& reply_;
  MemoryCharge charge_;
  std::unique_ptr<HttpExchange> next_;
  const std::shared_ptr<PoolExchange*> self_;
  const std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace flotilla
