// Tests the HTTP frontend with keys: which clients are admitted, when, and as which tenant.
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "router/key_gate.h"
#include "tests/router/http_fixture.h"
#include "tests/support/log_lines.h"
#include "tests/support/manual_clock.h"
#include "tests/support/secret_files.h"

namespace flotilla::router {
namespace {

const std::string kAliceKey = "sk-0123456789abcdef", kBobKey = "sk-fedcba9876543210";
const std::string kAlice = "Authorization: Bearer " + kAliceKey + "\r\n";
const std::string kBob = "authorization: bearer " + kBobKey + "\r\n";
constexpr char kKeyedBody[] = R"({"model":"m","prompt":"hi"})";

class HttpKeysTest : public HttpTest {
 protected:
  HttpKeysTest() {
    gate_ = *KeyGate::Open({.path = files_.Write("keys", "alice " + kAliceKey + "\nbob " + kBobKey),
                            .clock = &file_clock_,
                            .log = &log_.logger()},
                           nullptr);
  }
  void ServeWithKeys(bool manual = false) {
    Fixture setup;
    setup.manual = manual;
    setup.http.gate = gate_.get();
    Serve(setup);
  }

  testing::SecretFiles files_;
  testing::LogLines log_;
  testing::ManualClock file_clock_;
  std::unique_ptr<KeyGate> gate_;
};

TEST_F(HttpKeysTest, WithoutAKeyTheAnswerIsOpenAis) {
  ServeWithKeys();
  const HttpResponse response = Post("/v1/completions", kKeyedBody);
  EXPECT_EQ(response.status, 401);
  EXPECT_EQ(response.headers.at("www-authenticate"), "Bearer");
  const json error = response.json()["error"];
  EXPECT_EQ(error["code"], "invalid_api_key");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_TRUE(error["param"].is_null());
  EXPECT_TRUE(engine_->submitted().empty());
}

TEST_F(HttpKeysTest, TheOwnerOfTheKeyIsTheTenant) {
  ServeWithKeys();
  HttpClient client(port_);  // one connection: each request by its own header
  EXPECT_EQ(client.Call("POST", "/v1/completions", kKeyedBody, kAlice).status, 200);
  EXPECT_EQ(client.Call("POST", "/v1/completions", kKeyedBody, kBob).status, 200);
  EXPECT_EQ(engine_->submitted()[0].tenant, "alice");
  EXPECT_EQ(engine_->submitted()[1].tenant, "bob");
  EXPECT_EQ(client.Call("POST", "/v1/completions", kKeyedBody).status, 401);
  EXPECT_TRUE(client.AtEnd());
  EXPECT_EQ(engine_->submitted().size(), 2u);
}

TEST_F(HttpKeysTest, HealthNeedsNoKeyAndWhatDoesNotExistDoes) {
  ServeWithKeys();
  EXPECT_EQ(HttpClient(port_).Call("GET", "/health").status, 200);
  EXPECT_EQ(HttpClient(port_).Call("GET", "/ready?x=1").status, 200);
  for (const char* path : {"/", "/openapi.json", "/v1/models", "/nothing", "/health/", "/HEALTH",
                           "*", "http://t/health", "/%68ealth"}) {
    EXPECT_EQ(HttpClient(port_).Call("GET", path).status, 401) << path;
  }
  EXPECT_EQ(HttpClient(port_).Call("GET", "/nothing", "", kAlice).status, 404);
}

TEST_F(HttpKeysTest, RoutesOfAdminsNeedTheKeyOfOne) {
  files_.Write("keys", "alice " + kAliceKey + "\nroot " + kBobKey + " admin");
  file_clock_.AdvanceNs(1'000'000'000);
  ServeWithKeys();
  const std::string path = "/admin/abort/gen-1";
  EXPECT_EQ(HttpClient(port_).Call("POST", path).status, 401);
  const HttpResponse refused = HttpClient(port_).Call("POST", path, "", kAlice);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.json()["error"]["message"], "/admin/abort/{id} needs the key of an admin");
  const HttpResponse answered = HttpClient(port_).Call("POST", path, "", kBob);
  EXPECT_EQ(answered.status, 200);
  EXPECT_EQ(answered.json()["found"], false);
  EXPECT_EQ(HttpClient(port_).Call("GET", "/v1/models", "", kBob).status, 200);  // as a user
}

TEST_F(HttpTest, WithoutKeysRoutesOfAdminsExistOnlyIfTheServerIsToldSo) {
  Serve();
  EXPECT_EQ(HttpClient(port_).Call("POST", "/admin/abort/x").status, 404);
  EXPECT_EQ(HttpClient(port_).Call("GET", "/").body.find("/admin"), std::string::npos);
  Fixture setup;
  setup.http.admin = true;
  server_.reset();
  Serve(setup);
  EXPECT_NE(HttpClient(port_).Call("GET", "/").body.find("POST /admin/abort/{id}"),
            std::string::npos);
  EXPECT_EQ(HttpClient(port_).Call("POST", "/admin/abort/x").json()["found"], false);
  EXPECT_EQ(HttpClient(port_).Call("GET", "/admin/abort/x").status, 405);
}

TEST_F(HttpKeysTest, ABodyIsNotReadBeforeTheKey) {
  ServeWithKeys();
  HttpClient client(port_);
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
      "content-length: 4000000\r\n\r\n");
  EXPECT_EQ(client.Read().status, 401);  // without a 100 Continue before it
}

TEST_F(HttpKeysTest, TwoHeadersAreNone) {
  ServeWithKeys();
  EXPECT_EQ(Post("/v1/completions", kKeyedBody, kAlice + kBob).status, 401);
  EXPECT_EQ(Post("/v1/completions", kKeyedBody, kAlice + kAlice).status, 401);
}

TEST_F(HttpKeysTest, APipelinedRequestIsJudgedByItself) {
  ServeWithKeys();
  HttpClient client(port_);
  client.SendRequest("POST", "/v1/completions", kKeyedBody, kAlice);
  client.SendRequest("POST", "/v1/completions", kKeyedBody);
  client.SendRequest("POST", "/v1/completions", kKeyedBody, kAlice);
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(client.Read().status, 401);
  EXPECT_TRUE(client.AtEnd());
  EXPECT_EQ(engine_->submitted().size(), 1u);
}

TEST_F(HttpKeysTest, APriorityAboveTheKeysIsRefusedByTheFileAsItIsNow) {
  ServeWithKeys();
  const auto ask = [this](int priority, const std::string& key) {
    return Post("/v1/completions",
                R"({"model":"m","prompt":"hi","priority":)" + std::to_string(priority) + "}", key);
  };
  EXPECT_EQ(ask(100, kAlice).status, 200);  // without max-priority any priority is allowed
  files_.Write("keys", "alice " + kAliceKey + " max-priority=0\nbob " + kBobKey);
  file_clock_.AdvanceNs(1'000'000'000);
  const HttpResponse refused = ask(100, kAlice);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "priority");
  EXPECT_EQ(refused.json()["error"]["message"], "priority is 100; this key may use at most 0");
  EXPECT_EQ(ask(1, kAlice).status, 400);
  EXPECT_EQ(ask(0, kAlice).status, 200);
  EXPECT_EQ(ask(-100, kAlice).status, 200);
  EXPECT_EQ(ask(100, kBob).status, 200);
  EXPECT_EQ(engine_->submitted().size(), 4u);
  // A request without a priority has 0, which may be too high, too.
  files_.Write("keys", "alice " + kAliceKey + " max-priority=-5\nbob " + kBobKey);
  file_clock_.AdvanceNs(1'000'000'000);
  const HttpResponse silent = Post("/v1/completions", R"({"model":"m","prompt":"hi"})", kAlice);
  EXPECT_EQ(silent.status, 400);
  EXPECT_EQ(silent.json()["error"]["message"], "priority is 0; this key may use at most -5");
}

TEST_F(HttpKeysTest, AKeyIsTakenAwayFromOpenConnectionsButNotFromARunningAnswer) {
  ServeWithKeys(/*manual=*/true);
  Answer("one two");
  HttpClient client(port_);
  client.SendRequest("POST", "/v1/completions", R"({"model":"m","prompt":"hi","stream":true})",
                     kAlice);
  ASSERT_TRUE(Await([&] { return engine_->submitted().size() == 1; }));
  files_.Write("keys", "bob " + kBobKey);
  file_clock_.AdvanceNs(1'000'000'000);
  EXPECT_EQ(Post("/v1/completions", kKeyedBody, kAlice).status, 401);
  engine_->StepAll();
  const HttpResponse response = client.Read();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.events().back(), "[DONE]");
  EXPECT_EQ(client.Call("POST", "/v1/completions", kKeyedBody, kAlice).status, 401);
}

}  // namespace
}  // namespace flotilla::router
