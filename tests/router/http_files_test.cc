// /v1/files and /v1/batches over a socket: uploads of any size in bounded memory, tenants that do
// not see each other, and clients that break the rules.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/obs/metrics.h"
#include "gmock/gmock.h"
#include "router/files/files_service.h"
#include "router/files/metrics.h"
#include "tests/router/http_fixture.h"
#include "tests/support/scratch_directory.h"

namespace flotilla::router {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class HttpFilesTest : public HttpTest {
 protected:
  ~HttpFilesTest() override {
    if (server_) server_->Stop(absl::ZeroDuration());
    server_.reset();
    files_.reset();
  }
  void ServeFiles(FileLimits limits = {}, bool manual = false, HttpServerOptions http = {}) {
    testing::FakeEngineOptions engine;
    engine.description.vocab_size = text_.tokenizer->vocab_size();
    engine.description.max_context = 2048;
    engine.manual = manual;
    engine_ = std::make_unique<testing::FakeEngine>(engine);
    service_ = InferenceService::Create({}, &clock_);
    service_->AddModel({.id = "m",
                        .end_tokens = text_.stop_tokens,
                        .engine = engine_.get(),
                        .tokenizer = text_.tokenizer.get(),
                        .chat_template = text_.chat_template.get()});
    files_ = *FilesService::Open(
        {.folder = scratch_.path() + "/files",
         .limits = limits,
         .now_s = [] { return std::int64_t{1'700'000'000}; }},
        {.service = service_.get(), .clock = &clock_, .log = &log_, .metrics = &metrics_});
    http.port = 0;
    http.files = files_.get();
    http.files_metrics = &metrics_;
    http.tenant_header = "x-tenant";
    server_ = HttpServer::Create(http, service_.get());
    port_ = *server_->Start();
  }
  static std::string Form(const std::string& file, const std::string& name = "in.jsonl",
                          const std::string& purpose = "batch") {
    return absl::StrCat("--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n", purpose,
                        "\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"",
                        name, "\"\r\nContent-Type: application/octet-stream\r\n\r\n", file,
                        "\r\n--B--\r\n");
  }
  HttpResponse Upload(const std::string& form, const std::string& tenant = "a") {
    return Post("/v1/files", form,
                "x-tenant: " + tenant + "\r\ncontent-type: multipart/form-data; boundary=B\r\n");
  }
  HttpResponse Ask(const std::string& method, const std::string& path,
                   const std::string& tenant = "a") {
    return HttpClient(port_).Call(method, path, "", "x-tenant: " + tenant + "\r\n");
  }
  HttpResponse Order(const std::string& input, const std::string& more = "",
                     const std::string& tenant = "a") {
    return Post(
        "/v1/batches",
        absl::StrCat(R"({"input_file_id":")", input,
                     R"(","endpoint":"/v1/completions","completion_window":"24h")", more, "}"),
        "x-tenant: " + tenant + "\r\n");
  }
  std::size_t Stored() const {
    const auto data = std::filesystem::directory_iterator(scratch_.path() + "/files/data");
    return static_cast<std::size_t>(std::distance(begin(data), end(data)));
  }

  const testing::ScratchDirectory scratch_;
  Logger log_{LogLevel::kError};
  Metrics registry_;
  FilesMetrics metrics_{registry_};
  std::unique_ptr<FilesService> files_;
};

TEST_F(HttpFilesTest, AFileComesBackAsItWas) {
  ServeFiles();
  std::string bytes;  // of every value, and more than a piece
  for (int i = 0; i < 1'000'000; ++i) bytes.push_back(static_cast<char>(i * i >> 3));
  const HttpResponse uploaded = Upload(Form(bytes, "../../etc/passwd"));
  ASSERT_EQ(uploaded.status, 200) << uploaded.body;
  const json file = uploaded.json();
  EXPECT_EQ(file["bytes"], bytes.size());
  EXPECT_EQ(file["filename"], "../../etc/passwd");  // a label, and no path
  EXPECT_EQ(file["expires_at"], 1'700'000'000 + 30 * 86'400);
  const std::string id = file["id"];
  EXPECT_THAT(id, MatchesRegex("file-[0-9a-f]{32}"));
  EXPECT_EQ(Ask("GET", "/v1/files/" + id).json(), file);
  const HttpResponse content = Ask("GET", "/v1/files/" + id + "/content");
  EXPECT_EQ(content.headers.at("content-type"), "application/octet-stream");
  EXPECT_TRUE(content.body == bytes);
  EXPECT_EQ(Ask("GET", "/v1/files").json()["data"], json::array({file}));
  EXPECT_EQ(Ask("DELETE", "/v1/files/" + id).json(),
            (json{{"id", id}, {"object", "file"}, {"deleted", true}}));
  EXPECT_EQ(Ask("GET", "/v1/files/" + id + "/content").status, 404);
  EXPECT_EQ(Stored(), 0u);
}

TEST_F(HttpFilesTest, TenantsDoNotSeeEachOther) {
  ServeFiles();
  const std::string id = Upload(Form("x\n")).json()["id"];
  const std::string batch = Order(id).json()["id"];
  for (const std::string& path :
       {"/v1/files/" + id, "/v1/files/" + id + "/content", "/v1/batches/" + batch}) {
    EXPECT_EQ(Ask("GET", path, "b").status, 404) << path;
    EXPECT_EQ(Ask("GET", path).status, 200) << path;
  }
  EXPECT_EQ(Ask("DELETE", "/v1/files/" + id, "b").status, 404);
  EXPECT_EQ(Ask("POST", "/v1/batches/" + batch + "/cancel", "b").status, 404);
  EXPECT_EQ(Order(id, "", "b").status, 404);
  for (const char* path : {"/v1/files", "/v1/batches"}) {
    EXPECT_EQ(Ask("GET", path, "b").json()["data"], json::array());
    EXPECT_EQ(Ask("GET", path).json()["data"].size(), 1u);
    EXPECT_EQ(Ask("GET", std::string(path) + "?after=" + id, "b").status, 404);
  }
}

TEST_F(HttpFilesTest, ABatchIsAnsweredByTheEngine) {
  ServeFiles();
  std::string input;
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&input, R"({"custom_id":"r)", i,
                    R"(","url":"/v1/completions","body":{"model":"m","prompt":"hi"}})", "\n");
  }
  const std::string id =
      Order(Upload(Form(input)).json()["id"], R"(,"metadata":{"k":"v"})").json()["id"];
  json batch;
  ASSERT_TRUE(Await([&] {
    batch = Ask("GET", "/v1/batches/" + id).json();
    return batch["status"] == "completed";
  })) << batch;
  EXPECT_EQ(batch["request_counts"], (json{{"total", 20}, {"completed", 20}, {"failed", 0}}));
  EXPECT_EQ(batch["metadata"], (json{{"k", "v"}}));
  EXPECT_EQ(batch["error_file_id"], nullptr);
  const std::string output = batch["output_file_id"];
  const std::string answers = Ask("GET", "/v1/files/" + output + "/content").body;
  EXPECT_EQ(std::count(answers.begin(), answers.end(), '\n'), 20);
  for (const TokenizedRequest& request : engine_->submitted()) {
    EXPECT_EQ(request.priority, -100);
    EXPECT_EQ(request.tenant, "a");
  }
}

TEST_F(HttpFilesTest, WithoutAFolderTheRoutesSaySo) {
  Serve();
  for (const auto& [method, path] : {std::pair{"GET", "/v1/files"},
                                     {"GET", "/v1/files/file-1"},
                                     {"DELETE", "/v1/files/file-1"},
                                     {"GET", "/v1/files/file-1/content"},
                                     {"GET", "/v1/batches"},
                                     {"POST", "/v1/files"},
                                     {"POST", "/v1/batches/b/cancel"},
                                     {"POST", "/v1/batches"}}) {
    const HttpResponse answer = HttpClient(port_).Call(method, path, "");
    EXPECT_EQ(answer.status, 400) << path;
    EXPECT_EQ(answer.json()["error"]["code"], "files_disabled");
    EXPECT_THAT(answer.body, HasSubstr("--files-dir"));
  }
  EXPECT_EQ(Upload(Form("x")).json()["error"]["code"], "files_disabled");
}

TEST_F(HttpFilesTest, WrongFormsAreRefusedByName) {
  ServeFiles();
  EXPECT_EQ(Upload(Form("x", "n", "fine-tune")).json()["error"]["param"], "purpose");
  EXPECT_EQ(Upload("--B--\r\n").json()["error"]["param"], "file");
  EXPECT_EQ(Upload("--B\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\ny\r\n--B--")
                .json()["error"]["code"],
            "unknown_field");
  EXPECT_THAT(Upload(Form("x").substr(0, Form("x").size() - 4) + Form("y").substr(3)).body,
              HasSubstr("the form has 'purpose' twice"));
  EXPECT_THAT(Upload(Form("x").substr(0, 150)).body, HasSubstr("last boundary"));
  EXPECT_THAT(Post("/v1/files", Form("x"), "content-type: multipart/form-data\r\n").body,
              HasSubstr("needs a boundary"));
  EXPECT_THAT(Post("/v1/files", "{}", "content-type: application/json\r\n").body,
              HasSubstr("multipart/form-data"));
  EXPECT_TRUE(Await([&] { return Stored() == 0; }));
  EXPECT_EQ(Upload(Form("x", std::string("a\0b", 3))).status, 200);
}

TEST_F(HttpFilesTest, WhatIsTooMuchIsRefusedWhileItComes) {
  FileLimits limits;
  limits.file_bytes = 1 << 20;
  limits.tenant_bytes = 3 << 19;
  ServeFiles(limits);
  const std::string large(1 << 20, 'x');
  // By its announced length, before a byte of it is read.
  HttpClient announced(port_);
  announced.Send(
      "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99000000\r\n"
      "content-type: multipart/form-data; boundary=B\r\n\r\n");
  EXPECT_EQ(announced.Read().status, 413);
  // In chunks that never end.
  HttpClient endless(port_);
  endless.Send(
      "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
      "content-type: multipart/form-data; boundary=B\r\n\r\n");
  const std::string begin = Form(large).substr(0, 250 + large.size());
  endless.Send(absl::StrCat(absl::Hex(begin.size()), "\r\n", begin, "\r\n"));
  for (int i = 0; i < 40; ++i) endless.Send("10000\r\n" + std::string(0x10000, 'x') + "\r\n");
  EXPECT_THAT(endless.Read().status, ::testing::AnyOf(400, 413));
  EXPECT_EQ(Upload(Form(large)).status, 200);
  const HttpResponse full = Upload(Form(large));
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.json()["error"]["code"], "quota_exceeded");
  EXPECT_EQ(Upload(Form(large), "b").status, 200);
  EXPECT_TRUE(Await([&] { return Stored() == 2; }));
}

TEST_F(HttpFilesTest, AClientThatLeavesLeavesNothing) {
  ServeFiles();
  for (int i = 0; i < 20; ++i) {
    HttpClient client(port_);
    client.Send(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 300000\r\n"
        "content-type: multipart/form-data; boundary=B\r\n\r\n" +
        Form(std::string(static_cast<std::size_t>(i) * 10'000, 'x')).substr(0, 230 + i));
  }
  EXPECT_TRUE(Await([&] { return Stored() == 0; }));
  EXPECT_EQ(Upload(Form("x")).status, 200);
}

// Where there are as many connections as allowed, an upload that stands still gives its place to a
// new connection, and not one that began earlier and goes on.
TEST_F(HttpFilesTest, AnUploadThatGoesOnIsNotSlow) {
  HttpServerOptions http;
  http.max_connections = 2;
  http.limits.fresh = http.limits.slow_body = absl::ZeroDuration();
  ServeFiles({}, false, http);
  const std::string form = Form(std::string(300'000, 'x'));
  const auto begin = [&](HttpClient& client) {
    client.Send(absl::StrCat(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: ", form.size(),
        "\r\ncontent-type: multipart/form-data; boundary=B\r\n\r\n", form.substr(0, 1000)));
  };
  HttpClient goes_on(port_), stands_still(port_);
  begin(goes_on);
  ASSERT_TRUE(Await([&] { return Stored() == 1; }));
  begin(stands_still);
  ASSERT_TRUE(Await([&] { return Stored() == 2; }));
  goes_on.Send(form.substr(1000, 200'000));
  ASSERT_TRUE(Await([&] {
    std::uintmax_t most = 0;
    for (const auto& file : std::filesystem::directory_iterator(scratch_.path() + "/files/data")) {
      most = std::max(most, file.file_size());
    }
    return most > 100'000;
  }));
  EXPECT_EQ(HttpClient(port_).Call("GET", "/health").status, 200);
  goes_on.Send(form.substr(201'000));
  EXPECT_EQ(goes_on.Read().status, 200);
  EXPECT_TRUE(Await([&] { return Stored() == 1; }));
}

TEST_F(HttpFilesTest, ADownloadThatNobodyReadsHoldsTwoPieces) {
  ServeFiles();
  const std::string id = Upload(Form(std::string(20 << 20, 'x'))).json()["id"];
  HttpClient slow(port_, /*receive_bytes=*/4096);
  slow.SendRequest("GET", "/v1/files/" + id + "/content", "", "x-tenant: a\r\n");
  // The server goes on, and the slow client gets the whole file once it reads.
  EXPECT_EQ(Ask("GET", "/v1/files/" + id).status, 200);
  EXPECT_EQ(slow.Read().body.size(), 20u << 20);
  HttpClient head(port_);
  for (int i = 0; i < 2; ++i) {  // the connection stays
    head.SendRequest("HEAD", "/v1/files/" + id + "/content", "", "x-tenant: a\r\n");
    EXPECT_EQ(head.ReadHead().status, 200);
  }
}

TEST_F(HttpFilesTest, BatchesAndQueriesAreCheckedByName) {
  ServeFiles();
  const std::string id = Upload(Form("x\n")).json()["id"];
  const auto param = [this](const std::string& body) {
    const HttpResponse answer = Post("/v1/batches", body, "x-tenant: a\r\n");
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json()["error"]["param"];
  };
  const std::string base = R"({"input_file_id":")" + id + R"(",)";
  EXPECT_EQ(param("{}"), "input_file_id");
  EXPECT_EQ(param(base + R"("endpoint":"/v1/embeddings","completion_window":"24h"})"), "endpoint");
  for (const char* window : {"\"24\"", "\"0h\"", "\"169h\"", "\"-1h\"", "\"\"", "null"}) {
    EXPECT_EQ(param(base + R"("endpoint":"/v1/completions","completion_window":)" + window + "}"),
              "completion_window");
  }
  const std::string good = base + R"("endpoint":"/v1/completions","completion_window":"24h",)";
  EXPECT_EQ(param(good + R"("metadata":{"a":1}})"), "metadata");
  EXPECT_EQ(param(good + R"("metadata":[]})"), "metadata");
  EXPECT_EQ(param(good + R"("nonsense":1})"), "nonsense");
  EXPECT_EQ(param(good + R"("output_expires_after":{"anchor":"created_at","seconds":1}})"),
            "output_expires_after");
  for (const char* query : {"limit=0", "limit=x", "limit=101", "nonsense=1", "order=asc"}) {
    EXPECT_EQ(Ask("GET", std::string("/v1/batches?") + query).status, 400) << query;
  }
  EXPECT_EQ(Ask("GET", "/v1/files?limit=10000&order=asc&purpose=batch").json()["data"].size(), 1u);
  EXPECT_EQ(Ask("GET", "/v1/files?order=up").json()["error"]["param"], "order");
  const HttpResponse wrong = Ask("PUT", "/v1/files");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST, GET, HEAD");
  EXPECT_EQ(Ask("GET", "/v1/batches/x/cancel").status, 405);
  EXPECT_EQ(Ask("POST", "/v1/batches/x/cancel").status, 404);
}

}  // namespace
}  // namespace flotilla::router
