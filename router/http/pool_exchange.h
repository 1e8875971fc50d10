// PoolExchange: an HTTP request while the service's pool works for it. The pool parses a long
// body, encodes, decodes, or writes a long answer. Lives on the I/O loop's thread.
//
// The peer may disconnect before the pool is done, and then the exchange is destroyed. So the
// work holds only the weak pointer self(). On the I/O loop's thread it gives null once the
// exchange is gone; on other threads it has expired, and the work need not begin.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "router/http/exchange.h"
#include "router/http/memory_budget.h"

namespace flotilla::router {

class PoolExchange final : public HttpExchange {
 public:
  // `reply` outlives the exchange.
  explicit PoolExchange(HttpReply& reply)
      : reply_(reply), self_(std::make_shared<PoolExchange*>(this)) {}
  ~PoolExchange() override { abandoned_->store(true); }

  HttpReply& reply() { return reply_; }
  std::weak_ptr<PoolExchange*> self() const { return self_; }
  // Set once the exchange is gone: work that still waits in the pool need not run.
  std::shared_ptr<const std::atomic<bool>> abandoned() const { return abandoned_; }
  // The part of a budget that the answer holds as long as this object lives.
  void Hold(MemoryCharge charge) { charge_ = std::move(charge); }
  // Continues the request as `next`, which lives as long as this exchange. May be null.
  void GoOnAs(std::unique_ptr<HttpExchange> next) { next_ = std::move(next); }

 private:
  HttpReply& reply_;
  MemoryCharge charge_;
  std::unique_ptr<HttpExchange> next_;
  const std::shared_ptr<PoolExchange*> self_;
  const std::shared_ptr<std::atomic<bool>> abandoned_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace flotilla::router
