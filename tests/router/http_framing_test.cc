// Tests where a request ends and which host it is for. A request that can be read in two ways is
// refused. Otherwise a client could hide a second request in what a proxy takes for a body.
#include <string>

#include <gtest/gtest.h>

#include "router/http/framing.h"
#include "router/http/head_scanner.h"
#include "tests/router/http_fixture.h"

namespace flotilla::router {
namespace {

struct Smuggling {
  const char* what;
  const char* head;  // up to the empty line, which follows
};

const std::string kInner = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n";

// A last chunk and another request follow each of these. One reader sees one request, another
// reader sees two.
constexpr Smuggling kSmuggling[] = {
    {"an unknown coding",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: xchunked"},
    {"identity", "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: identity"},
    {"empty", "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding:"},
    {"chunked first",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked, gzip"},
    {"chunked last, after another",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked"},
    {"chunked twice",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked, chunked"},
    {"chunked in two lines",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
     "transfer-encoding: chunked"},
    {"another coding in a second line",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
     "transfer-encoding: identity"},
    {"a parameter", "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked;q=1"},
    {"quotes", "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: \"chunked\""},
    {"a vertical tab",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: \x0b"
     "chunked"},
    {"on a GET", "GET /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: xchunked"},
    {"beside a length",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
     "content-length: 5"},
    {"after a length",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n"
     "transfer-encoding: chunked"},
    {"an unknown coding beside a length",
     "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n"
     "transfer-encoding: xchunked"},
    {"in HTTP/1.0",
     "POST /tokenize HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
     "connection: keep-alive"},
    {"two lengths",
     "GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\ncontent-length: 5"},
    {"two equal lengths",
     "GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\ncontent-length: 0"},
    {"a list of lengths", "GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0, 0"},
    {"a length with a sign", "GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: +0"},
    {"a length in hexadecimal", "GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0x0"},
    {"no length", "GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length:"},
    {"a folded line",
     "GET /health HTTP/1.1\r\nhost: localhost\r\nx: y\r\n transfer-encoding: chunked"},
    {"a folded first line",
     "GET /health HTTP/1.1\r\n transfer-encoding: chunked\r\nhost: localhost"},
    {"a blank before a colon",
     "GET /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding : chunked"},
    {"a lone carriage return",
     "GET /health HTTP/1.1\r\nhost: localhost\r\nx: y\rtransfer-encoding: chunked"},
    {"a lone line feed",
     "GET /health HTTP/1.1\r\nhost: localhost\r\nx: y\ntransfer-encoding: chunked"},
    {"a line without a colon", "GET /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding"},
    {"a line without a name", "GET /health HTTP/1.1\r\nhost: localhost\r\n: chunked"},
    {"a zero byte in a name", "GET /health HTTP/1.1\r\nhost: localhost\r\nx\x01: chunked"},
    {"no host", "GET /health HTTP/1.1\r\nx: y"},
    {"two hosts", "GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost"},
    {"two hosts in HTTP/1.0", "GET /health HTTP/1.0\r\nhost: localhost\r\nhost: localhost"},
    {"a host with a path", "GET /health HTTP/1.1\r\nhost: localhost/x"},
    {"a host with a user", "GET /health HTTP/1.1\r\nhost: a@localhost"},
    {"a host with a blank", "GET /health HTTP/1.1\r\nhost: localhost evil"},
    {"a host with a bad port", "GET /health HTTP/1.1\r\nhost: localhost:8o"},
    {"another version", "GET /health HTTP/1.2\r\nhost: localhost"},
    {"an old version", "GET /health HTTP/0.9\r\nhost: localhost"},
    {"a blank too many", "GET  /health HTTP/1.1\r\nhost: localhost"},
    {"a tab for a blank", "GET\t/health HTTP/1.1\r\nhost: localhost"},
};

TEST_F(HttpTest, WhatCanBeReadInTwoWaysIsRefusedOnce) {
  Serve();
  for (const Smuggling& one : kSmuggling) {
    HttpClient client(port_);
    client.Send(std::string(one.head) + "\r\n\r\n0\r\n\r\n" + kInner + kInner);
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << one.what;
    EXPECT_EQ(response.headers.at("connection"), "close") << one.what;
    EXPECT_TRUE(client.AtEnd()) << one.what << ": a second answer came";
  }
}

TEST_F(HttpTest, WhatCanBeReadInOneWayIsAnswered) {
  Serve();
  const std::string body = R"({"model":"m","prompt":"abc"})";
  const std::string post = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\n";
  for (const std::string& head : {post + "Transfer-Encoding: chunked\r\n\r\n",
                                  post + "TRANSFER-ENCODING:  Chunked \t\r\n\r\n",
                                  post + "expect: x\r\ntransfer-encoding:chunked\r\n\r\n"}) {
    HttpClient client(port_);
    client.Send(head + "1c;ext=\"a;b\"\r\n" + body + "\r\n0\r\nx: trailer\r\n\r\n" + kInner);
    EXPECT_EQ(client.Read().status, 200) << head;
    EXPECT_EQ(client.Read().status, 200) << head;
  }
  for (const char* host :
       {"localhost", "LocalHost:8080", "127.0.0.1", "127.8.9.1:1", "[::1]", "[::1]:8080"}) {
    HttpClient client(port_);
    client.Send(std::string("GET /health HTTP/1.1\r\nhost: ") + host + "\r\n\r\n");
    EXPECT_EQ(client.Read().status, 200) << host;
  }
  HttpClient old(port_);
  old.Send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().status, 200);
  // Another host name is well-formed, but this server does not answer to it.
  HttpClient other(port_);
  other.Send("GET /health HTTP/1.1\r\nhost: other.example\r\n\r\n");
  EXPECT_EQ(other.Read().status, 403);
}

// A trailer comes after the request was admitted, so its fields have no effect.
TEST_F(HttpTest, ATrailerNamesNoTenantAndNoRequest) {
  Fixture setup;
  setup.http.tenant_header = "x-tenant";
  Serve(setup);
  HttpClient client(port_);
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
      "1c\r\n"
      R"({"model":"m","prompt":"abc"})"
      "\r\n0\r\nx-tenant: evil\r\n"
      "x-request-id: evil\r\n\r\n");
  EXPECT_NE(client.Read().headers.at("x-request-id"), "evil");
  ASSERT_EQ(engine_->submitted().size(), 1u);
  EXPECT_EQ(engine_->submitted()[0].tenant, "");
}

TEST(FramingTest, HostsAreNamesOrAddressesWithAPort) {
  for (const char* host : {"", "a", "a.b-c_d:1", "1.2.3.4:65535", "[::1]", "[fe80::1.2.3.4]:80",
                           "xn--mller-kva.example", "a%20b"}) {
    EXPECT_TRUE(IsHost(host)) << host;
  }
  for (const char* host :
       {":", ":80", "a:b", "a:1:2", "a:123456", "[", "[]", "[]:1", "[::1", "[::1]x", "[g h]", "a b",
        "a/b", "a\\b", "a@b", "a?b", "a#b", "\"a\"", "\xc3\xa4"}) {
    EXPECT_FALSE(IsHost(host)) << host;
  }
  EXPECT_EQ(NameOfHost("[::1]:80"), "::1");
  EXPECT_EQ(NameOfHost("a.b:80"), "a.b");
}

// The end of the head does not depend on how the bytes are cut into reads.
TEST(HeadScannerTest, SeesTheSameInWholeAndInParts) {
  const std::string head = "GET / HTTP/1.1\r\nhost: a\r\nx:\r\ny: \xff z\r\n\r\n";
  const std::string input = head + "GET /";
  HeadScanner whole(1000, 10);
  ASSERT_EQ(whole.Scan(input), HeadScanner::Result::kEnd);
  EXPECT_EQ(whole.size(), head.size());
  HeadScanner parts(1000, 10);
  for (std::size_t i = 0; i < head.size(); ++i) {
    ASSERT_EQ(parts.Scan(std::string_view(input).substr(0, i)), HeadScanner::Result::kMore) << i;
  }
  EXPECT_EQ(parts.Scan(input), HeadScanner::Result::kEnd);
  EXPECT_EQ(HeadScanner(head.size(), 10).Scan(input), HeadScanner::Result::kEnd);
  EXPECT_EQ(HeadScanner(head.size() - 1, 10).Scan(input), HeadScanner::Result::kTooLong);
  EXPECT_EQ(HeadScanner(1000, 3).Scan(input), HeadScanner::Result::kEnd);
  EXPECT_EQ(HeadScanner(1000, 2).Scan(input), HeadScanner::Result::kTooMany);
  EXPECT_EQ(HeadScanner(1000, 10).Scan("\x16\x03\x01"), HeadScanner::Result::kBad);
}

}  // namespace
}  // namespace flotilla::router
