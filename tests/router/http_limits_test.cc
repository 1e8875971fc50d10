// Tests how much memory a peer can make an HTTP server hold. It is bounded in each state of a
// request, and over all connections together. If there is no memory for a connection, only this
// connection is lost.
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/router/http_fixture.h"
#include "tests/support/allocations.h"

namespace flotilla::router {
namespace {

constexpr std::size_t kMiB = 1 << 20;

// A factor for the memory that may stay resident: sanitizers keep freed memory, and shadow all
// memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kFactor = 8;
#else
constexpr std::size_t kFactor = 1;
#endif

std::size_t ResidentBytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::string PostHead(const std::string& path, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nhost: localhost\r\n" + headers + "\r\n";
}
std::string Announce(std::size_t bytes) {
  return "content-length: " + std::to_string(bytes) + "\r\n";
}

// Makes a tokenize request of about `bytes` bytes. Its words repeat, so encoding is quick.
std::string LargeBody(std::size_t bytes) {
  std::string text = R"({"model":"m","prompt":")";
  while (text.size() < bytes) text += "word ";
  return text + "\"}";
}

TEST_F(HttpTest, WhatNeverEndsIsRefused) {
  Serve();
  const std::string chunked = "transfer-encoding: chunked\r\n";
  struct Endless {
    const char* what;
    std::string begin, more;
  };
  for (const Endless& one :
       {Endless{"an extension", "1;x=", "y"}, Endless{"zeros", "", "0"},
        Endless{"a trailer", "0\r\nx: ", "y"}, Endless{"trailers", "0\r\n", "x: y\r\n"},
        Endless{"a quoted extension", "1;x=\"", "\\\\"}}) {
    for (const char* path : {"/health", "/v1/completions", "/tokenize"}) {
      std::string more;
      while (more.size() < kMiB) more += one.more;
      const std::size_t before = ResidentBytes();
      HttpClient client(port_);
      client.Send(PostHead(path, chunked) + one.begin);
      for (int i = 0; i < 64 && !client.HasInput(); ++i) client.Send(more);
      const HttpResponse response = client.Read();
      EXPECT_EQ(response.status, path == std::string("/health") ? 405 : 400) << one.what << path;
      EXPECT_EQ(response.headers.at("connection"), "close");
      EXPECT_LT(ResidentBytes(), before + kFactor * 32 * kMiB) << one.what;
    }
  }
}

TEST_F(HttpTest, ChunksMayBeSmallButNotMostlyFraming) {
  Serve();
  const std::string body = R"({"model":"m","prompt":")" + std::string(200'000, 'a') + "\"}";
  std::string small, framing;
  for (const char c : body) {
    small += std::string("1\r\n") + c + "\r\n";
    framing += std::string("1;xxxxxxxx\r\n") + c + "\r\n";
  }
  const std::string head = PostHead("/tokenize", "transfer-encoding: chunked\r\n");
  HttpClient first(port_), second(port_);
  first.Send(head + small + "0\r\n\r\n");
  const HttpResponse read = first.Read();
  EXPECT_EQ(read.body.find("framing"), std::string::npos) << read.body;
  second.Send(head + framing + "0\r\n\r\n");
  const HttpResponse refused = second.Read();
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("framing"), std::string::npos) << refused.body;
}

TEST_F(HttpTest, PathsWithoutABodyAreRefusedOneBeforeItIsRead) {
  Fixture setup;
  setup.http.metrics = [] { return std::string("up 1\n"); };
  Serve(setup);
  const auto ask = [&](const std::string& line, const std::string& headers) {
    HttpClient client(port_);
    client.Send(line + " HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n" + headers +
                "\r\n");
    const HttpResponse response = client.Read(!line.starts_with("HEAD"));  // nor is there a 100
    EXPECT_TRUE(client.AtEnd()) << line;
    return response.status;
  };
  for (const std::string& headers :
       {Announce(4194304), Announce(1), std::string("transfer-encoding: chunked\r\n")}) {
    for (const char* path : {"/health", "/ready", "/metrics", "/v1/models", "/"}) {
      for (const auto& [method, status] : std::map<std::string, int>{
               {"GET ", 413}, {"HEAD ", 413}, {"POST ", 405}, {"PUT ", 405}}) {
        EXPECT_EQ(ask(method + path, headers), status) << method << path;
      }
    }
    EXPECT_EQ(ask("POST /nothing", headers), 404);
    EXPECT_EQ(ask("GET /v1/completions", headers), 405);
  }
  HttpClient client(port_);  // an empty body is none
  EXPECT_EQ(client.Call("GET", "/health", "").status, 200);
  EXPECT_EQ(client.Call("POST", "/health").status, 405);
  EXPECT_EQ(client.Call("GET", "/health").status, 200);
}

TEST_F(HttpTest, AnswersThatNobodyReadsAreBoundedTogether) {
  Fixture setup;
  setup.http.output_memory_bytes = 5 * kMiB / 2;  // two answers that are held and one that is read
  setup.http.limits.slow_output = absl::Milliseconds(1);
  // Whoever does not read is slow after a millisecond, however fast this machine is. Who reads has
  // taken all before another answer comes.
  setup.http.limits.slow_output_bytes_per_second = 1 << 30;
  setup.http.limits.socket_send_bytes = 4096;
  Serve(setup);
  std::string ids = "1";
  for (int i = 0; i < 60'000; ++i) ids += ",1";
  const std::string body = R"({"model":"m","tokens":[)" + ids + "]}";
  HttpResponse read = Post("/detokenize", body);
  ASSERT_EQ(read.status, 200);
  EXPECT_GT(read.body.size(), 2 * kMiB / 3);
  std::vector<std::unique_ptr<HttpClient>> holding;
  for (int i = 0; i < 6; ++i) {
    holding.push_back(std::make_unique<HttpClient>(port_, 4096));
    holding.back()->SendRequest("POST", "/detokenize", body);
    holding.back()->ReadUntil("200 OK");  // the answer is there, and is not read
    EXPECT_EQ(Post("/detokenize", body).body, read.body) << "who reads is not cut off";
  }
  int cut = 0;
  for (const auto& one : holding) cut += one->ReadUntil("\"}") ? 0 : 1;  // the end of the answer
  EXPECT_GE(cut, 3);
  EXPECT_LT(cut, 6);
}

TEST_F(HttpTest, BodiesThatAreHeldAreBoundedTogether) {
  Serve();
  const std::string part(3 * kMiB, 'x');
  const std::size_t before = ResidentBytes();
  std::vector<std::unique_ptr<HttpClient>> holding;
  for (int i = 0; i < 200; ++i) {
    holding.push_back(std::make_unique<HttpClient>(port_));
    holding.back()->Send(PostHead("/v1/completions", Announce(4 * kMiB)) + part);
  }
  // When this request is answered, all earlier bytes have been read. The held bodies do not use up
  // the memory that it needs.
  EXPECT_EQ(Complete(R"(,"max_tokens":2)").status, 200);
  EXPECT_LT(ResidentBytes(), before + kFactor * 64 * kMiB);
}

// Announces a body and sends all but one byte of it.
std::unique_ptr<HttpClient> Hold(std::uint16_t port, const std::string& body) {
  auto client = std::make_unique<HttpClient>(port);
  client->Send(PostHead("/tokenize", Announce(body.size())) + body.substr(1));
  return client;
}

TEST_F(HttpTest, WhoFindsTheMemoryForBodiesSpentMayComeAgain) {
  Fixture setup;
  setup.http.body_memory_bytes = 256 << 10;
  setup.http.limits.slow_body = absl::Hours(1);
  Serve(setup);
  const std::string large = LargeBody(200 << 10);
  auto holding = Hold(port_, large);
  HttpResponse response;
  ASSERT_TRUE(Await([&] {
    if (holding->HasInput()) holding = Hold(port_, large);  // it came too late
    response = Post("/tokenize", large);
    return response.status == 503;
  }));
  EXPECT_EQ(response.headers.at("retry-after"), "1");
  EXPECT_EQ(Post("/tokenize", R"({"model":"m","prompt":"abc"})").status, 200);
  EXPECT_FALSE(holding->HasInput());
  holding->Close();
  ASSERT_TRUE(Await([&] { return Post("/tokenize", large).status != 503; }));
}

TEST_F(HttpTest, ASlowBodyGivesWay) {
  Fixture setup;
  setup.http.body_memory_bytes = 256 << 10;
  setup.http.limits.slow_body = absl::Milliseconds(50);
  Serve(setup);
  const std::string large = LargeBody(200 << 10);
  auto slow = Hold(port_, large);
  ASSERT_TRUE(Await([&] {
    Post("/tokenize", large);
    if (!slow->HasInput()) return false;
    if (slow->Read().status == 408) return true;
    slow = Hold(port_, large);
    return false;
  }));
  ASSERT_TRUE(Await([&] { return Post("/tokenize", large).status < 404; }));
}

TEST_F(HttpTest, HeadersAreCounted) {
  Serve();
  const auto ask = [&](int fields) {
    std::string headers;
    for (int i = 0; i < fields; ++i) headers += "a:\r\n";
    return HttpClient(port_).Call("GET", "/health", "", headers).status;
  };
  EXPECT_EQ(ask(98), 200);  // and a host and a length
  EXPECT_EQ(ask(99), 431);
  EXPECT_EQ(ask(1500), 431);
}

TEST_F(HttpTest, AnAllocationThatFailsCostsOneConnection) {
  Serve();
  const std::string large = LargeBody(kMiB), part = large.substr(0, 400 << 10);
  HttpClient before(port_);
  EXPECT_EQ(before.Call("GET", "/health").status, 200);
  {
    testing::FailLargeAllocations failing(256 << 10);
    HttpClient client(port_);
    client.Send(PostHead("/tokenize", Announce(large.size())));
    client.Send(part);
    EXPECT_EQ(client.Read().status, 503);
    EXPECT_TRUE(client.AtEnd());
    EXPECT_EQ(before.Call("GET", "/health").status, 200);
  }
  EXPECT_NE(Post("/tokenize", large).status, 503);
  EXPECT_EQ(Complete(R"(,"max_tokens":2)").status, 200);
}

// Allocations fail after the body is read: while the pool parses it, and while it encodes.
TEST_F(HttpTest, AnAllocationThatFailsOnThePoolCostsOneRequest) {
  Serve();
  std::string lists = R"({"model":"m","x":[[])";
  while (lists.size() < 100'000) lists += ",[]";
  lists += "]}";
  const std::string word = R"({"model":"m","prompt":")" + std::string(100'000, 'a') + "\"}";
  HttpClient client(port_);
  EXPECT_EQ(client.Call("POST", "/v1/completions", lists).status, 400);
  EXPECT_EQ(client.Call("POST", "/tokenize", word).status, 200);
  {
    testing::FailLargeAllocations failing(300'000);  // the bodies are smaller
    EXPECT_EQ(client.Call("POST", "/v1/completions", lists).status, 503);
    EXPECT_EQ(client.Call("POST", "/tokenize", word).status, 503);
    EXPECT_EQ(client.Call("GET", "/health").status, 200);
  }
  EXPECT_EQ(client.Call("POST", "/v1/completions", lists).status, 400);
  EXPECT_EQ(client.Call("POST", "/tokenize", word).status, 200);
}

// A body counts against the memory for bodies only while it is read, because it may wait for the
// pool when the server is gone.
TEST_F(HttpTest, BodiesThatWaitForThePoolLeaveRoomForOthers) {
  Fixture setup;
  setup.http.body_memory_bytes = 2 * kMiB;
  Serve(setup);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port_));
    const std::string body = LargeBody(kMiB);
    clients.back()->Send(PostHead("/tokenize", Announce(body.size())));
    clients.back()->Send(body);
    EXPECT_NE(Post("/v1/completions", LargeBody(20 << 10)).status, 503);
  }
  clients.clear();
  server_.reset();
  service_.reset();
}

TEST_F(HttpTest, WhatIsDetokenizedIsBounded) {
  Serve();
  std::string longest;
  for (int i = 0; i < 60'000; ++i) longest += "46778,";  // 81 bytes each
  longest.back() = ']';
  const HttpResponse response = Post("/detokenize", R"({"model":"m","tokens":[)" + longest + "}");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["error"]["message"],
            "the text of tokens is 4860000 bytes long; at most 4194304 are allowed");
}

}  // namespace
}  // namespace flotilla::router
