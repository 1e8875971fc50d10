#include "cli/fetch_pages.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;

// The budget of one process is 1,500 series, which are 200 KB.
constexpr std::uint64_t kMaxBodyBytes = 8 << 20;

absl::Status Unavailable(const error_code& error) {
  return absl::UnavailableError(error == beast::error::timeout ? "no answer in time"
                                                               : error.message());
}

// One GET; its handlers run on the caller's io_context, which it must not outlive.
class Fetch {
 public:
  Fetch(asio::io_context& io, std::chrono::nanoseconds timeout)
      : resolver_(io), stream_(io), timeout_(timeout) {
    parser_.body_limit(kMaxBodyBytes);
  }

  void Start(const std::string& address, const std::string& path) {
    const std::size_t colon = address.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
      result_ = absl::InvalidArgumentError("the address is not HOST:PORT");
      return;
    }
    std::string host = address.substr(0, colon);
    if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    request_ = {http::verb::get, path, 11};
    request_.set(http::field::host, address);
    request_.set(http::field::connection, "close");
    stream_.expires_after(timeout_);
    resolver_.async_resolve(host, address.substr(colon + 1),
                            [this](error_code error, const tcp::resolver::results_type& found) {
                              if (error) return Fail(error);
                              Connect(found);
                            });
  }

  // To be called after the io_context has run.
  absl::StatusOr<std::string> TakeResult() { return std::move(result_); }

 private:
  void Fail(error_code error) { result_ = Unavailable(error); }

  void Connect(const tcp::resolver::results_type& found) {
    stream_.async_connect(found, [this](error_code error, const tcp::endpoint&) {
      if (error) return Fail(error);
      http::async_write(stream_, request_, [this](error_code failure, std::size_t) {
        if (failure) return Fail(failure);
        Read();
      });
    });
  }

  void Read() {
    http::async_read(stream_, buffer_, parser_, [this](error_code error, std::size_t) {
      if (error) return Fail(error);
      if (parser_.get().result() != http::status::ok) {
        result_ = absl::UnavailableError(absl::StrCat("HTTP ", parser_.get().result_int()));
        return;
      }
      result_ = std::move(parser_.get().body());
    });
  }

  tcp::resolver resolver_;
  beast::tcp_stream stream_;
  const std::chrono::nanoseconds timeout_;
  http::request<http::empty_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  absl::StatusOr<std::string> result_ = absl::UnavailableError("no answer in time");
};

}  // namespace

std::vector<absl::StatusOr<std::string>> FetchPages(absl::Span<const std::string> addresses,
                                                    const std::string& path,
                                                    absl::Duration timeout) {
  asio::io_context io(1);
  std::vector<std::unique_ptr<Fetch>> fetches;
  for (const std::string& address : addresses) {
    fetches.push_back(std::make_unique<Fetch>(io, absl::ToChronoNanoseconds(timeout)));
    fetches.back()->Start(address, path);
  }
  // Names are resolved without a time limit of their own.
  io.run_for(absl::ToChronoNanoseconds(timeout + absl::Milliseconds(100)));
  std::vector<absl::StatusOr<std::string>> results;
  for (const auto& fetch : fetches) results.push_back(fetch->TakeResult());
  return results;
}

}  // namespace flotilla::cli
