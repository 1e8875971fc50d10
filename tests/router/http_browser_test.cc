// Tests that a web page cannot make its reader's browser send requests that the server accepts.
#include <string>

#include <gtest/gtest.h>

#include "router/http/cors_policy.h"
#include "router/http/host_policy.h"
#include "tests/router/http_fixture.h"

namespace flotilla::router {
namespace {

constexpr char kBody[] = R"({"model":"m","prompt":"hi","max_tokens":2})";

TEST_F(HttpTest, APageNeedsTheTypeOfJson) {
  Serve();
  const std::string origin = "origin: https://page.example\r\n";
  for (const char* type :
       {"text/plain", "application/x-www-form-urlencoded", "", "text/json",
        "multipart/form-data; boundary=application/json", "application/json-patch+json"}) {
    HttpClient client(port_);
    const HttpResponse response =
        client.Call("POST", "/v1/completions", kBody, origin + "content-type: " + type + "\r\n");
    EXPECT_EQ(response.status, 415) << type;
    EXPECT_TRUE(client.AtEnd());
  }
  EXPECT_EQ(Post("/v1/completions", kBody, origin).status, 415);
  EXPECT_EQ(Post("/v1/completions", kBody, "origin: null\r\n").status, 415);
  const std::string json = "content-type: application/json\r\n";
  EXPECT_EQ(Post("/v1/completions", kBody, origin + json + json).status, 415);
  EXPECT_TRUE(engine_->submitted().empty());

  for (const char* type : {"application/json", "Application/JSON",
                           "application/json; charset=utf-8", "application/json ;x"}) {
    const HttpResponse response =
        Post("/v1/completions", kBody, origin + "content-type: " + type + "\r\n");
    EXPECT_EQ(response.status, 200) << type;
    for (const auto& [name, value] : response.headers) {
      EXPECT_FALSE(name.starts_with("access-control")) << name;
    }
  }
  // A client without an Origin header is no browser, and may send any type.
  EXPECT_EQ(Post("/v1/completions", kBody, "content-type: text/plain\r\n").status, 200);
  // Before a browser sends JSON to another site it asks with OPTIONS. The server does not allow it.
  const HttpResponse preflight =
      HttpClient(port_).Call("OPTIONS", "/v1/completions", "",
                             origin +
                                 "access-control-request-method: POST\r\n"
                                 "access-control-request-headers: content-type\r\n");
  EXPECT_EQ(preflight.status, 405);
  EXPECT_FALSE(preflight.headers.contains("access-control-allow-origin"));
}

// ---- Pages that may.

constexpr char kPreflight[] =
    "access-control-request-method: POST\r\n"
    "access-control-request-headers: authorization,content-type,x-stainless-os\r\n";

TEST_F(HttpTest, APageOfANamedOriginMayCallAndReadAnswers) {
  Fixture setup;
  setup.http.pages = *CorsPolicy::Create({"https://chat.example", "http://localhost:3000"});
  Serve(setup);
  const std::string origin = "origin: https://chat.example\r\n";
  const std::string json = "content-type: application/json\r\n";
  HttpClient client(port_);  // the preflight leaves the connection open
  const HttpResponse preflight = client.Call("OPTIONS", "/v1/completions", "", origin + kPreflight);
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.body, "");
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "https://chat.example");
  EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), "GET, HEAD, POST, DELETE");
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization, *");
  EXPECT_EQ(preflight.headers.at("vary"), "origin");
  const HttpResponse answer = client.Call("POST", "/v1/completions", kBody, origin + json);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://chat.example");
  EXPECT_FALSE(answer.headers.contains("access-control-allow-credentials"));
  // The page also reads why it is refused. Its type must still be JSON's.
  const HttpResponse refused =
      Post("/v1/completions", kBody, origin + "content-type: text/plain\r\n");
  EXPECT_EQ(refused.status, 415);
  EXPECT_EQ(refused.headers.at("access-control-allow-origin"), "https://chat.example");
  // A request after it on the same connection, without an origin, gets none of it.
  EXPECT_FALSE(client.Call("GET", "/v1/models").headers.contains("access-control-allow-origin"));
}

TEST_F(HttpTest, PagesOfOtherOriginsGetNothing) {
  Fixture setup;
  setup.http.pages = *CorsPolicy::Create({"https://chat.example"});
  Serve(setup);
  for (const std::string origin :
       {"https://chat.example.evil", "http://chat.example", "https://chat.example:444", "null",
        "https://CHAT.example", "*", "https://chat.example\r\norigin: https://chat.example"}) {
    const std::string header = "origin: " + origin + "\r\n";
    const HttpResponse preflight =
        HttpClient(port_).Call("OPTIONS", "/v1/completions", "", header + kPreflight);
    EXPECT_EQ(preflight.status, 405) << origin;
    EXPECT_FALSE(preflight.headers.contains("access-control-allow-origin")) << origin;
    EXPECT_EQ(preflight.headers.at("vary"), "origin");
    EXPECT_FALSE(HttpClient(port_)
                     .Call("GET", "/v1/models", "", header)
                     .headers.contains("access-control-allow-origin"));
  }
}

TEST(CorsPolicyTest, OriginsAreWrittenAsBrowsersWriteThem) {
  EXPECT_TRUE(CorsPolicy::Create({"*"})->Allows("https://any.example"));
  EXPECT_EQ(CorsPolicy::Create({"*"})->AnswerHeaders("null")[1].second, "*");
  EXPECT_FALSE(CorsPolicy::Create({"*"})->Allows(""));
  EXPECT_FALSE(CorsPolicy::Create({})->Allows("https://any.example"));
  EXPECT_TRUE(CorsPolicy::Create({})->AnswerHeaders("https://any.example").empty());
  EXPECT_TRUE(CorsPolicy::Create({"http://[::1]:3000", "app://obsidian.md"}).ok());
  for (const char* wrong :
       {"", "chat.example", "https://", "://x", "https://chat.example/", "https://Chat.example",
        "https://*.example", "https://a,https://b", "https://a\r\nx: y", "null"}) {
    EXPECT_EQ(CorsPolicy::Create({wrong}).status().code(), absl::StatusCode::kInvalidArgument)
        << wrong;
  }
}

int AskAs(std::uint16_t port, const std::string& path, const std::string& host) {
  HttpClient client(port);
  client.Send("GET " + path + " HTTP/1.1\r\nhost: " + host + "\r\n\r\n");
  return client.Read().status;
}

TEST_F(HttpTest, ALoopbackAddressAnswersToItsOwnNamesOnly) {
  Serve();
  for (const char* path : {"/v1/models", "/health", "/metrics", "/nothing"}) {
    for (const char* host : {"page.example", "page.example:8080", "localhost.page.example",
                             "127.0.0.1.page.example", "10.0.0.1", "[fe80::1]", "0x7f.1"}) {
      EXPECT_EQ(AskAs(port_, path, host), 403) << path << host;
    }
  }
  EXPECT_EQ(AskAs(port_, "/v1/models", "localhost:1"), 200);
}

TEST_F(HttpTest, FurtherHostsAreAllowedByName) {
  Fixture setup;
  setup.http.allowed_hosts = {"proxy.example"};
  Serve(setup);
  EXPECT_EQ(AskAs(port_, "/health", "Proxy.Example:443"), 200);
  EXPECT_EQ(AskAs(port_, "/health", "localhost"), 200);
  EXPECT_EQ(AskAs(port_, "/health", "page.example"), 403);
}

TEST(HostPolicyTest, OtherAddressesAnswerEverybodyUnlessToldWhom) {
  EXPECT_TRUE(HostPolicy("0.0.0.0", {}).Allows("any.example"));
  EXPECT_TRUE(HostPolicy("10.0.0.1", {}).Allows(""));
  EXPECT_FALSE(HostPolicy("::1", {}).Allows("any.example"));
  EXPECT_TRUE(HostPolicy("127.0.0.2", {}).Allows(""));
  EXPECT_TRUE(HostPolicy("127.0.0.1", {"*"}).Allows("any.example"));
  EXPECT_FALSE(HostPolicy("0.0.0.0", {"a.example"}).Allows("b.example"));
  EXPECT_TRUE(HostPolicy("0.0.0.0", {"b", " a.Example "}).Allows("A.example:80"));
}

}  // namespace
}  // namespace flotilla::router
