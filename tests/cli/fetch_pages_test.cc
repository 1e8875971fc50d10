#include "cli/fetch_pages.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/obs/metrics_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::cli {
namespace {

using ::testing::HasSubstr;
using Acceptor = boost::asio::ip::tcp::acceptor;

std::string Local(int port) { return absl::StrCat("127.0.0.1:", port); }

struct FetchPagesTest : ::testing::Test {
  FetchPagesTest() {
    metrics.AddCounter("flotilla_a_total", "A.").Increment(3);
    server = MetricsServer::Start("127.0.0.1:0", &metrics).value();
  }
  Metrics metrics;
  std::unique_ptr<MetricsServer> server;
};

TEST_F(FetchPagesTest, OneThatFailsDoesNotHinderOthers) {
  boost::asio::io_context io;
  Acceptor silent(io, {boost::asio::ip::make_address("127.0.0.1"), 0});  // listens, that is all
  int closed_port;
  {
    Acceptor closed(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
    closed_port = closed.local_endpoint().port();
  }
  const std::vector<std::string> addresses = {
      Local(silent.local_endpoint().port()),      Local(closed_port),   "nonsense", ":80", "host:",
      absl::StrCat("localhost:", server->port()), Local(server->port())};
  const auto pages = FetchPages(addresses, "/metrics", absl::Milliseconds(300));
  ASSERT_EQ(pages.size(), addresses.size());
  EXPECT_EQ(pages[0].status(), absl::UnavailableError("no answer in time"));
  EXPECT_TRUE(absl::IsUnavailable(pages[1].status()));
  EXPECT_THAT(std::string(pages[1].status().message()), HasSubstr("refused"));
  for (int i : {2, 3, 4}) EXPECT_TRUE(absl::IsInvalidArgument(pages[i].status())) << addresses[i];
  for (int i : {5, 6}) {
    ASSERT_TRUE(pages[i].ok()) << pages[i].status();
    EXPECT_THAT(*pages[i], HasSubstr("flotilla_a_total 3\n"));
  }
}

TEST_F(FetchPagesTest, OnlySuccessCounts) {
  const auto pages = FetchPages({Local(server->port())}, "/nothing", absl::Seconds(5));
  ASSERT_FALSE(pages[0].ok());
  EXPECT_EQ(pages[0].status(), absl::UnavailableError("HTTP 404"));
}

}  // namespace
}  // namespace flotilla::cli
