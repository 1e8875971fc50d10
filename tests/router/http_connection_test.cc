// Tests HTTP connections with real sockets: peers that leave, are slow, are too many or send
// nonsense, and a server that stops.
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/router/http_fixture.h"

namespace flotilla::router {
namespace {

TEST_F(HttpTest, DisconnectCancels) {
  Serve({.manual = true});
  for (const char* stream : {"true", "false"}) {
    const std::size_t before = engine_->submitted().size();
    HttpClient client(port_);
    client.SendRequest(
        "POST", "/v1/completions",
        std::string(R"({"model":"m","prompt":"hi","max_tokens":99,"stream":)") + stream + "}");
    ASSERT_TRUE(Await([&] { return engine_->submitted().size() == before + 1; }));
    engine_->Step();
    client.Close();
    ASSERT_TRUE(Await([&] { return engine_->cancelled().size() == before + 1; }));
    engine_->StepAll();
  }
}

TEST_F(HttpTest, ASlowReaderCostsOnlyItself) {
  Fixture setup{.manual = true};
  setup.http.limits.unsent_bytes = 4096;
  setup.http.limits.write_timeout = absl::Milliseconds(200);
  Serve(setup);
  HttpClient slow(port_, 4096), quick(port_);
  const std::string body = R"({"model":"m","prompt":"hi","max_tokens":2000,"ignore_eos":true,)"
                           R"("stream":true,"logprobs":20})";
  slow.SendRequest("POST", "/v1/completions", body);
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  const RequestId slow_id = engine_->submitted()[0].id;
  // 2,000 tokens of about 700 bytes are far more than any socket buffers.
  for (int i = 0; i < 1990; ++i) engine_->Step();
  quick.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"hi","max_tokens":5})");
  ASSERT_TRUE(Await([&] { return !engine_->cancelled().empty(); }));
  EXPECT_EQ(engine_->cancelled()[0].request, slow_id);
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 2; }));
  engine_->StepAll();
  EXPECT_EQ(quick.Read().status, 200);
}

TEST_F(HttpTest, ManyStreamsAtOnceLoseNothing) {
  // All prompts may wait for the tokenizer at once, and one tenant has a share of its queue.
  Fixture setup{.manual = true, .tokenizer_queue = 256};
  setup.http.io_threads = 2;
  Serve(setup);
  constexpr int kStreams = 64, kTokens = 200;
  std::vector<std::vector<TokenId>> got(kStreams);
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&, i] {
      HttpClient client(port_);
      client.SendRequest("POST", "/v1/completions",
                         R"({"model":"m","prompt":"hi","stream":true,"ignore_eos":true,)"
                         R"("return_token_ids":true,"max_tokens":200,"seed":)" +
                             std::to_string(i) + "}");
      const HttpResponse answer = client.Read();
      ASSERT_EQ(answer.status, 200) << answer.body;
      const auto events = answer.events();
      EXPECT_EQ(events.back(), "[DONE]");
      for (std::size_t e = 0; e + 1 < events.size(); ++e) {
        const json event = json::parse(events[e]);
        for (TokenId id : event["choices"][0]["token_ids"]) got[i].push_back(id);
      }
    });
  }
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == kStreams; }));
  engine_->StepAll();
  for (std::thread& client : clients) client.join();
  // Equal seeds give equal tokens: a second run, one at a time, must agree.
  for (int i = 0; i < kStreams; i += 13) {
    HttpClient client(port_);
    client.SendRequest("POST", "/v1/completions",
                       R"({"model":"m","prompt":"hi","ignore_eos":true,"return_token_ids":true,)"
                       R"("max_tokens":200,"seed":)" +
                           std::to_string(i) + "}");
    ASSERT_TRUE(Await([&] { return engine_->Load().waiting_requests == 1; }));
    engine_->StepAll();
    EXPECT_EQ(client.Read().json()["choices"][0]["token_ids"], json(got[i]));
  }
  for (const auto& tokens : got) EXPECT_EQ(tokens.size(), static_cast<std::size_t>(kTokens));
}

TEST_F(HttpTest, ProtocolErrorsAndLimits) {
  Fixture setup;
  setup.http.limits.body_bytes = 10'000;
  Serve(setup);
  const auto raw = [&](const std::string& bytes) {
    HttpClient client(port_);
    client.Send(bytes);
    const HttpResponse response = client.Read();
    EXPECT_TRUE(client.AtEnd()) << "left open after " << response.status;
    return response.status;
  };
  EXPECT_EQ(raw("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(raw("GET / HTTP/1.1\r\nhost: localhost\r\nx: " + std::string(9000, 'a') + "\r\n\r\n"),
            431);
  EXPECT_EQ(raw("GET /" + std::string(100'000, 'a')), 431);
  EXPECT_EQ(raw("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10001\r\n\r\n"),
            413);
  EXPECT_EQ(raw("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n"), 400);
  EXPECT_EQ(raw("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: "
                "1\r\ntransfer-encoding: chunked\r\n"
                "\r\n0\r\n\r\n"),
            400);
  EXPECT_EQ(raw("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" +
                std::string("4E20\r\n") + std::string(20'000, 'x') + "\r\n0\r\n\r\n"),
            413);
}

TEST_F(HttpTest, KeepAlivePipeliningAndContinue) {
  Serve();
  HttpClient client(port_);
  const std::string get = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
  client.Send(get + get + get);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.Read().status, 200);
  const std::string body = R"({"model":"m","prompt":"abc"})";
  client.Send(
      "POST /tokenize HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  client.Send(body);
  EXPECT_EQ(client.Read().status, 200);
  client.Send("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
  EXPECT_EQ(client.Read().headers.at("connection"), "close");
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpTest, OldClientsGetAStreamThatEndsWithTheConnection) {
  Serve();
  Answer("Hello");
  const std::string body = R"({"model":"m","prompt":"hi","stream":true})";
  HttpClient client(port_);
  client.Send("POST /v1/completions HTTP/1.0\r\ncontent-length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const HttpResponse response = client.Read();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_EQ(response.events().back(), "[DONE]");
}

TEST_F(HttpTest, TooManyConnectionsAreTurnedAway) {
  Fixture setup{.manual = true};
  setup.http.max_connections = 1;
  Serve(setup);
  HttpClient busy(port_);
  busy.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"hi","max_tokens":2})");
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  HttpClient second(port_);
  EXPECT_EQ(second.Read().status, 503);
  engine_->StepAll();
  EXPECT_EQ(busy.Read().status, 200);
}

TEST_F(HttpTest, TheConnectionIdleLongestGivesWay) {
  Fixture setup;
  setup.http.max_connections = 3;
  setup.http.limits.fresh = absl::ZeroDuration();
  Serve(setup);
  HttpClient first(port_), second(port_), third(port_);
  for (HttpClient* one : {&second, &first, &third}) {
    EXPECT_EQ(one->Call("GET", "/health").status, 200);
  }
  HttpClient fourth(port_);
  EXPECT_EQ(fourth.Call("GET", "/health").status, 200);
  EXPECT_TRUE(second.AtEnd());
  first.Send("GET /hea");  // idle connections are closed before this one
  EXPECT_EQ(fourth.Call("GET", "/health").status, 200);
  HttpClient fifth(port_), sixth(port_);
  for (HttpClient* one : {&fifth, &sixth}) EXPECT_EQ(one->Call("GET", "/health").status, 200);
  EXPECT_TRUE(third.AtEnd());
  EXPECT_TRUE(fourth.AtEnd());
  first.Send("lth HTTP/1.1\r\nhost: localhost\r\n\r\n");
  EXPECT_EQ(first.Read().status, 200);
}

// Who has just connected, or had its answer, may have a request on the way, and would see it lost.
TEST_F(HttpTest, WhoIsIdleForAMomentKeepsItsPlace) {
  Fixture setup;
  setup.http.max_connections = 3;
  setup.http.limits.fresh = absl::Hours(1);
  Serve(setup);
  HttpClient fresh(port_), answered(port_), sending(port_);
  EXPECT_EQ(answered.Call("GET", "/health").status, 200);
  sending.Send("GET /hea");
  for (int i = 0; i < 3; ++i) {
    HttpClient more(port_);
    more.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"hi"})");
    const HttpResponse refused = more.Read();
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
  }
  sending.Send("lth HTTP/1.1\r\nhost: localhost\r\n\r\n");
  EXPECT_EQ(sending.Read().status, 200);
  EXPECT_EQ(fresh.Call("GET", "/health").status, 200);
  EXPECT_EQ(answered.Call("GET", "/health").status, 200);
}

std::ptrdiff_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

// Who was refused and does not leave takes no descriptors from others for long.
TEST_F(HttpTest, FewRefusedConnectionsStay) {
  Fixture setup;
  setup.http.max_connections = 1;
  setup.http.limits.fresh = absl::Hours(1);
  Serve(setup);
  HttpClient only(port_);
  EXPECT_EQ(only.Call("GET", "/health").status, 200);
  const std::ptrdiff_t before = OpenDescriptors();
  std::vector<std::unique_ptr<HttpClient>> refused;
  constexpr int kMany = 200;
  while (std::ssize(refused) < kMany) {
    refused.push_back(std::make_unique<HttpClient>(port_));
    EXPECT_EQ(refused.back()->Read().status, 503);
  }
  EXPECT_LE(OpenDescriptors(), before + kMany + 40);
  EXPECT_EQ(only.Call("GET", "/health").status, 200);
  // They take nobody's place.
  only.Close();
  ASSERT_TRUE(Await([&] { return HttpClient(port_).Call("GET", "/health").status == 200; }));
}

TEST_F(HttpTest, APartOfARequestIsRefused) {
  Serve();
  const std::string head =
      "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 90\r\n\r\n";
  for (const std::string& part : {std::string("GET /hea"), head, head + R"({"model":)"}) {
    HttpClient client(port_);
    client.Send(part);
    client.CloseSending();
    const HttpResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << part;
    EXPECT_NE(response.body.find("is not whole"), std::string::npos) << response.body;
    EXPECT_TRUE(client.AtEnd());
  }
  HttpClient silent(port_);
  silent.CloseSending();
  EXPECT_TRUE(silent.AtEnd());
}

TEST_F(HttpTest, SlowRequestsGiveWayWhereNobodyIsIdle) {
  Fixture setup{.manual = true};
  setup.http.max_connections = 2;
  setup.http.limits.fresh = setup.http.limits.slow_body = absl::ZeroDuration();
  Serve(setup);
  HttpClient head(port_), body(port_);
  head.Send("GET /hea");
  body.Send(
      "POST /tokenize HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
      "content-length: 9\r\n\r\n");
  EXPECT_EQ(body.Read().status, 100);
  HttpClient other(port_);
  EXPECT_EQ(other.Call("GET", "/health").status, 200);
  EXPECT_TRUE(head.AtEnd());
  other.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"hi","max_tokens":2})");
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  HttpClient another(port_);
  EXPECT_EQ(another.Call("GET", "/health").status, 200);
  EXPECT_TRUE(body.AtEnd());
  engine_->StepAll();
  EXPECT_EQ(other.Read().status, 200);
}

TEST_F(HttpTest, APeerThatHalfClosesGetsItsAnswer) {
  Serve({.manual = true});
  for (const char* stream : {"true", "false"}) {
    const std::size_t before = engine_->submitted().size();
    HttpClient client(port_);
    client.SendRequest(
        "POST", "/v1/completions",
        std::string(R"({"model":"m","prompt":"hi","max_tokens":3,"stream":)") + stream + "}");
    client.CloseSending();
    ASSERT_TRUE(Await([&] { return engine_->submitted().size() == before + 1; }));
    engine_->StepAll();
    HttpResponse response = client.Read();
    if (response.status == 100) response = client.Read();
    EXPECT_EQ(response.status, 200);
    EXPECT_TRUE(client.AtEnd());
  }
  EXPECT_TRUE(engine_->cancelled().empty());

  HttpClient pipelining(port_);
  const std::string get = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
  pipelining.Send(get + get + "GET /hea");
  pipelining.CloseSending();
  EXPECT_EQ(pipelining.Read().status, 200);
  EXPECT_EQ(pipelining.Read().status, 200);
  EXPECT_EQ(pipelining.Read().status, 400);  // a part of one
  EXPECT_TRUE(pipelining.AtEnd());
}

// The server probes a peer that has only closed its sending side, by an interim answer. The peer is
// still there, so the request goes on.
TEST_F(HttpTest, AHalfClosedPeerIsProbedAndWaitedFor) {
  Fixture setup{.manual = true};
  setup.http.limits.probe_delay = absl::Milliseconds(1);
  Serve(setup);
  HttpClient client(port_);
  client.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"hi","max_tokens":3})");
  client.CloseSending();
  EXPECT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  EXPECT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));  // again, after ten times the delay
  EXPECT_EQ(client.Read().status, 100);
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  engine_->StepAll();
  HttpResponse response = client.Read();
  while (response.status == 100) response = client.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(engine_->cancelled().empty());
}

TEST_F(HttpTest, HeadIsGetWithoutTheBody) {
  Fixture setup;
  setup.http.metrics = [] { return std::string("up 1\n"); };
  Serve(setup);
  HttpClient client(port_);  // one connection, kept alive
  for (const char* path : {"/", "/health", "/ready", "/metrics", "/openapi.json", "/v1/models",
                           "/v1/models/m", "/v1/models/none", "/nothing"}) {
    const HttpResponse get = client.Call("GET", path);
    client.Send(std::string("HEAD ") + path + " HTTP/1.1\r\nhost: localhost\r\n\r\n");
    HttpResponse head = client.ReadHead();
    EXPECT_EQ(head.status, get.status) << path;
    for (const char* name : {"content-length", "content-type"}) {
      EXPECT_EQ(head.headers.at(name), get.headers.at(name)) << path;
    }
  }
  client.Send("HEAD /v1/completions HTTP/1.1\r\nhost: localhost\r\n\r\n");
  const HttpResponse wrong = client.ReadHead();
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(client.Call("GET", "/health").status, 200);  // the HEAD had no body
  EXPECT_EQ(client.Call("DELETE", "/health").headers.at("allow"), "GET, HEAD");
}

TEST_F(HttpTest, IdleConnectionsAreClosed) {
  Fixture setup;
  setup.http.limits.idle_timeout = absl::Milliseconds(50);
  setup.http.limits.header_timeout = absl::Milliseconds(50);
  Serve(setup);
  HttpClient idle(port_), dawdling(port_);
  dawdling.Send("GET / HT");
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_TRUE(dawdling.AtEnd());
}

TEST_F(HttpTest, StopFinishesWhatRunsAndCancelsWhatDoesNotEnd) {
  Serve({.manual = true});
  HttpClient finishes(port_);
  finishes.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"a","max_tokens":3})");
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  std::thread stopping([&] { server_->Stop(absl::Seconds(20)); });
  engine_->StepAll();
  EXPECT_EQ(finishes.Read().status, 200);
  stopping.join();

  Serve({.manual = true});
  HttpClient hangs(port_);
  hangs.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"a"})");
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  server_->Stop(absl::ZeroDuration());
  EXPECT_EQ(engine_->cancelled().size(), 1u);
  engine_->StepAll();  // events for an I/O loop that is gone
}

}  // namespace
}  // namespace flotilla::router
