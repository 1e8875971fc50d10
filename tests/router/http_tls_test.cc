// Tests the HTTP frontend over TLS: what clients get, and what peers that break off, wait or speak
// something else cost others.
#include <openssl/ssl.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/auth/tls_files.h"
#include "tests/router/http_fixture.h"
#include "tests/support/log_lines.h"
#include "tests/support/secret_files.h"
#include "tests/support/test_certificates.h"

namespace flotilla::router {
namespace {

using ::flotilla::testing::Issue;
using ::flotilla::testing::MakeAuthority;
using ::flotilla::testing::PemPair;

// A clock that a test moves under the server's thread.
class StepClock final : public Clock {
 public:
  std::int64_t NowNs() const override { return now_ns_; }
  void NextSecond() { now_ns_ += 1'000'000'000; }

 private:
  std::atomic<std::int64_t> now_ns_ = 0;
};

// A client that shakes hands at once. It blocks, as HttpClient does.
class TlsClient final : public HttpClient {
 public:
  explicit TlsClient(std::uint16_t port, int receive_bytes = 0) : HttpClient(port, receive_bytes) {
    context_ = SSL_CTX_new(TLS_client_method());
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, fd_);
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() override {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }

  bool connected() const { return connected_; }
  // Says that nothing more comes, and still reads.
  void EndOutput() { SSL_shutdown(ssl_); }
  // The text of the server's certificate, in the form of `pem`.
  bool Sees(const std::string& pem) const {
    X509* theirs = SSL_get1_peer_certificate(ssl_);
    BIO* bio = BIO_new_mem_buf(pem.data(), -1);
    X509* one = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    const bool same = theirs != nullptr && X509_cmp(theirs, one) == 0;
    X509_free(theirs), X509_free(one), BIO_free(bio);
    return same;
  }

 protected:
  ssize_t SendSome(const char* data, std::size_t size) override {
    return SSL_write(ssl_, data, static_cast<int>(size));
  }
  ssize_t ReceiveSome(char* data, std::size_t size) override {
    return SSL_read(ssl_, data, static_cast<int>(size));
  }

 private:
  SSL_CTX* context_;
  SSL* ssl_;
  bool connected_ = false;
};

class HttpTlsTest : public HttpTest {
 protected:
  void ServeTls(Fixture setup = {}) {
    // OpenSSL's client raises the signal when it writes to a server that has closed.
    std::signal(SIGPIPE, SIG_IGN);
    tls_ = *TlsFiles::Open({.certificate = files_.Write("x.pem", first_.certificate),
                            .key = files_.Write("x.key", first_.key),
                            .offers = {"http/1.1"},
                            .clock = &step_clock_,
                            .log = &log_.logger()});
    setup.http.tls = tls_.get();
    setup.http.on_handshake = [this](bool done) { ++(done ? done_ : failed_); };
    Serve(setup);
  }
  ~HttpTlsTest() override {
    if (server_) server_->Stop(absl::ZeroDuration());
  }

  testing::SecretFiles files_;
  testing::LogLines log_;
  StepClock step_clock_;
  const PemPair authority_ = MakeAuthority("a");
  const PemPair first_ = Issue(authority_, "x"), second_ = Issue(authority_, "x");
  std::unique_ptr<TlsFiles> tls_;
  std::atomic<int> done_ = 0, failed_ = 0;
};

TEST_F(HttpTlsTest, RequestsAreAnsweredAsWithoutIt) {
  ServeTls();
  TlsClient client(port_);
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.Call("GET", "/health").status, 200);
  Answer("Hello there");
  const HttpResponse streamed = client.Call(
      "POST", "/v1/completions", R"({"model":"m","prompt":"hi","max_tokens":8,"stream":true})");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.events().back(), "[DONE]");
  // Requests and answers of many records. The answer is longer than what a socket takes at once.
  const std::string words(1 << 20, 'a');
  const HttpResponse tokens =
      client.Call("POST", "/tokenize", R"({"model":"m","prompt":")" + words + "\"}");
  EXPECT_EQ(tokens.status, 200);
  EXPECT_GT(tokens.json()["count"], 1000);
  EXPECT_EQ(client.Call("GET", "/nothing").status, 404);
  EXPECT_EQ(done_, 1);
  EXPECT_EQ(failed_, 0);
}

TEST_F(HttpTlsTest, WhatIsNotTlsIsAnsweredWithoutItAndClosed) {
  ServeTls();
  for (const std::string sent : {"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
                                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x01", "\n"}) {
    HttpClient client(port_);
    client.Send(sent);
    const HttpResponse answer = client.Read();
    EXPECT_EQ(answer.status, 400) << sent;
    EXPECT_NE(answer.body.find("https://"), std::string::npos) << answer.body;
    EXPECT_EQ(answer.headers.at("connection"), "close");
    EXPECT_TRUE(client.AtEnd());  // an end, not a reset that could overtake the answer
  }
  HttpClient broken(port_);
  broken.Send(std::string("\x16\x03\x01\x00\x05hello", 10));
  EXPECT_TRUE(broken.ReadUntil("\x15\x03"));  // an alert says what is wrong
  HttpClient gone(port_);
  gone.CloseSending();
  EXPECT_TRUE(gone.AtEnd());
  EXPECT_TRUE(Await([&] { return failed_ == 6; })) << failed_;
  EXPECT_EQ(done_, 0);
  TlsClient client(port_);
  EXPECT_EQ(client.Call("GET", "/health").status, 200);
}

TEST_F(HttpTlsTest, AHandshakeHasAsLongAsAHead) {
  Fixture setup;
  setup.http.limits.header_timeout = absl::Milliseconds(100);
  ServeTls(setup);
  HttpClient silent(port_), slow(port_);
  slow.Send("\x16\x03\x01\x02");  // the beginning of a record that never comes
  EXPECT_TRUE(silent.AtEnd());
  EXPECT_TRUE(slow.AtEnd());
  // Then the time between requests is another.
  TlsClient idle(port_);
  EXPECT_EQ(idle.Call("GET", "/health").status, 200);
  HttpClient other(port_);
  EXPECT_TRUE(other.AtEnd());  // takes longer than the limit
  EXPECT_EQ(idle.Call("GET", "/health").status, 200);
  EXPECT_EQ(TlsClient(port_).Call("GET", "/health").status, 200);
}

TEST_F(HttpTlsTest, HandshakesThatAreNotOverGiveWayToOthers) {
  Fixture setup;
  setup.http.max_connections = 3;
  ServeTls(setup);
  TlsClient idle(port_);
  EXPECT_EQ(idle.Call("GET", "/health").status, 200);
  HttpClient first(port_), second(port_);
  first.Send("\x16\x03\x01\x02");
  TlsClient client(port_);  // takes the place of the first one, although that has sent something
  EXPECT_TRUE(first.AtEnd());
  EXPECT_EQ(client.Call("GET", "/health").status, 200);
  EXPECT_EQ(idle.Call("GET", "/health").status, 200) << "who is idle stays";
  EXPECT_FALSE(second.HasInput());
}

TEST_F(HttpTlsTest, HandshakesAreBoundedByThemselves) {
  ServeTls();
  std::vector<std::unique_ptr<HttpClient>> waiting;
  for (int i = 0; i < 300; ++i) {
    waiting.push_back(std::make_unique<HttpClient>(port_));
    waiting.back()->Send("\x16\x03\x01\x40");
  }
  EXPECT_EQ(TlsClient(port_).Call("GET", "/health").status, 200);
  for (int i = 0; i < 44; ++i) EXPECT_TRUE(waiting[static_cast<std::size_t>(i)]->AtEnd()) << i;
  EXPECT_FALSE(waiting.back()->HasInput());
}

TEST_F(HttpTlsTest, WhenAllAreBusyANewConnectionIsClosed) {
  Fixture setup{.manual = true};
  setup.http.max_connections = 1;
  ServeTls(setup);
  TlsClient busy(port_);
  busy.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"hi","stream":true})");
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  EXPECT_FALSE(TlsClient(port_).connected());
}

TEST_F(HttpTlsTest, APeerThatSendsNothingMoreGetsItsAnswer) {
  ServeTls({.manual = true});
  TlsClient client(port_);
  client.SendRequest("POST", "/v1/completions",
                     R"({"model":"m","prompt":"hi","max_tokens":4,"stream":true})");
  client.EndOutput();
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  TlsClient leaves(port_);
  leaves.SendRequest("POST", "/v1/completions",
                     R"({"model":"m","prompt":"hi","max_tokens":4,"stream":true})");
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 2; }));
  leaves.Close();  // without a word
  EXPECT_TRUE(Await([&] { return engine_->cancelled().size() == 1; }));
  EXPECT_TRUE(client.ReadUntil("HTTP/1.1 100"));  // a probe
  EXPECT_EQ(engine_->cancelled().size(), 1u);
  client.Close();
  EXPECT_TRUE(Await([&] { return engine_->cancelled().size() == 2; }));
}

TEST_F(HttpTlsTest, ANewCertificateIsForNewConnections) {
  ServeTls();
  TlsClient before(port_);
  EXPECT_TRUE(before.Sees(first_.certificate));
  files_.Write("x.pem", second_.certificate);
  files_.Write("x.key", second_.key);
  step_clock_.NextSecond();
  TlsClient after(port_);
  EXPECT_TRUE(after.Sees(second_.certificate));
  EXPECT_EQ(before.Call("GET", "/health").status, 200);
  files_.Write("x.key", first_.key);
  step_clock_.NextSecond();
  EXPECT_TRUE(TlsClient(port_).Sees(second_.certificate));
  EXPECT_EQ(log_.Count("the last good one stays in use"), 1);
}

}  // namespace
}  // namespace flotilla::router
